"""One relay, from planned to scanned: a connector run, followed by what Debezium says about it."""

import logging
import time
from dataclasses import replace

from lakerelay.capture import binlog, bodies, oversize, position, source, topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.connector import Connector
from lakerelay.capture.notices import Notices, Scan
from lakerelay.capture.progress import Progress, RelayRecord, State
from lakerelay.config import Settings
from lakerelay.errors import LakerelayError, RelayError

log = logging.getLogger(__name__)

_ATTEMPTS = 3  # in one call
_POLL = 0.5  # seconds between two looks at the notifications
_LINE = 10.0  # seconds between two progress lines
_NO_TASK = 180.0  # seconds that Connect may take to start a task
_STALLED = 600.0  # seconds without any sign of progress, after which a task that claims to run is given up
_LOCKED = 60.0  # seconds that a table without a key may be locked until Debezium reads its first row
_TODO = "Run the task again: it starts the relay anew, other relays stay as they are."


def scan_relay(settings: Settings, relay_id: str) -> RelayRecord:
    """Scan one relay, or follow the attempt that is under way, until all its rows are in Kafka.

    An attempt that was begun twice by Connect, or whose connector is gone, is given up and its topics are deleted: the next one writes
    to fresh topics, so a reader of a scanned relay sees every row once. Nothing is locked while Debezium reads: its rows show each key as it was at
    some moment between two positions, `low` and `high`, and the captured changes in between say how it is at `high`.
    Raises ConnectError with the trace of a failed task, RelayError, SourceError.
    """
    with Progress(settings) as progress:
        state = progress.read()
        record = state.relays.get(relay_id)
        if record is None:
            raise RelayError("There is no such relay.", todo="Run plan_relays again.", relay=relay_id)
        for _ in range(_ATTEMPTS):
            if record.state == "scanned":
                return _finish(settings, record, _label(state, record))
            record = _attempt(settings, progress, record, _label(state, record))
    raise RelayError("A relay was interrupted too often.", todo=_TODO, relay=relay_id, attempts=record.attempt, why=record.error)


class _LostError(RelayError):
    """This attempt cannot become whole; the next one can."""


def _attempt(settings: Settings, progress: Progress, record: RelayRecord, label: str) -> RelayRecord:
    """One attempt: the record as scanned, or as failed when another attempt can help."""
    try:
        if fresh := not _under_way(settings, record):
            _clear(settings, record)
            record = _next(settings, record, progress.read())
            # Before the connector is made: one that nobody remembers would never be removed.
            progress.write(record)
        tables = ",".join(record.tables)
        log.info("relay scanning relay=%s id=%s attempt=%d tables=%s range=%s", label, record.id, record.attempt, tables, record.range or "whole")
        if fresh and record.exact:
            record = _start_exactly(settings, record, progress.read())
            progress.write(record)
        elif fresh:
            _start(settings, record)
        record = _follow(settings, progress, record, label)
    except LakerelayError as error:
        told = oversize.named(settings, error, record.tables)
        record = replace(record, state="failed", error=str(told))
        progress.write(record)
        if not isinstance(error, _LostError):
            raise told from error
        log.warning("relay interrupted relay=%s reason=%s", label, error.what)
        return record
    # The rows are in Kafka: when the capture is in trouble they wait for it, and are not read again.
    record = replace(record, state="scanned", high=_high(settings, record, progress.read(), label), scanned_at=time.time())
    progress.write(record)
    return record


def _under_way(settings: Settings, record: RelayRecord) -> bool:
    """Whether the attempt of the record has a connector that works or has done its work."""
    if record.state != "scanning" or record.low is None:
        return False
    status = _connector(settings, record).status()
    return status is not None and not status.failed


def _clear(settings: Settings, record: RelayRecord) -> None:
    """Remove what the last attempt left."""
    if record.attempt:
        _connector(settings, record).delete()
        topics.delete(settings, topics.present(settings, record.schema_topic))


def _next(settings: Settings, record: RelayRecord, state: State) -> RelayRecord:
    prefix = topics.relay_prefix(settings, record.id, record.attempt + 1)
    return replace(
        record,
        state="scanning",
        attempt=record.attempt + 1,
        topics={table: topics.data(prefix, table) for table in record.tables},
        schema_topic=prefix,
        rows={},
        read=0,
        low=None if record.exact else _low(settings, state, record.tables),
        high=None,
        error="",
        started_at=time.time(),
    )


def _start(settings: Settings, record: RelayRecord) -> None:
    prefix = record.schema_topic
    names = [*record.topics.values(), prefix, topics.notifications(prefix), topics.history(prefix)]
    topics.create(settings, dict.fromkeys(names, topics.UNTIL_DELETED))
    with binlog.connect(settings) as mysql:
        tables = [table for table in source.tables(mysql, settings) if table.name in record.tables]
    _connector(settings, record).put(bodies.relay(settings, record, tables))


def _start_exactly(settings: Settings, record: RelayRecord, state: State) -> RelayRecord:
    """Start it while its tables are locked, until Debezium's transaction has its view of them: their state at one position.

    In REPEATABLE READ a transaction's view is that of its first read, so it stands as soon as a row has come, or the scan is over.
    """
    with binlog.connect(settings) as mysql, binlog.locked(mysql, record.tables) as end:
        low = position.within_epoch(mysql, state, end)
        _start(settings, record)
        connector, began = _connector(settings, record), time.monotonic()
        with Notices(settings, record.schema_topic) as notices:
            while not (notices.read().rows or any(topics.end_offsets(settings, record.topics.values()).values())):
                connector.check()
                if time.monotonic() - began > _LOCKED:
                    raise RelayError("Debezium read no row while its table was locked for it.", todo=_TODO, tables=record.tables, seconds=_LOCKED)
                time.sleep(0.1)
    log.info("relay has its view relay=%s tables=%s locked_seconds=%.1f low=%s", record.id, ",".join(record.tables), time.monotonic() - began, low)
    return replace(record, low=low)


def _low(settings: Settings, state: State, tables: tuple[str, ...]) -> Position:
    with binlog.connect(settings) as mysql:
        end = binlog.settled_position(mysql, tables) if settings.relay.locking == "brief" else binlog.position(mysql)
        return position.within_epoch(mysql, state, end)


def _high(settings: Settings, record: RelayRecord, state: State, label: str) -> Position:
    """The end of the binlog now (an exact relay's only position), once the capture connector has brought all changes up to there to Kafka."""
    with binlog.connect(settings) as mysql:
        high = position.within_epoch(mysql, state, record.low if record.exact and record.low else binlog.position(mysql))
    capture = Connector(settings, bodies.capture_name(settings))
    told = moved = time.monotonic()
    before = None
    while (stands := capture.position()) is None or replace(stands, epoch=high.epoch) < high:
        if capture.check() is None and capture.is_gone():
            raise RelayError("There is no capture connector.", safe="The relay's rows are kept.", todo="Trigger full_load again.", connector=capture.name)
        if stands != before:
            moved, before = time.monotonic(), stands
        elif time.monotonic() - moved > _STALLED:
            raise RelayError(
                "The capture connector runs, but stands still.",
                safe="The relay's rows are kept.",
                todo="Restart the connector in Kafka Connect, then run the task again.",
                connector=capture.name,
                captured=str(stands),
                wanted=str(high),
                seconds=_STALLED,
            )
        if time.monotonic() - told > _LINE:
            told = time.monotonic()
            log.info("relay waits for the capture of changes relay=%s captured=%s wanted=%s", label, stands, high)
        time.sleep(_POLL)
    return high


def _follow(settings: Settings, progress: Progress, record: RelayRecord, label: str) -> RelayRecord:
    """Until the scan is complete and its connector stopped; the record with its rows."""
    connector = _connector(settings, record)
    with Notices(settings, record.schema_topic) as notices:
        told = worked = moved = time.monotonic()
        seen = (0, 0)
        while not (scan := _checked(notices.read(), record)).completed:
            status = connector.check()
            # No status alone may mean that no worker has reported yet.
            if status is None and connector.is_gone():
                raise _LostError("The relay's connector is gone.", todo=_TODO, connector=connector.name)
            if status and status.task:
                worked = time.monotonic()
            elif time.monotonic() - worked > _NO_TASK:
                raise _LostError("Connect gives the relay's connector no task.", todo=_TODO, connector=connector.name, seconds=_NO_TASK)
            if time.monotonic() - told > _LINE:
                told = time.monotonic()
                record = replace(record, read=sum(topics.end_offsets(settings, record.topics.values()).values()))
                if seen != (seen := (record.read, len(scan.rows))):
                    moved = told
                elif told - moved > _STALLED:
                    raise _LostError("Debezium's task runs, but reads no row.", todo=_TODO, connector=connector.name, seconds=_STALLED)
                progress.write(record)  # whoever waits for the relay sees that it moves
                seconds = time.time() - record.started_at
                log.info(
                    "relay scanning relay=%s rows~=%d of~=%d seconds=%.0f rows/s=%.0f", label, record.read, record.estimate, seconds, record.read / seconds
                )
            time.sleep(_POLL)
        # Stopped first: a task that Connect restarts now would write rows behind the last look at the notifications.
        connector.stop()
        scan = _checked(notices.read(), record)
    if missing := sorted(set(record.tables) - set(scan.rows)):
        raise RelayError("Debezium finished without reading these tables.", todo="See that they exist, then run the task again.", tables=", ".join(missing))
    return replace(record, rows=scan.rows)


def _checked(scan: Scan, record: RelayRecord) -> Scan:
    if scan.failed:
        raise RelayError("Debezium could not read these tables.", todo=_TODO, relay=record.id, tables=scan.failed)
    if scan.started > 1:
        raise _LostError("Connect started the relay's scan again.", todo=_TODO, relay=record.id)
    return scan


def _finish(settings: Settings, record: RelayRecord, label: str) -> RelayRecord:
    """Remove the connector; the topics stay until the rows are in the lake."""
    _connector(settings, record).delete()
    seconds = max(record.scanned_at - record.started_at, 0.001)
    for table, rows in record.rows.items():
        log.info("relay scanned relay=%s table=%s rows=%d", label, table, rows)
    total = sum(record.rows.values())
    log.info("relay done relay=%s rows=%d seconds=%.1f rows/s=%.0f low=%s high=%s", label, total, seconds, total / seconds, record.low, record.high)
    return record


def _label(state: State, record: RelayRecord) -> str:
    """Its number in its load, such as 2/7."""
    number = int(record.id.rpartition("_")[2])
    return f"{number}/{sum(relay.load == record.load for relay in state.relays.values())}"


def _connector(settings: Settings, record: RelayRecord) -> Connector:
    return Connector(settings, bodies.relay_name(settings, record.id, record.attempt))
