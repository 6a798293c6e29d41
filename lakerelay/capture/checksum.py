"""The source's side of a comparison: rows and order-independent checksums, computed in MySQL."""

import logging
import time
from collections.abc import Iterable

from lakerelay.capture import binlog, source
from lakerelay.capture.binlog import quoted, quoted_column
from lakerelay.capture.progress import Progress, VerifyRecord
from lakerelay.capture.source import Column, SourceTable
from lakerelay.config import Settings
from lakerelay.errors import VerifyError

log = logging.getLogger(__name__)

WHOLE_ROW = "*"
NULL, SEPARATOR = r"\N", "\x1f"

# How a value is written as text, the same in MySQL and in Spark (lake.verify). A kind that is missing here is not compared, and named.
_TEXT = {
    "plain": "CAST({} AS CHAR)",
    "text": "{}",
    "decimal": "CAST({} AS CHAR)",
    "real": "CAST(CAST({} AS DECIMAL(38, 10)) AS CHAR)",  # the two print floating point differently
    "instant": "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')",
    "time": "CAST(IF({0} < 0, -1, 1) * (ABS(TIME_TO_SEC({0})) * 1000000 + MICROSECOND({0})) AS CHAR)",
    "bytes": "HEX({})",
    "bit": "CAST({} + 0 AS CHAR)",
}
_KINDS = {
    **dict.fromkeys(["tinyint", "smallint", "mediumint", "int", "bigint", "year", "date"], "plain"),
    **dict.fromkeys(["char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"], "text"),
    **dict.fromkeys(["float", "double"], "real"),
    **dict.fromkeys(["datetime", "timestamp"], "instant"),
    **dict.fromkeys(["binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"], "bytes"),
    "decimal": "decimal",
    "time": "time",
}


def checksum_source(settings: Settings, tables: Iterable[str]) -> None:
    """Record rows and checksums of each table, all under one consistent snapshot. Raises VerifyError for a table that is not there."""
    names = [name for name in tables if (entry := settings.table(name)) is None or entry.kind == "upsert"]  # others hold other rows than MySQL
    with binlog.connect(settings) as mysql, Progress(settings) as progress:
        present = {table.name: table for table in source.tables(mysql, settings)}
        if missing := [name for name in names if name not in present]:
            raise VerifyError("Tables are not in the source.", todo="Correct `tables`.", tables=missing)
        with mysql.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            for table in (present[name] for name in names):
                kinds = {column.name: _kind(column) for column in table.columns}
                began = time.monotonic()
                cursor.execute(_query(table, kinds))
                rows, *sums = cursor.fetchone() or ()
                checksums = dict(zip([WHOLE_ROW, *_compared(kinds)], (str(each or 0) for each in sums), strict=True))
                progress.write(VerifyRecord(table.name, kinds, int(rows), checksums, table.key, checked_at=time.time()))
                log.info("source checked table=%s rows=%s seconds=%.1f", table.name, f"{rows:,}", time.monotonic() - began)


def _kind(column: Column) -> str:
    if column.type == "bit":
        return "bit" if column.full_type == "bit(1)" else "bits"
    return _KINDS.get(column.type, column.type)


def _compared(kinds: dict[str, str]) -> list[str]:
    return [name for name, kind in kinds.items() if kind in _TEXT]


def _query(table: SourceTable, kinds: dict[str, str]) -> str:
    texts = {name: f"IFNULL(CONVERT({_TEXT[kinds[name]].format(quoted_column(name))} USING utf8mb4), '\\\\N')" for name in _compared(kinds)}
    whole = f"SHA2(CONCAT_WS(CHAR(31), {', '.join(texts.values())}), 256)"  # MySQL 9.7 has no MD5
    sums = [f"SUM(CAST(CONV(LEFT({whole}, 15), 16, 10) AS UNSIGNED))", *(f"SUM(CRC32({text}))" for text in texts.values())]
    return f"SELECT COUNT(*), {', '.join(sums)} FROM {quoted(table.name)}"  # noqa: S608 — names quoted
