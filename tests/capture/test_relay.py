"""One relay on the real servers: every row once, whatever happens on the way."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from lakerelay import config
from lakerelay.capture import binlog, bodies, topics
from lakerelay.capture import relay as relay_module
from lakerelay.capture.connector import Connector
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.progress import Progress, RelayRecord
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Settings
from lakerelay.errors import ConnectError, RelayError, SourceError
from lakerelay.local import mysql
from tests.capture.conftest import Fill, Source, events, insert


def _plan(settings: Settings) -> list[str]:
    fix_position(settings)
    return plan_relays(settings, [], run="one", replace=False)


def _record(settings: Settings, relay: str) -> RelayRecord:
    with Progress(settings) as progress:
        return progress.read().relays[relay]


def _keys(settings: Settings, record: RelayRecord, table: str, column: str = "id") -> list[object]:
    """Keys of the table's rows in Kafka, in their order there."""
    return [row[column] for row in events(settings, record.topics[table])]


def _connectors(settings: Settings) -> list[str]:
    return [name for name in httpx.get(f"{settings.connect.url}/connectors").json() if name.startswith(f"{settings.name}-")]


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def test_a_group_of_tables_is_scanned_whole(source: Source, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
    """Also an empty table, and one whose name has to be escaped."""
    fill("t", 3000)
    fill("t2", 20)
    fill("empty", 0)
    fill("odd-$name", 7)
    settings = source.settings()
    (relay,) = _plan(settings)
    with caplog.at_level(logging.INFO):
        record = scan_relay(settings, relay)

    name = source.name
    assert record == _record(settings, relay)
    assert (record.state, record.attempt, record.error) == ("scanned", 1, "")
    assert record.rows == {f"{name}.t": 3000, f"{name}.t2": 20, f"{name}.empty": 0, f"{name}.odd-$name": 7}
    assert sorted(map(int, map(str, _keys(settings, record, f"{name}.t")))) == list(range(1, 3001))
    assert len(_keys(settings, record, f"{name}.odd-$name")) == 7
    assert record.topics[f"{name}.odd-$name"] == f"{name}.relay.{relay}a1.{name}.odd-_name"
    assert record.low
    assert record.high
    assert record.low <= record.high
    assert f"relay scanned relay=1/1 table={name}.t rows=3000" in caplog.text
    assert _connectors(settings) == [bodies.capture_name(settings)]


def test_the_schema_topic_holds_the_columns(source: Source, fill: Fill) -> None:
    fill("t", 1)
    settings = source.settings()
    record = scan_relay(settings, _plan(settings)[0])

    changes = [change for event in events(settings, record.schema_topic) for change in event["tableChanges"]]
    assert [[column["name"] for column in change["table"]["columns"]] for change in changes if change["type"] == "CREATE"] == [["id", "v"]]


def test_ranges_of_one_table_hold_every_row_once(source: Source) -> None:
    """Skewed text keys under a collation that takes upper and lower case for equal."""
    source.run("CREATE TABLE t (k VARCHAR(20), id INT, PRIMARY KEY (k, id))")
    insert(source, "t", [(text, number) for number in range(300) for text in ("a", "B", "O'Hara", "日本")] + [("b", number) for number in range(1000, 3000)])
    settings = source.settings(relay={"rows": 700})
    relays = _plan(settings)
    records = [scan_relay(settings, relay) for relay in relays]

    assert len(records) > 2
    assert sum(sum(record.rows.values()) for record in records) == source.count("t")
    keys = [(row["k"], row["id"]) for record in records for row in events(settings, record.topics[f"{source.name}.t"])]
    assert sorted(keys) == sorted(source.run("SELECT k, id FROM t"))


def test_a_scanned_relay_is_not_scanned_again(source: Source, fill: Fill) -> None:
    fill("t", 10)
    settings = source.settings()
    (relay,) = _plan(settings)
    first = scan_relay(settings, relay)
    source.run("INSERT INTO t VALUES (11, 'later')")

    assert scan_relay(settings, relay) == first
    assert _plan(settings) == []
    assert len(_keys(settings, first, f"{source.name}.t")) == 10


@pytest.mark.fault("F-14p", "loading", "the connector of a relay is deleted", "the relay is begun again on topics of its own, each row once")
def test_a_deleted_connector_is_made_anew_on_fresh_topics(source: Source, fill: Fill) -> None:
    """The scan waits for the table when its connector is deleted; the next attempt reads all rows once."""
    fill("t", 500)
    settings = source.settings(relay={"locking": "none"})
    (relay,) = _plan(settings)
    source.run("LOCK TABLES t WRITE")
    with ThreadPoolExecutor(1) as pool:
        scan = pool.submit(scan_relay, settings, relay)
        name = bodies.relay_name(settings, relay, 1)
        _until(lambda: (status := Connector(settings, name).status()) is not None and status.task == "RUNNING")
        Connector(settings, name).delete()
        source.run("UNLOCK TABLES")
        record = scan.result(timeout=180)

    assert (record.attempt, record.state, record.rows) == (2, "scanned", {f"{source.name}.t": 500})
    assert sorted(map(int, map(str, _keys(settings, record, f"{source.name}.t")))) == list(range(1, 501))
    assert topics.present(settings, topics.relay_prefix(settings, relay, 1)) == []


@pytest.mark.fault(
    "F-15", "loading", "a task runs and reads nothing, for the table is locked", "given up after a time, with the reason; run again, it is scanned"
)
def test_a_task_that_reads_nothing_is_given_up_and_the_relay_can_be_run_again(source: Source, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    fill("t", 50)
    settings = source.settings(relay={"locking": "none"})
    (relay,) = _plan(settings)
    monkeypatch.setattr(relay_module, "_STALLED", 3.0)
    monkeypatch.setattr(relay_module, "_LINE", 1.0)
    source.run("LOCK TABLES t WRITE")
    with pytest.raises(RelayError, match=r"interrupted too often.*runs, but reads no row"):
        scan_relay(settings, relay)
    source.run("UNLOCK TABLES")

    monkeypatch.setattr(relay_module, "_STALLED", 60.0)
    assert scan_relay(settings, relay).rows == {f"{source.name}.t": 50}


@pytest.mark.fault("F-11p", "loading", "Connect restarts the task inside a scan", "the relay is begun again on topics of its own, each row once")
def test_a_task_that_connect_restarts_inside_the_scan_leaves_no_row_twice(source: Source, fill: Fill) -> None:
    fill("t", 400_000)
    settings = source.settings()
    (relay,) = _plan(settings)
    topic = topics.data(topics.relay_prefix(settings, relay, 1), f"{source.name}.t")
    with ThreadPoolExecutor(1) as pool:
        scan = pool.submit(scan_relay, settings, relay)
        _until(lambda: topic in topics.present(settings, settings.name) and topics.end_offsets(settings, [topic])[topic] > 0, seconds=120)
        httpx.post(f"{settings.connect.url}/connectors/{bodies.relay_name(settings, relay, 1)}/tasks/0/restart", timeout=60).raise_for_status()
        record = scan.result(timeout=300)

    assert (record.attempt, record.rows) == (2, {f"{source.name}.t": 400_000})
    keys = _keys(settings, record, f"{source.name}.t")
    assert (len(keys), len(set(keys))) == (400_000, 400_000)


def test_a_killed_task_is_continued_and_not_begun_again(source: Source, fill: Fill) -> None:
    """The Airflow worker dies while its connector scans; the next try follows the same attempt."""
    fill("t", 5000)
    settings = source.settings(relay={"locking": "none"})
    (relay,) = _plan(settings)
    assert settings.local
    program = "import sys; from lakerelay import config; from lakerelay.capture.relay import scan_relay; scan_relay(config.load(), sys.argv[1])"
    environment = os.environ | {config.SETTINGS_VARIABLE: str(settings.local.folder / "settings" / f"{settings.name}.toml")}
    source.run("LOCK TABLES t WRITE")
    task = subprocess.Popen([sys.executable, "-c", program, relay], env=environment)
    try:
        _until(lambda: bodies.relay_name(settings, relay, 1) in _connectors(settings), seconds=120)
    finally:
        task.send_signal(signal.SIGKILL)
        task.wait()
        source.run("UNLOCK TABLES")

    record = scan_relay(settings, relay)
    assert (record.state, record.attempt, record.rows) == ("scanned", 1, {f"{source.name}.t": 5000})
    assert len(_keys(settings, record, f"{source.name}.t")) == 5000


def test_a_scan_is_kept_while_the_capture_is_away(source: Source, fill: Fill) -> None:
    """Its connector is deleted: the relay's task fails, and the next one, once the capture is back, reads no row again."""
    fill("t", 50)
    settings = source.settings()
    (relay,) = _plan(settings)
    Connector(settings, bodies.capture_name(settings)).delete()
    with pytest.raises(RelayError, match="no capture connector"):
        scan_relay(settings, relay)
    assert _record(settings, relay).state == "scanning"

    fix_position(settings)
    record = scan_relay(settings, relay)
    assert (record.state, record.attempt, record.rows) == ("scanned", 1, {f"{source.name}.t": 50})


@pytest.mark.fault("F-12p", "loading", "the task of a relay fails", "an error with its trace; run again, it is scanned")
def test_a_failed_task_is_an_error_with_its_trace_and_can_be_run_again(source: Source, fill: Fill) -> None:
    """MySQL refuses Debezium."""
    fill("t", 10)
    settings = source.settings()
    (relay,) = _plan(settings)
    wrong = settings.model_copy(update={"connect": settings.connect.model_copy(update={"source_password": "wrong"})})
    with pytest.raises(ConnectError, match="Kafka Connect refused a request"):
        scan_relay(wrong, relay)
    assert _record(settings, relay).state == "failed"

    record = scan_relay(settings, relay)
    assert (record.state, record.attempt, record.error) == ("scanned", 2, "")


def test_a_table_that_is_gone_is_an_error(source: Source, fill: Fill) -> None:
    fill("t", 10)
    settings = source.settings()
    (relay,) = _plan(settings)
    source.run("DROP TABLE t")
    with pytest.raises(SourceError, match="doesn't exist"):
        scan_relay(settings, relay)

    assert _record(settings, relay).state == "failed"


def test_an_unknown_relay_is_an_error(source: Source) -> None:
    with pytest.raises(RelayError, match="no such relay"):
        scan_relay(source.settings(), "20000101t000000_01")


def test_a_scan_stands_between_two_positions(source: Source, fill: Fill) -> None:
    """Rows are inserted all the while: every row up to `low` is there, and none after `high`; no change up to there is missing in Kafka."""
    fill("t", 2000)
    settings = source.settings()
    (relay,) = _plan(settings)
    done = threading.Event()
    written: list[tuple[int, binlog.Position]] = []  # id, a position behind its transaction

    def write() -> None:
        with binlog.connect(settings) as connection:
            while not done.is_set():
                number = 1_000_000 + len(written)
                source.run(f"INSERT INTO t VALUES ({number}, 'x')")
                written.append((number, binlog.position(connection)))
                time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        _until(lambda: len(written) > 10)
        record = scan_relay(settings, relay)
        so_far = len(written)
        _until(lambda: len(written) > so_far + 10)
        done.set()
        writing.result()

    assert record.low
    assert record.high
    assert record.low < record.high
    scanned = set(_keys(settings, record, f"{source.name}.t"))
    assert {number for number, behind in written if behind <= record.low} <= scanned
    first_after = next(number for number, behind in written if behind > record.high)
    assert max(number for number in scanned if isinstance(number, int)) <= first_after
    captured = {event["after"]["id"] for event in events(settings, topics.data(topics.capture_prefix(settings), f"{source.name}.t"))}
    assert {number for number, behind in written if behind <= record.high} <= captured


def test_the_low_position_waits_for_open_transactions(source: Source, fill: Fill) -> None:
    """Their changes may stand in the binlog before it, and not be seen by the scan."""
    fill("t", 10)
    settings = source.settings()
    with mysql.connect(settings.local, database=source.name, autocommit=False) as writer, writer.cursor() as cursor:
        cursor.execute("UPDATE t SET v = 'open' WHERE id = 1")
        with binlog.connect(settings) as connection, pytest.raises(SourceError, match="Lock wait timeout"):
            binlog.settled_position(connection, [f"{source.name}.t"], attempts=1)
        writer.commit()
        with binlog.connect(settings) as connection:
            assert binlog.settled_position(connection, [f"{source.name}.t"]) == binlog.position(connection)
    source.run("UPDATE t SET v = 'free' WHERE id = 1")


def test_the_password_is_never_in_the_connector(source: Source, fill: Fill) -> None:
    fill("t", 10)
    settings = source.settings()
    relay = RelayRecord("x_01", "x", (f"{source.name}.t",), attempt=1, schema_topic=topics.relay_prefix(settings, "x_01", 1))
    for options in (bodies.relay(settings, relay, ()), bodies.capture(settings, (), "a")):
        assert options["database.password"] == settings.connect.source_password
        assert config.source_password() not in str(options)
