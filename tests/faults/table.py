"""docs/faults.md, from what the tests saw."""

import os
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import PROJECT

FILE = PROJECT / "docs" / "faults.md"
WRITE = "LAKERELAY_TEST_WRITE"
_HEAD = """# What happens when something breaks

Written by `make faults`, which makes each fault on real servers while tables are written to, streamed and read. After each of them the lake must
equal MySQL, every write that MySQL acknowledged must be there, and no reader may have seen a row go back or a deleted one come back
(`tests/faults/conftest.py`).

| fault | phase | how it is made | expected | seen | seconds |
|---|---|---|---|---|---|
"""
_seen: list["Row"] = []


@dataclass(frozen=True)
class Row:
    fault: str
    phase: str
    how: str
    expected: str
    seen: str
    seconds: float

    @property
    def line(self) -> str:
        return f"| {self.fault} | {self.phase} | {self.how} | {self.expected} | {self.seen} | {self.seconds:.0f} |\n"


def facts(marker: pytest.Mark) -> tuple[str, str, str, str]:
    """fault, phase, how, expected."""
    return marker.args  # type: ignore[return-value]


def seen(marker: pytest.Mark, passed: bool, what: Any, seconds: float) -> None:
    _seen.append(Row(*facts(marker), f"as expected{f': {what}' * bool(what)}" if passed else "**not as expected**", seconds))


def write() -> None:
    if os.environ.get(WRITE) and _seen:
        FILE.write_text(_HEAD + "".join(line for _, line in sorted(lines().items())))


def lines() -> dict[str, str]:
    """Fault → its line: of this run, else as it stands in the file."""
    standing = FILE.read_text().splitlines(keepends=True) if FILE.exists() else []
    known = {line.split(" | ")[0].removeprefix("| "): line for line in standing if line.startswith("| F-")}
    return known | {row.fault: row.line for row in _seen}
