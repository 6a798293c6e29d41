"""How far a pipeline is, table by table: what the progress topic says, and Kafka Connect."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lakerelay.capture import bodies
from lakerelay.capture.connector import Connector
from lakerelay.capture.progress import RelayRecord, State, TableRecord
from lakerelay.config import Settings

_ALIVE = 90.0  # seconds within which a running stream says that it is there


@dataclass(frozen=True)
class TableStatus:
    """`phase`: missing (named in the settings, never loaded), waiting (planned, no relay of it has begun), scanning, loading, loaded (no stream runs),
    streaming, stopped (`why`).

    Of a scan `share` is between 0 and 1, by the estimate with which it was planned; `rows` are those in Kafka, then those of the load. Lag is of the stream.
    """

    table: str
    phase: str
    why: str = ""
    share: float | None = None
    rows: int = 0
    rows_per_second: float | None = None
    seconds_left: float | None = None
    lag_events: int | None = None
    lag_seconds: float | None = None
    commit: str = ""
    verdict: str = ""
    quarantined: int = 0


@dataclass(frozen=True)
class ConnectorStatus:
    name: str
    connector: str  # as Connect names states; "" where Connect knows none of this name
    task: str


@dataclass(frozen=True)
class PipelineStatus:
    """`batch`: the stream's newest, None when none runs; `at`: Unix seconds."""

    pipeline: str
    at: float
    batch: int | None
    tables: tuple[TableStatus, ...]
    connectors: tuple[ConnectorStatus, ...] = ()


def of(settings: Settings, state: State, now: float | None = None) -> PipelineStatus:
    """Out of the progress topic alone."""
    now = time.time() if now is None else now
    stream = state.stream if state.stream and now - state.stream.written_at < _ALIVE else None
    named = {entry.name for entry in settings.tables if entry.name}
    tables = [_table(state, name, stream is not None, now) for name in sorted(named | state.tables.keys())]
    return PipelineStatus(settings.name, now, stream.batch if stream else None, tuple(tables))


def connectors(settings: Settings, state: State) -> tuple[ConnectorStatus, ...]:
    """The capture connector, and those of the relays that are being scanned. Raises ConnectError."""
    relays = [relay for relay in state.relays.values() if relay.state == "scanning"]
    names = [bodies.capture_name(settings), *(bodies.relay_name(settings, relay.id, relay.attempt) for relay in relays)]
    found = [(name, Connector(settings, name, patience=5.0).status()) for name in names]
    return tuple(ConnectorStatus(name, status.connector if status else "", status.task if status else "") for name, status in found)


def _table(state: State, name: str, streams: bool, now: float) -> TableStatus:
    if (record := state.tables.get(name)) is None:
        return TableStatus(name, "missing")
    verdict = state.verified[name].verdict if name in state.verified else ""
    if record.state == "stopped":
        return TableStatus(name, "stopped", record.error, rows=record.rows, verdict=verdict, quarantined=record.quarantined)
    if record.state == "planned":
        return _loading(record, [state.relays[relay] for relay in record.relays if relay in state.relays], now)
    at = state.stream.tables.get(name) if state.stream and streams else None
    if at is None:
        return TableStatus(name, "loaded", rows=record.rows, commit=record.commit, verdict=verdict, quarantined=record.quarantined)
    lag = max(0.0, now - at["captured_at"]) if at["lag_events"] and at.get("captured_at") else 0.0
    return TableStatus(
        name,
        "streaming",
        rows=record.rows,
        lag_events=at["lag_events"],
        lag_seconds=lag,
        commit=at["commit"],
        verdict=verdict,
        quarantined=record.quarantined,
    )


def _loading(record: TableRecord, relays: Sequence[RelayRecord], now: float) -> TableStatus:
    """A relay of several tables counts as a whole: Kafka alone says how far it is."""
    if relays and all(relay.state == "scanned" for relay in relays):
        return TableStatus(record.table, "loading", rows=sum(relay.rows.get(record.table, 0) for relay in relays))
    begun = [relay for relay in relays if relay.state in ("scanning", "failed")]
    why = next((relay.error for relay in relays if relay.state == "failed"), "")
    scanned = sum(sum(relay.rows.values()) for relay in relays if relay.state == "scanned")
    if not begun and not scanned:
        return TableStatus(record.table, "waiting")
    done = scanned + sum(relay.read for relay in begun)
    expected = sum(sum(relay.rows.values()) if relay.state == "scanned" else max(relay.estimate, relay.read) for relay in relays)
    speed = sum(relay.read / max(now - relay.started_at, 1.0) for relay in begun if relay.state == "scanning")
    left = (expected - done) / speed if speed else None
    return TableStatus(record.table, "scanning", why, done / expected if expected else None, done, speed or None, left)
