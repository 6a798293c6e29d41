"""The position: fixed once, and no change after it is missed."""

import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from lakerelay.capture import bodies, topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.connector import Connector
from lakerelay.capture.position import fix_position
from lakerelay.capture.progress import PositionRecord, Progress
from lakerelay.config import Settings
from lakerelay.errors import SourceError
from tests.capture.conftest import Fill, Source, events


def _changes(settings: Settings, table: str, count: int) -> list[tuple[str, Any]]:
    """(op, id) of the table's changes, once there are `count`."""
    deadline = time.monotonic() + 60
    while len(found := events(settings, topics.data(settings.name, table))) < count and time.monotonic() < deadline:
        time.sleep(0.3)
    return [(event["op"], (event["after"] or event["before"] or {}).get("id")) for event in found]


def _add(settings: Settings, source: Source, *tables: str) -> Settings:
    return settings.model_copy(update={"tables": source.settings(*({"name": f"{source.name}.{table}"} for table in tables)).tables})


def test_every_change_after_the_position_is_captured(source: Source, fill: Fill) -> None:
    fill("t", 5)
    settings = source.settings()
    position = fix_position(settings)
    source.run("INSERT INTO t VALUES (6, 'new')", "UPDATE t SET v = 'changed' WHERE id = 1", "DELETE FROM t WHERE id = 2", "TRUNCATE t")

    table = f"{source.name}.t"
    assert topics.data(settings.name, table) in topics.present(settings, settings.name), "before any change"
    assert _changes(settings, table, 3)[:3] == [("c", 6), ("u", 1), ("d", 2)]
    assert all(event["source"]["pos"] > position.pos for event in events(settings, topics.data(settings.name, table)) if event["op"] != "t")
    with Progress(settings) as progress:
        record = progress.read().position
    assert record
    assert record.position == position


def test_fixed_again_it_is_the_same_position(source: Source, fill: Fill) -> None:
    fill("t", 5)
    settings = source.settings()
    first = fix_position(settings)
    source.run("INSERT INTO t VALUES (6, 'new')")
    Connector(settings, bodies.capture_name(settings)).stop()
    source.run("INSERT INTO t VALUES (7, 'while it was stopped')")

    assert fix_position(settings) == first
    assert _changes(settings, f"{source.name}.t", 2) == [("c", 6), ("c", 7)]


def test_a_table_added_to_the_settings_is_captured_from_then_on(source: Source, fill: Fill) -> None:
    """The table is older than the position, so its columns have to be known without a new look at the source."""
    fill("a", 1)
    fill("b", 1)
    settings = source.settings({"name": f"{source.name}.a"})
    first = fix_position(settings)
    both = _add(settings, source, "a", "b")
    assert fix_position(both) == first
    source.run("INSERT INTO b VALUES (2, 'two')", "INSERT INTO a VALUES (2, 'two')")

    assert _changes(both, f"{source.name}.b", 1) == [("c", 2)]
    assert _changes(both, f"{source.name}.a", 1) == [("c", 2)]


@pytest.mark.fault("F-14c", "streaming", "connector and offsets are gone", "the position is put back from the progress topic")
def test_offsets_that_connect_lost_are_put_back(source: Source, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
    fill("t", 1)
    settings = source.settings()
    first = fix_position(settings)
    Connector(settings, bodies.capture_name(settings)).delete()
    source.run("INSERT INTO t VALUES (2, 'while there was no connector')")

    assert fix_position(settings) == first
    assert _changes(settings, f"{source.name}.t", 1) == [("c", 2)]
    assert "position put back" in caplog.text


@pytest.mark.fault("F-25b", "streaming", "the address leads to another server, which has not what was captured", "refused, with the reason")
def test_another_server_is_refused(source: Source, fill: Fill) -> None:
    """tests/faults/test_failover.py has one that is not."""
    fill("t", 1)
    settings = source.settings()
    position, other = fix_position(settings), "00000000-0000-0000-0000-000000000000"
    connector = Connector(settings, bodies.capture_name(settings))
    connector.stop()
    connector.put_position(topics.capture_prefix(settings), replace(position, gtids=f"{other}:1-9"))
    with Progress(settings) as progress:
        progress.write(PositionRecord(position, other, time.time()))

    with pytest.raises(SourceError, match=r"another server .* does not have all transactions that were captured"):
        fix_position(settings)


@pytest.mark.fault("F-25", "streaming", "the binlog ends before the position: it was reset, or the server restored", "refused, with the reason")
def test_a_binlog_that_ends_before_the_offset_is_refused(source: Source, fill: Fill) -> None:
    """As after RESET MASTER, or when the server was restored from a backup."""
    fill("t", 1)
    settings = source.settings()
    position = fix_position(settings)
    connector = Connector(settings, bodies.capture_name(settings))
    connector.stop()
    connector.put_position(topics.capture_prefix(settings), Position("binlog.999999", 4, position.gtids))

    with pytest.raises(SourceError, match="The binlog ends before the position"):
        fix_position(settings, begin_anew=True)


def test_the_password_is_in_no_config_and_no_log(source: Source, fill: Fill, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakerelay.config import source_password

    fill("t", 1)
    settings = source.settings()
    with caplog.at_level(logging.DEBUG):
        fix_position(settings)

    shown = Connector(settings, bodies.capture_name(settings)).config()
    assert shown
    assert shown["database.password"] == settings.connect.source_password
    assert source_password() not in str(shown) + caplog.text
