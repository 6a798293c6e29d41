"""Where in the binlog: a position that can be ordered."""

from dataclasses import dataclass, field
from functools import total_ordering


@total_ordering
@dataclass(frozen=True)
class Position:
    """A binlog coordinate; ordered by file number and offset in the file, never by the file's name as text.

    >>> Position("binlog.999999", 4) < Position("binlog.1000000", 4)
    True
    >>> str(Position("binlog.000002", 348))
    'binlog.000002:348'
    """

    file: str
    pos: int
    gtids: str | None = field(default=None, compare=False)  # the set executed up to here, None where GTIDs are off

    @property
    def file_number(self) -> int:
        return int(self.file.rpartition(".")[2])

    @property
    def seq(self) -> int:
        """One non-negative BIGINT whose order is the binlog's: epoch (7 bits, still 0), file number (24 bits), pos (32 bits)."""
        return self.file_number << 32 | self.pos

    def __lt__(self, other: "Position") -> bool:
        return (self.file_number, self.pos) < (other.file_number, other.pos)

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"
