"""The source's side of a comparison: rows and their digests, computed in MySQL; what is written here as text, lake.verify writes in the same way.

A digest is a number of 60 bits of the SHA-256 of a row's texts. Rows fall into buckets by the CRC32 of their key's texts, so that sums of digests tell in which
of them lake and source differ.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import ER

from lakerelay.capture import binlog, ranges
from lakerelay.capture.binlog import MySQL, Position, quoted, quoted_column
from lakerelay.capture.source import SourceTable
from lakerelay.config import Settings
from lakerelay.errors import VerifyError

Key: TypeAlias = tuple[str, ...]  # the texts of the key's columns
Digests: TypeAlias = tuple[int, ...]  # of a row; with columns: followed by the CRC32 of each; empty where several rows have one key

NULL, SEPARATOR = "\x1e", "\x1f"
LARGE, BEYOND = "1e27", "large"  # floating point from here on is compared by its column's NULLs alone: the two engines round it differently

# How a value is written as text. A kind that is missing here is not compared, and named.
_TEXT = {
    "plain": "CAST({} AS CHAR)",
    "text": "{}",
    "decimal": "CAST({} AS CHAR)",
    "real": f"IF(ABS({{0}}) < {LARGE}, CAST(CAST({{0}} AS DECIMAL(38, 10)) AS CHAR), IF({{0}} IS NULL, NULL, '{BEYOND}'))",
    "date": "IF(MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0, NULL, CAST({0} AS CHAR))",  # a zero or partial date is NULL in the lake
    "instant": "IF(MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0, NULL, DATE_FORMAT({0}, '%Y-%m-%d %H:%i:%s.%f'))",
    "time": "CAST(IF({0} < 0, -1, 1) * (ABS(TIME_TO_SEC({0})) * 1000000 + MICROSECOND({0})) AS CHAR)",
    "bytes": "HEX({})",
    "number": "CAST({} + 0 AS CHAR)",
    "shape": "HEX({})",  # four bytes of SRID, then the WKB
}
_KINDS = {
    **dict.fromkeys(["tinyint", "smallint", "mediumint", "int", "bigint"], "plain"),
    **dict.fromkeys(["char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"], "text"),
    **dict.fromkeys(["float", "double"], "real"),
    **dict.fromkeys(["datetime", "timestamp"], "instant"),
    **dict.fromkeys(["binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"], "bytes"),
    **dict.fromkeys(["bit", "year"], "number"),
    **dict.fromkeys(["geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"], "shape"),
    **dict.fromkeys(["geomcollection", "geometrycollection"], "shape"),
    "decimal": "decimal",
    "date": "date",
    "time": "time",
}
# A key's text as a value that MySQL compares with the column, so that the index finds it.
_VALUE = {"bytes": "UNHEX({})", "number": "CAST({} AS UNSIGNED)", "time": "SEC_TO_TIME({} / 1000000)"}
_ALTERED = (ER.TABLE_DEF_CHANGED, ER.BAD_FIELD_ERROR, ER.NO_SUCH_TABLE)
_TOO_LONG = 3024  # ER_QUERY_TIMEOUT
_LOOKED_UP = 500  # keys in one query


@dataclass(frozen=True)
class Compared:
    """A table as it is compared: `key` are the columns that tell its rows apart."""

    table: SourceTable
    key: tuple[str, ...]

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Column → kind, of those that are compared."""
        return {column.name: _KINDS[column.type] for column in self.table.columns if column.type in _KINDS}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns of types that the two engines cannot write alike."""
        return tuple(column.name for column in self.table.columns if column.name not in self.kinds)

    def text(self, column: str) -> str:
        return f"IFNULL(CONVERT({_TEXT[self.kinds[column]].format(quoted_column(column))} USING utf8mb4), CHAR(30 USING utf8mb4))"

    @property
    def digest(self) -> str:
        """Not MD5, which MySQL 9.7 has no longer."""
        return f"CAST(CONV(LEFT(SHA2(CONCAT_WS(CHAR(31), {', '.join(map(self.text, self.kinds))}), 256), 15), 16, 10) AS UNSIGNED)"

    def bucket(self, buckets: int) -> str:
        return f"CRC32(CONCAT_WS(CHAR(31), {', '.join(map(self.text, self.key))})) MOD {buckets}"


def keyed(rows: Iterable[tuple[Key, Digests]]) -> dict[Key, Digests]:
    """
    >>> keyed([(("1",), (7,)), (("2",), (8,)), (("1",), (9,))])
    {('1',): (), ('2',): (8,)}
    """
    found: dict[Key, Digests] = {}
    for key, digests in rows:
        found[key] = () if key in found else digests
    return found


@dataclass(frozen=True)
class Sums:
    """Of a table or a part of it. By bucket: rows, and the sum of their digests."""

    rows: Counter[int]
    digests: Counter[int]


@dataclass(frozen=True)
class Snapshot:
    """A consistent view of the source: it holds all changes up to `before`, and none after `after`.

    Read gently: range by range, with a pause after each, and until `deadline` (of time.monotonic()).
    """

    mysql: MySQL
    before: Position
    after: Position
    deadline: float
    rows_per_range: int
    pause: float  # seconds

    def sums(self, compared: Compared, buckets: int) -> Sums:
        select = f"SELECT {compared.bucket(buckets)} AS bucket, COUNT(*), SUM({compared.digest})"
        total = Sums(Counter(), Counter())
        for part in self._ranges(compared.table):
            for bucket, rows, digests in self._query(f"{select} FROM {quoted(compared.table.name)} WHERE {part} GROUP BY bucket"):
                total.rows[bucket] += rows
                total.digests[bucket] += int(digests)
        return total

    def rows(self, compared: Compared, buckets: int, chosen: Iterable[int]) -> dict[Key, Digests]:
        """Those in some of the buckets."""
        mine = f"{compared.bucket(buckets)} IN ({', '.join(map(str, chosen))})"
        return keyed(row for part in self._ranges(compared.table) for row in self._digests(compared, f"{part} AND {mine}"))

    def look_up(self, compared: Compared, keys: Iterable[Key]) -> dict[Key, Digests]:
        """Those of these keys, with the CRC32 of each column."""
        columns, wanted = ", ".join(map(quoted_column, compared.key)), list(keys)
        literal: Callable[[str], str] = self.mysql.escape
        found: list[tuple[Key, Digests]] = []
        for start in range(0, len(wanted), _LOOKED_UP):
            values = (
                ", ".join(_VALUE.get(compared.kinds[name], "{}").format(literal(text)) for name, text in zip(compared.key, key, strict=True))
                for key in wanted[start : start + _LOOKED_UP]
            )
            found += self._digests(compared, f"({columns}) IN ({', '.join(f'({value})' for value in values)})", columns=True)
        return keyed(found)

    def _digests(self, compared: Compared, where: str, columns: bool = False) -> Iterator[tuple[Key, Digests]]:
        selected = [*map(compared.text, compared.key), compared.digest, *(f"CRC32({compared.text(name)})" for name in compared.kinds if columns)]
        width = len(compared.key)
        for row in self._query(f"SELECT {', '.join(selected)} FROM {quoted(compared.table.name)} WHERE {where}"):  # noqa: S608 — names quoted
            yield row[:width], tuple(map(int, row[width:]))

    def _ranges(self, table: SourceTable) -> Iterator[str]:
        if table.rows <= self.rows_per_range or not ranges.can_split(table):
            yield "TRUE"
            return
        for part, _ in ranges.split(self.mysql, table, self.rows_per_range):
            yield ranges.condition(part)
            time.sleep(self.pause)

    def _query(self, query: str) -> tuple[tuple[Any, ...], ...]:
        left = self.deadline - time.monotonic()
        try:
            with self.mysql.cursor() as cursor:
                cursor.execute(f"SET SESSION max_execution_time = {max(int(left * 1000), 1)}")
                cursor.execute(query)
                return cursor.fetchall()
        except pymysql.MySQLError as error:
            if error.args[0] == _TOO_LONG:
                raise TimeoutError from error
            if error.args[0] in _ALTERED:
                raise VerifyError(
                    "A table was altered while it was compared.", safe="Nothing was changed.", todo="Compare it again.", why=str(error)
                ) from error
            raise


@contextmanager
def snapshot(settings: Settings, deadline: float) -> Iterator[Snapshot]:
    """The source as of now. Reading from it raises TimeoutError after `deadline`, VerifyError when a table is altered."""
    with binlog.connect(settings) as mysql, mysql.cursor() as cursor:
        # No mode of the server's may change how a value is written.
        for statement in ("sql_mode = ''", "time_zone = '+00:00'", "transaction_isolation = 'REPEATABLE-READ'"):
            cursor.execute(f"SET SESSION {statement}")
        before = binlog.position(mysql)
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield Snapshot(mysql, before, binlog.position(mysql), deadline, settings.verify.rows_per_range, settings.verify.pause_seconds)
