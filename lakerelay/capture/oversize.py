"""Which row is too large for Kafka: Connect's own error names neither table nor key."""

from collections.abc import Iterable

from lakerelay.capture import binlog, source, topics
from lakerelay.capture.binlog import quoted, quoted_column
from lakerelay.capture.source import SourceTable
from lakerelay.config import Settings
from lakerelay.errors import ConnectError, LakerelayError

_WORD = "RecordTooLargeException"
_LONG = ("mediumblob", "longblob", "mediumtext", "longtext", "json", "geometry")


def named(settings: Settings, error: LakerelayError, tables: Iterable[str]) -> LakerelayError:
    """The error as it is; one of a record that is too large with the largest row of each of `tables` that may have such."""
    if not isinstance(error, ConnectError) or _WORD not in str(error):
        return error
    with binlog.connect(settings) as mysql:
        wanted = set(tables)
        largest = [_largest(mysql, table) for table in source.tables(mysql, settings) if table.name in wanted and _long(table)]
    return ConnectError(
        f"A row is too large for Kafka, whose records may have {topics.LARGEST >> 20} MiB here (binary values take 4/3 of their size, an update has two rows).",
        safe="No row is lost; the connector stands before it.",
        todo="Shorten the row, or raise max.request.size and max.message.bytes in connect/*.json and on the topics; then run the task again.",
        largest=[each for each in largest if each],
    )


def _long(table: SourceTable) -> list[str]:
    return [column.name for column in table.columns if column.type in _LONG]


def _largest(mysql: binlog.MySQL, table: SourceTable) -> str:
    length = " + ".join(f"IFNULL(LENGTH({quoted_column(name)}), 0)" for name in _long(table))
    key = ", ".join(quoted_column(name) for name in table.key) or "'no key'"
    with mysql.cursor() as cursor:
        cursor.execute(f"SELECT {length} AS bytes_, {key} FROM {quoted(table.name)} ORDER BY 1 DESC LIMIT 1")  # noqa: S608 — names quoted
        row = cursor.fetchone()
    return f"{table.name} key={', '.join(map(str, row[1:]))} bytes={row[0]:,}" if row else ""
