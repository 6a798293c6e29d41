"""What Kafka Connect is given: the constant options of connect/*.json, and to them names, addresses and tables."""

import json
import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from lakerelay.capture import ranges, topics
from lakerelay.capture.binlog import quoted
from lakerelay.capture.progress import KeyRange, RelayRecord
from lakerelay.capture.source import SourceTable
from lakerelay.config import Settings

# Makes NULL of a zero date. Not for columns that may be NULL: there Debezium does so itself, and 3.6.1's converter makes NULL of the first date that comes.
_ZERO_DATES = "io.debezium.connector.binlog.converters.ZeroDateFallbackConverter"
_COMMA = re.compile(r"\\?,")  # would end a regular expression
_QUEUE_BYTES, _QUEUE_RECORDS = 128 << 20, 32_768
_FOLDER = Path(__file__).parents[2] / "connect"


def capture_name(settings: Settings) -> str:
    return f"{settings.name}-capture"


def relay_name(settings: Settings, relay: str, attempt: int) -> str:
    return f"{settings.name}-relay-{relay}a{attempt}"


def capture(settings: Settings, tables: Sequence[SourceTable], server_uuid: str) -> dict[str, str]:
    """Options of the connector that streams the changes of all tables that the settings name, those to come among them; `tables` as they are now.

    It connects to no other server than this one: an address may come to lead elsewhere, where the binlog has other positions.
    """
    patterns = [_pattern(entry.name) if entry.name is not None else _COMMA.sub(r"\\,", entry.pattern or "") for entry in settings.tables]
    options = _options(settings, "capture", capture_name(settings), topics.capture_prefix(settings), patterns) | _queue(tables)
    # An error, "Subquery returns more than 1 row", on another server.
    same = {"database.initial.statements": f"SELECT IF(@@server_uuid = '{server_uuid}', 1, (SELECT 1 UNION SELECT 2))"} if server_uuid else {}
    return options | same | _zero_dates(tables, ("date", "datetime", "timestamp"))


def relay(settings: Settings, relay: RelayRecord, tables: Sequence[SourceTable]) -> dict[str, str]:
    """Options of the connector that scans this attempt of the relay; `tables` as they are now."""
    options = _options(settings, "relay", relay_name(settings, relay.id, relay.attempt), relay.schema_topic, map(_pattern, sorted(relay.tables)))
    options |= _queue(tables) | _zero_dates(tables, ("timestamp",))  # other zero dates are read as dates that no application has
    selects = {table.name: select(table, relay.range) for table in tables if relay.range or table.star_is_not_exact}
    if not selects:
        return options
    overrides = "snapshot.select.statement.overrides"
    return options | {overrides: ",".join(selects)} | {f"{overrides}.{table}": statement for table, statement in selects.items()}


def select(table: SourceTable, part: KeyRange | None) -> str:
    """The rows of one range of the primary key's first column, or all."""
    statement = f"SELECT {table.select()} FROM {quoted(table.name)}"  # noqa: S608 — names quoted
    if part is None:
        return statement
    return f"{statement} FORCE INDEX (PRIMARY) WHERE {ranges.condition(part)}"


def _options(settings: Settings, body: str, name: str, prefix: str, tables: Iterable[str]) -> dict[str, str]:
    constant: dict[str, str] = json.loads((_FOLDER / f"{body}.json").read_text())["config"]
    return constant | {
        "name": name,
        "topic.prefix": prefix,
        "database.hostname": settings.source.host,
        "database.port": str(settings.source.port),
        "database.user": settings.source.user,
        "database.password": settings.connect.source_password,
        # A replica's id: two connectors with one id throw each other off the server.
        "database.server.id": str(10_000 + zlib.crc32(name.encode()) % 4_000_000_000),
        "table.include.list": ",".join(tables),
        "schema.history.internal.kafka.bootstrap.servers": settings.kafka.bootstrap_servers,
        "schema.history.internal.kafka.topic": topics.history(prefix),
        "notification.sink.topic.name": topics.notifications(prefix),
        "topic.creation.default.replication.factor": str(settings.kafka.replication_factor),
    }


def _zero_dates(tables: Iterable[SourceTable], types: Collection[str]) -> dict[str, str]:
    dates = [_pattern(f"{table.name}.{column.name}") for table in tables for column in table.columns if column.may_be_zero_date and column.type in types]
    return {"converters": "zero_dates", "zero_dates.type": _ZERO_DATES, "zero_dates.selector": ",".join(dates)} if dates else {}


def _queue(tables: Iterable[SourceTable]) -> dict[str, str]:
    """Fewer records in Debezium's queue than connect/*.json says, where rows are so large that they would not fit into memory."""
    widest = max((table.bytes // max(table.rows, 1) for table in tables if table.bytes > _QUEUE_BYTES), default=1)
    room = max(_QUEUE_BYTES // max(widest, 1), 64)
    room = 1 << room.bit_length() - 1  # the same again when an estimate changes a little: else the connector would be started anew
    return {"max.queue.size": str(room), "max.batch.size": str(room // 4)} if room < _QUEUE_RECORDS else {}


def _pattern(table: str) -> str:
    """The regular expression that matches this name alone; a comma would end it, so it is written as its code."""
    return re.escape(table).replace(",", r"\x2c")
