"""Which relays bring the tables: small ones together, large ones by key range."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakerelay.capture import binlog, ranges, source, topics
from lakerelay.capture.progress import KeyRange, Progress, RelayRecord, State, TableRecord
from lakerelay.capture.source import SourceTable
from lakerelay.config import Settings
from lakerelay.errors import SettingsError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """What one relay reads; `rows` is an estimate."""

    tables: tuple[str, ...]
    range: KeyRange | None
    rows: int
    exact: bool = False


def plan_relays(settings: Settings, tables: list[str], run: str, replace: bool) -> list[str]:
    """Ids of the relays that are left to scan for these tables (none named: all of the settings), biggest first.

    An unfinished load is continued, whoever began it. A loaded table is left out, unless `replace`; then it gets a new
    load, except when that load was this very run's. Raises SettingsError for a table that is not in the settings or the source.
    """
    with binlog.connect(settings) as mysql, Progress(settings) as progress:
        wanted = _wanted(source.tables(mysql, settings), tables)
        state = progress.read()
        new = [table for table in wanted if _needs_load(state.tables.get(table.name), run, replace)]
        if new:
            relays = _relays(_load_id(state), divide(settings, mysql, new))
            # Relays first: a crash in between leaves relays that no table asks for, never a table whose relays are missing.
            progress.write(*relays)
            progress.write(*_tables(settings, new, relays, run))
            state = progress.read()
    planned = [state.tables[table.name] for table in wanted]
    left = _left(state, planned)
    for line in described(settings, planned, left):
        log.info(line)
    return [relay.id for relay in left]


def preview(settings: Settings, tables: list[str], replace: bool) -> list[str]:
    """What `plan_relays` would log now; nothing is recorded. Raises SettingsError as it does."""
    with binlog.connect(settings) as mysql, Progress(settings) as progress:
        wanted = _wanted(source.tables(mysql, settings), tables)
        state = progress.read()
        new = [table for table in wanted if _needs_load(state.tables.get(table.name), "", replace)]
        relays = _relays(_load_id(state), divide(settings, mysql, new))
    before = [state.tables[table.name] for table in wanted if table not in new]
    return described(settings, [*before, *(TableRecord(table.name, "", "", ()) for table in new)], [*_left(state, before), *relays])


def _left(state: State, tables: Iterable[TableRecord]) -> list[RelayRecord]:
    """Relays of these tables that are not scanned yet."""
    ids = {relay for table in tables if table.state == "planned" for relay in table.relays}
    return [state.relays[relay] for relay in sorted(ids) if state.relays[relay].state != "scanned"]


def divide(settings: Settings, mysql: binlog.MySQL, tables: Sequence[SourceTable]) -> list[Piece]:
    """The tables as pieces of settings.relay.rows rows or so, biggest first; one without any key is a piece of its own."""
    keyed = [table for table in tables if table.key or _declared_key(settings, table.name)]
    keyless = [Piece((table.name,), None, table.rows, exact=True) for table in tables if table not in keyed]
    large = [table for table in keyed if table.rows > settings.relay.rows and ranges.can_split(table)]
    cut = [Piece((table.name,), part, rows) for table in large for part, rows in _cut(settings, mysql, table)]
    small = [table for table in keyed if table not in large]
    return sorted([*keyless, *cut, *group(small, settings.relay.rows, settings.relay.lanes)], key=lambda piece: piece.rows, reverse=True)


def _declared_key(settings: Settings, table: str) -> tuple[str, ...]:
    entry = settings.table(table)
    return entry.key if entry else ()


def group(tables: Iterable[SourceTable], rows: int, lanes: int) -> list[Piece]:
    """Whole tables, put together up to `rows` rows, and so that every lane gets something to do that is worth a relay's start."""
    by_size = sorted(tables, key=lambda table: table.rows, reverse=True)
    limit = max(rows // 4, min(rows, sum(table.rows for table in by_size) // lanes))
    groups: list[list[SourceTable]] = []
    for table in by_size:
        fitting = next((each for each in groups if table.rows + sum(other.rows for other in each) <= limit), None)
        if fitting is None:
            groups.append([table])
        else:
            fitting.append(table)
    return [Piece(tuple(table.name for table in each), None, sum(table.rows for table in each)) for each in groups]


def described(settings: Settings, tables: list[TableRecord], relays: list[RelayRecord]) -> list[str]:
    """The plan as a table, a line each, 100 columns; it says why a large table is one relay."""
    done = [table.table for table in tables if table.state == "loaded"]
    lines = [f"plan tables={len(tables)} loaded_before={len(done)} relays_to_scan={len(relays)} rows~={sum(relay.estimate for relay in relays)}"]
    if relays:
        lines.append(f"{'relay':<20} {'~rows':>12}  {'state':<9} tables")
    lines += [f"{relay.id:<20} {relay.estimate:>12,}  {relay.state:<9} {_what(relay, settings.relay.rows)}" for relay in relays]
    return lines


def _what(relay: RelayRecord, rows: int) -> str:
    why = ""
    if relay.exact:
        why = " (no key: one relay)"
    elif relay.range is None and len(relay.tables) == 1 and relay.estimate > 2 * rows:
        why = " (key cannot be split: one relay)"
    text, room = ", ".join(relay.tables) + (f", {relay.range}" if relay.range else ""), 54 - len(why)
    return (text if len(text) <= room else f"{text[: room - 1]}…") + why


def _cut(settings: Settings, mysql: binlog.MySQL, table: SourceTable) -> list[tuple[KeyRange, int]]:
    parts = -(-table.rows // settings.relay.rows)
    return ranges.split(mysql, table, -(-table.rows // parts))


def _wanted(found: list[SourceTable], names: list[str]) -> list[SourceTable]:
    if missing := sorted(set(names) - {table.name for table in found}):
        raise SettingsError(
            "Tables are not in the settings, or the source does not show them to this user.",
            todo="Name tables of pipeline.toml, or add these and grant SELECT on them.",
            tables=", ".join(missing),
        )
    return [table for table in found if not names or table.name in names]


def _needs_load(record: TableRecord | None, run: str, replace: bool) -> bool:
    return record is None or (record.state != "planned" and replace and record.requested_by != run)


def _load_id(state: State) -> str:
    """The time; a second later where that is taken."""
    moment, taken = datetime.now(UTC), {relay.load for relay in state.relays.values()}
    while (load := f"{moment:%Y%m%dt%H%M%S}") in taken:
        moment += timedelta(seconds=1)
    return load


def _relays(load: str, pieces: list[Piece]) -> list[RelayRecord]:
    digits = max(2, len(str(len(pieces))))
    return [
        RelayRecord(f"{load}_{number:0{digits}}", load, piece.tables, piece.range, piece.exact, planned_at=time.time(), estimate=piece.rows)
        for number, piece in enumerate(pieces, start=1)
    ]


def _tables(settings: Settings, tables: list[SourceTable], relays: list[RelayRecord], run: str) -> list[TableRecord]:
    captured = {table.name: topics.data(topics.capture_prefix(settings), table.name) for table in tables}
    topics.create(settings, dict.fromkeys(captured.values(), topics.SEVEN_DAYS))
    ends = topics.end_offsets(settings, captured.values())
    relays_of = {table.name: tuple(relay.id for relay in relays if table.name in relay.tables) for table in tables}
    return [TableRecord(table.name, relays[0].load, run, relays_of[table.name], offset=ends[captured[table.name]], planned_at=time.time()) for table in tables]
