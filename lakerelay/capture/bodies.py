"""What Kafka Connect is given: the constant options of connect/*.json, and to them names, addresses and tables."""

import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from lakerelay.capture import topics
from lakerelay.capture.binlog import quoted, quoted_column
from lakerelay.capture.progress import KeyRange, RelayRecord
from lakerelay.config import Settings

_FOLDER = Path(__file__).parents[2] / "connect"


def capture_name(settings: Settings) -> str:
    return f"{settings.name}-capture"


def relay_name(settings: Settings, relay: str, attempt: int) -> str:
    return f"{settings.name}-relay-{relay}a{attempt}"


def capture(settings: Settings, tables: Iterable[str]) -> dict[str, str]:
    """Options of the connector that streams the changes of `tables` (database.table)."""
    return _options(settings, "capture", capture_name(settings), topics.capture_prefix(settings), tables)


def relay(settings: Settings, relay: RelayRecord) -> dict[str, str]:
    """Options of the connector that scans this attempt of the relay."""
    options = _options(settings, "relay", relay_name(settings, relay.id, relay.attempt), relay.schema_topic, relay.tables)
    if relay.range is None:
        return options
    (table,) = relay.tables
    return options | {"snapshot.select.statement.overrides": table, f"snapshot.select.statement.overrides.{table}": select(table, relay.range)}


def select(table: str, part: KeyRange) -> str:
    """The rows of one range of the primary key's first column."""
    column = quoted_column(part.column)
    conditions = [f"{column} >= {part.lower}"] if part.lower is not None else []
    conditions += [f"{column} < {part.upper}"] if part.upper is not None else []
    return f"SELECT * FROM {quoted(table)} FORCE INDEX (PRIMARY) WHERE {' AND '.join(conditions) or 'TRUE'}"  # noqa: S608 — names quoted, bounds are literals that the planner made


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
        "table.include.list": ",".join(_pattern(table) for table in sorted(tables)),
        "schema.history.internal.kafka.bootstrap.servers": settings.kafka.bootstrap_servers,
        "schema.history.internal.kafka.topic": topics.history(prefix),
        "notification.sink.topic.name": topics.notifications(prefix),
        "topic.creation.default.replication.factor": str(settings.kafka.replication_factor),
    }


def _pattern(table: str) -> str:
    """The regular expression that matches this name alone; a comma would end it, so it is written as its code."""
    return re.escape(table).replace(",", r"\x2c")
