"""Fixing the position: from here on every change is in Kafka, so that no full load can miss one."""

import logging
import time

from lakerelay.capture import binlog, bodies, oversize, source, topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.connector import Connector
from lakerelay.capture.progress import PositionRecord, Progress
from lakerelay.config import Settings
from lakerelay.errors import ConnectError, SourceError

log = logging.getLogger(__name__)

_SECONDS = 300.0  # for Debezium to read the schemas of the whole server


def fix_position(settings: Settings) -> Position:
    """Have the capture connector run over all tables of the settings; return the position since which it holds every change.

    Called again it changes nothing but the connector's list of tables. Raises ConnectError with the task's trace, SourceError when
    the pipeline was begun on another server.
    """
    with binlog.connect(settings) as mysql:
        tables = source.tables(mysql, settings)
        uuid = binlog.server(mysql).uuid
    with Progress(settings) as progress:
        recorded = progress.read().position
        if recorded and recorded.server_uuid != uuid:
            raise SourceError(
                "The source is another server than the one the position was fixed on.",
                todo="Point the settings at that server, or begin a new pipeline with another name.",
                server_uuid=uuid,
                recorded=recorded.server_uuid,
            )
        _create_topics(settings, [table.name for table in tables])
        connector = Connector(settings, bodies.capture_name(settings))
        _apply(settings, connector, bodies.capture(settings, tables), recorded)
        try:
            _start(connector)
        except ConnectError as error:
            raise oversize.named(settings, error, [table.name for table in tables]) from error
        stored = _stored_position(connector)
        if recorded is None:
            recorded = PositionRecord(stored, uuid, time.time())
            progress.write(recorded)
    log.info("position fixed position=%s gtids=%s captured_up_to=%s tables=%d", recorded.position, recorded.position.gtids or "off", stored, len(tables))
    return recorded.position


def _create_topics(settings: Settings, tables: list[str]) -> None:
    """All of them before the first change, so that the stream can subscribe to a table that has had none yet."""
    prefix = topics.capture_prefix(settings)
    forever = dict.fromkeys([prefix, topics.notifications(prefix), topics.history(prefix)], topics.UNTIL_DELETED)
    topics.create(settings, dict.fromkeys([topics.data(prefix, table) for table in tables], topics.SEVEN_DAYS) | forever)


def _apply(settings: Settings, connector: Connector, config: dict[str, str], recorded: PositionRecord | None) -> None:
    present = connector.config()
    if present == config:
        return
    if present is None and recorded is not None:
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


def _stored_position(connector: Connector) -> Position:
    deadline = time.monotonic() + _SECONDS
    while (stored := connector.position()) is None:
        connector.check()
        if time.monotonic() > deadline:
            raise ConnectError("The capture connector stored no position.", todo="Read the Connect worker's log.", connector=connector.name, seconds=_SECONDS)
        time.sleep(0.5)
    return stored
