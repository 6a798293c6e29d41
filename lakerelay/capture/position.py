"""Fixing the position: from here on every change is in Kafka, so that no full load can miss one."""

import logging
import time
from dataclasses import replace

from lakerelay.capture import binlog, bodies, oversize, source, topics
from lakerelay.capture.binlog import MySQL, Position
from lakerelay.capture.connector import Connector
from lakerelay.capture.progress import PositionRecord, Progress, State
from lakerelay.config import Settings
from lakerelay.errors import ConnectError, SourceError

log = logging.getLogger(__name__)

_SECONDS = 300.0  # for Debezium to read the schemas of the whole server


def fix_position(settings: Settings, begin_anew: bool = False) -> Position:
    """Have the capture connector run over all tables of the settings; return the position since which it holds every change.

    Called again it changes nothing but the connector's list of tables. `begin_anew`: where changes are lost, for the binlog no longer has them, capture
    begins at the binlog's end; the stream stops the tables that miss them. Where another server has taken the source's place, a replica by GTIDs, capture
    goes on there, in a new epoch. Raises ConnectError with the task's trace, SourceError when changes are lost or that server has not all that was captured.
    """
    connector = Connector(settings, bodies.capture_name(settings))
    with binlog.connect(settings) as mysql:
        tables, uuid = source.tables(mysql, settings), binlog.server(mysql).uuid
    with Progress(settings) as progress:
        recorded = progress.read().position
        if recorded and recorded.server_uuid != uuid:
            recorded = _taken_over(settings, connector, recorded, uuid)
            progress.write(recorded)
        _create_topics(settings, [table.name for table in tables])
        _apply(settings, connector, bodies.capture(settings, tables, uuid), recorded)
        # Until capture has heard from the server that took over, its position is one of the other's.
        before, anew = recorded.position if recorded and recorded.epochs else None, recorded is None
        if recorded and connector.position() != before and _is_purged(settings, connector, begin_anew):
            connector.forget()
            anew = True
        try:
            _start(connector)
        except ConnectError as error:
            raise oversize.named(settings, error, [table.name for table in tables]) from error
        captured_up_to = _stored_position(connector, before)
        if recorded is None:
            recorded = PositionRecord(captured_up_to, uuid, time.time())
        elif anew:
            recorded = replace(recorded, position=captured_up_to, fixed_at=time.time())
        recorded = _without_remade(settings, recorded)
        if recorded != progress.read().position:
            progress.write(recorded)
    log.info(
        "position fixed position=%s gtids=%s captured_up_to=%s tables=%d", recorded.position, recorded.position.gtids or "off", captured_up_to, len(tables)
    )
    return recorded.position


def within_epoch(mysql: MySQL, state: State, found: Position) -> Position:
    """A position that was read from `mysql`, with its epoch. Raises SourceError when that is not the server that capture reads."""
    recorded, uuid = state.position, binlog.server(mysql).uuid
    if recorded and recorded.server_uuid != uuid:
        raise SourceError(
            "Another server has taken the source's place.",
            safe="No row is lost.",
            todo="Trigger full_load: its fix_position goes on with that server, if it has all that was captured.",
            server_uuid=uuid,
            captured=recorded.server_uuid,
        )
    return replace(found, epoch=len(state.epochs))


def _taken_over(settings: Settings, connector: Connector, recorded: PositionRecord, uuid: str) -> PositionRecord:
    """The position in a new epoch: capture, which is stopped by now, goes on with another server. Raises SourceError when it cannot."""
    prefix, stored = topics.capture_prefix(settings), None
    if connector.config() is not None:
        connector.stop()
        stored = connector.position()
    if stored is None or stored.gtids is None:
        why = "only GTIDs, which capture has not stored, could tell where to go on"
    else:
        with binlog.connect(settings) as mysql:
            why = binlog.lacks(mysql, stored.gtids)
    if stored is None or why:
        if stored is not None:
            connector.resume()  # where it was
        raise SourceError(
            f"The source is another server than the one the position was fixed on, and capture cannot go on there: {why}.",
            safe="The lake stands as it is.",
            todo="Point the settings at that server or at a replica with all its transactions, or begin a new pipeline with another name.",
            server_uuid=uuid,
            recorded=recorded.server_uuid,
        )
    first = topics.end_offsets(settings, topics.present(settings, prefix))
    log.warning("another server takes the source's place server_uuid=%s before=%s captured_up_to=%s", uuid, recorded.server_uuid, stored.gtids)
    ids = {topic: identity for topic, (identity, _) in topics.described(settings, first).items()}
    return replace(recorded, position=stored, server_uuid=uuid, epochs=(*recorded.epochs, first), topic_ids=ids)


def _without_remade(settings: Settings, recorded: PositionRecord) -> PositionRecord:
    """Without the offsets in topics that were deleted and made anew since: all records there are of the newest epoch."""
    there = topics.described(settings, recorded.topic_ids)
    kept = {topic: identity for topic, identity in recorded.topic_ids.items() if topic in there and there[topic][0] == identity}
    epochs = tuple({topic: offset for topic, offset in first.items() if topic in kept} for first in recorded.epochs)
    return replace(recorded, epochs=epochs, topic_ids=kept)


def _is_purged(settings: Settings, connector: Connector, allowed: bool) -> bool:
    """Whether the server no longer has what capture needs next. Raises SourceError unless that is `allowed`, and when the binlog is another one."""
    stored = connector.position()  # before the binlog's end is asked for, which is behind it then
    if stored is None:
        return False
    with binlog.connect(settings) as mysql:
        first, end = Position(binlog.first_file(mysql), 0), binlog.position(mysql)
    if end < stored:
        raise SourceError(
            "The binlog ends before the position up to which it was captured: it was reset, or the server restored from a backup.",
            safe="The lake stands as it is.",
            todo="Begin a new pipeline with another name, and load its tables: positions here would no longer be in order.",
            end=str(end),
            captured=str(stored),
        )
    if stored >= first:
        return False
    if not allowed:
        raise SourceError(
            "The server no longer has the binlog from where capture must go on: changes are lost.",
            safe="The lake stands as it is, behind the source.",
            todo="Trigger full_load with replace set for all tables: capture begins anew, and every table is loaded again.",
            needed=str(stored),
            first_file=first.file,
        )
    log.warning("capture begins anew needed=%s first_file=%s", stored, first.file)
    return True


def _create_topics(settings: Settings, tables: list[str]) -> None:
    """All of them before the first change, so that the stream can subscribe to a table that has had none yet."""
    prefix = topics.capture_prefix(settings)
    forever = dict.fromkeys([prefix, topics.notifications(prefix), topics.history(prefix)], topics.UNTIL_DELETED)
    passing = [topics.heartbeat(prefix), *(topics.data(prefix, table) for table in tables)]
    topics.create(settings, dict.fromkeys(passing, topics.SEVEN_DAYS) | forever)


def _apply(settings: Settings, connector: Connector, config: dict[str, str], recorded: PositionRecord | None) -> None:
    present = connector.config()
    if present == config:
        return
    if present is None and recorded is not None and connector.is_gone():
        # It existed once. Connect may have lost its offsets; started without them it would skip all changes since then.
        connector.create_stopped(config)
        connector.wait(connector="STOPPED", task="")
        if connector.position() is None:
            log.warning("position put back position=%s reason='Connect has no offset of the capture connector'", recorded.position)
            connector.put_position(topics.capture_prefix(settings), recorded.position)
        return
    connector.put(config)


def _start(connector: Connector) -> None:
    """Running, whatever it was: a stopped or paused one is resumed, a failed one restarted once."""
    connector.resume()
    try:
        connector.wait()
    except ConnectError as error:
        log.warning("connector restarted connector=%s reason=%s", connector.name, error.what)
        connector.restart()
        time.sleep(2.0)  # the state before the restart is shown for a moment
        connector.wait()


def _stored_position(connector: Connector, before: Position | None) -> Position:
    """The first that it stores which is not the one `before`."""
    deadline = time.monotonic() + _SECONDS
    while (stored := connector.position()) is None or stored == before:
        connector.check()
        if time.monotonic() > deadline:
            raise ConnectError("The capture connector stored no position.", todo="Read the Connect worker's log.", connector=connector.name, seconds=_SECONDS)
        time.sleep(0.5)
    return stored
