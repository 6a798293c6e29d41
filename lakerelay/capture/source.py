"""The source's tables: columns, keys and sizes, out of information_schema."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakerelay.capture.binlog import MySQL, quoted_column, version_number
from lakerelay.config import Settings

# A date that no application has; the lake takes it for a zero date. Its time is part of it in a DATETIME.
ZERO_DATE = "0001-02-03"
ZERO_DATETIME = f"{ZERO_DATE} 04:05:06"

_EXACT = {
    "": "{0}",
    # MySQL writes a FLOAT with six digits, a double with as many as it needs.
    "float": "{0} + 0e0 AS {0}",
    # Debezium takes the year 0 for 2000; 1900, which is no YEAR, is how it comes in the binlog.
    "year": "IF({0} = 0, 1900, {0}) AS {0}",
    "date": f"IF(MONTH({{0}}) = 0 OR DAYOFMONTH({{0}}) = 0, DATE'{ZERO_DATE}', {{0}}) AS {{0}}",
    "datetime": f"IF(MONTH({{0}}) = 0 OR DAYOFMONTH({{0}}) = 0, TIMESTAMP'{ZERO_DATETIME}', {{0}}) AS {{0}}",
}
_SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # DATA_TYPE: bigint, varchar, …
    full_type: str  # COLUMN_TYPE: bigint unsigned, varchar(44), …
    nullable: bool
    invisible: bool = False  # left out of SELECT *

    @property
    def may_be_zero_date(self) -> bool:
        """A date without a month or a day, where NULL cannot stand for it: Debezium makes 1970-01-01, or the column's default, of it."""
        return self.type in ("date", "datetime", "timestamp") and not self.nullable

    @property
    def exact(self) -> str:
        """Which expression of _EXACT reads it."""
        special = self.type in ("float", "year") or (self.may_be_zero_date and self.type != "timestamp")
        return self.type if special else ""


@dataclass(frozen=True)
class SourceTable:
    """A table as the source has it now; `key` is its primary key in the index's order, `rows` and `bytes` are estimates."""

    name: str  # database.table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: int
    bytes: int

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def select(self) -> str:
        """All columns, in a form that Debezium reads exactly."""
        return ", ".join(_EXACT[column.exact].format(quoted_column(column.name)) for column in self.columns)

    @property
    def star_is_not_exact(self) -> bool:
        """Whether SELECT * would leave out columns, or Debezium change values on the way."""
        return any(column.invisible or column.exact for column in self.columns)


def tables(mysql: MySQL, settings: Settings) -> list[SourceTable]:
    """The tables that the settings name and that the pipeline's user may see, by name."""
    sizes = {name: (rows or 0, data or 0) for name, rows, data in _rows(mysql, _TABLES) if settings.table(name) is not None}
    if not sizes:
        return []
    columns: dict[str, list[Column]] = {name: [] for name in sizes}
    for table, name, kind, full, nullable, extra in _rows(mysql, _COLUMNS, sizes):
        columns[table].append(Column(name, kind, full, nullable == "YES", "INVISIBLE" in extra.upper()))
    keys: dict[str, list[str]] = {name: [] for name in sizes}
    for table, name in _rows(mysql, _KEYS, sizes):
        keys[table].append(name)
    return [SourceTable(name, tuple(columns[name]), tuple(keys[name]), int(rows), int(data)) for name, (rows, data) in sorted(sizes.items())]


_TABLES = """
    SELECT CONCAT(table_schema, '.', table_name), table_rows, data_length FROM information_schema.tables
    WHERE table_type = 'BASE TABLE' AND table_schema NOT IN %s"""
_COLUMNS = """
    SELECT CONCAT(table_schema, '.', table_name), column_name, data_type, column_type, is_nullable, extra FROM information_schema.columns
    WHERE CONCAT(table_schema, '.', table_name) IN %s ORDER BY table_schema, table_name, ordinal_position"""
_KEYS = """
    SELECT CONCAT(table_schema, '.', table_name), column_name FROM information_schema.statistics
    WHERE index_name = 'PRIMARY' AND CONCAT(table_schema, '.', table_name) IN %s ORDER BY table_schema, table_name, seq_in_index"""


def _rows(mysql: MySQL, query: str, names: Iterable[str] = _SYSTEM) -> list[tuple[Any, ...]]:
    with mysql.cursor() as cursor:
        if version_number(mysql) >= (8, 0):
            cursor.execute("SET SESSION information_schema_stats_expiry = 0")  # else sizes may be a day old
        cursor.execute(query, (tuple(names),))
        return list(cursor.fetchall())
