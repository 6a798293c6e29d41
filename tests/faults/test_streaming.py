"""Faults while tables are streamed."""

import json
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from lakerelay.capture import topics
from lakerelay.capture.bodies import capture_name
from lakerelay.capture.connector import Connector
from lakerelay.capture.position import fix_position
from lakerelay.capture.reader import Reader
from lakerelay.errors import SourceError
from lakerelay.lake import store
from tests.faults.conftest import TABLES, Faulty

Seen = Callable[[str, object], None]
_WORK = 6.0  # seconds of writing before and after


def _capture(faulty: Faulty) -> Connector:
    return Connector(faulty.settings, capture_name(faulty.settings))


def _topic(faulty: Faulty, name: str) -> str:
    return topics.data(topics.capture_prefix(faulty.settings), f"{faulty.name}.{name}")


def _instant() -> str:
    """Now, as Hudi names instants."""
    return f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:17]


def _records(faulty: Faulty, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values."""
    with Reader(faulty.settings, topic) as reader:
        return [(message.key(), message.value()) for message in reader.new()]


@pytest.mark.fault("F-10", "streaming", "`kill -9` of the Kafka Connect worker, twice", "capture goes on where it was")
def test_connect_is_killed(faulty: Faulty, record_property: Seen) -> None:
    for _ in range(2):
        time.sleep(_WORK)
        faulty.kill("connect")
        time.sleep(3)
        faulty.up("connect")
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-12a", "streaming", "the capture task fails: a topic takes no record of more than 500 bytes", "the stream restarts it until it can go on")
def test_the_capture_task_fails(faulty: Faulty, record_property: Seen) -> None:
    with faulty.topic_config(_topic(faulty, "cow"), "max.message.bytes", "500"):
        faulty.driver.until("connector restarted")
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-12b", "streaming", "Debezium's account is locked: the connector is RUNNING, and captures nothing", "the stream's log says so; unlocked, it goes on"
)
@pytest.mark.long
def test_the_account_is_locked(faulty: Faulty, record_property: Seen) -> None:
    with faulty.denied():
        faulty.driver.until("hears nothing from MySQL", 150)
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-14a", "streaming", "the capture connector is deleted, its offsets too", "the stream ends with an error that says so; fix_position puts the position back"
)
def test_the_connector_is_deleted(faulty: Faulty, record_property: Seen) -> None:
    _capture(faulty).delete()
    assert "The capture connector is gone." in faulty.driver.ended()
    fix_position(faulty.settings)
    faulty.start()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-14b", "streaming", "the connector's offsets are deleted: it begins at the end of the binlog", "every table is stopped, a full load mends it"
)
def test_the_offsets_are_deleted(faulty: Faulty, record_property: Seen) -> None:
    capture = _capture(faulty)
    capture.forget()
    time.sleep(1)
    capture.resume()
    faulty.until_stopped(*TABLES, "heartbeat_", why="Capture lost its position and began anew")
    record_property("seen", faulty.load_again())


@pytest.mark.fault("F-20", "streaming", "`kill -9` of mysqld", "capture goes on where it was")
def test_mysql_is_killed(faulty: Faulty, record_property: Seen) -> None:
    time.sleep(_WORK)
    faulty.kill("mysql")
    time.sleep(1)
    faulty.up("mysql")
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-21", "streaming", "mysqld is stopped for 40 s (SIGSTOP)", "waits, then goes on")
@pytest.mark.long
def test_mysql_stands_still(faulty: Faulty, record_property: Seen) -> None:
    mysqld = faulty.server("mysql")
    mysqld.suspend()
    time.sleep(40)
    mysqld.resume()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-22", "streaming", "`FLUSH BINARY LOGS` every half second", "nothing is to be seen")
@pytest.mark.long
def test_the_binlog_is_rotated(faulty: Faulty, record_property: Seen) -> None:
    for _ in range(20):
        faulty.run("FLUSH BINARY LOGS")
        time.sleep(0.5)
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-23", "streaming", "the binlog is purged past the position while the connector is stopped", "full_load is refused without `replace`, and mends it with it"
)
def test_the_binlog_is_purged(faulty: Faulty, record_property: Seen) -> None:
    _capture(faulty).stop()
    time.sleep(_WORK)
    faulty.run("FLUSH BINARY LOGS")
    time.sleep(_WORK)
    ((newest, *_),) = faulty.run("SHOW MASTER STATUS")
    deadline = time.monotonic() + 60
    while faulty.run("SHOW BINARY LOGS")[0][0] != newest:  # a file that somebody still reads is left out
        assert time.monotonic() < deadline, faulty.run("SHOW PROCESSLIST")
        faulty.run(f"PURGE BINARY LOGS TO '{newest}'")
        time.sleep(0.5)
    with pytest.raises(SourceError, match="changes are lost"):
        fix_position(faulty.settings)
    fix_position(faulty.settings, begin_anew=True)
    faulty.until_stopped(*TABLES, "heartbeat_", why="Capture lost its position and began anew")
    record_property("seen", faulty.load_again())


@pytest.mark.fault("F-30", "streaming", "a second driver while the first runs, as after a killed Airflow worker", "the older ends, and says why")
def test_a_second_driver(faulty: Faulty, record_property: Seen) -> None:
    first = faulty.driver
    first.until("batch=1 ")
    faulty.start()
    assert "Another program has taken over." in first.ended()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-33", "committing", "`kill -9` of spark-submit at a random moment, three times", "a commit that is half done is rolled back, and done again"
)
@pytest.mark.long
def test_the_driver_is_killed(faulty: Faulty, record_property: Seen) -> None:
    for pause in random.Random(3).sample(range(20), 3):
        faulty.driver.until("batch=1 ")
        time.sleep(pause / 7)
        faulty.restart()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-33b", "committing", "`kill -9` of the driver's Python, which leaves its JVM, and the next driver at once", "as above")
@pytest.mark.long
def test_the_python_of_the_driver_is_killed(faulty: Faulty, record_property: Seen) -> None:
    faulty.driver.until("batch=1 ")
    for child in faulty.driver.children():
        child.kill()
    faulty.start()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-34", "committing", "the driver dies between the commit of one table and that of the other", "what is committed is not applied again, the rest is"
)
@pytest.mark.long
def test_the_driver_dies_between_two_tables(faulty: Faulty, record_property: Seen) -> None:
    for name in TABLES:
        faulty.driver.kill()
        faulty.start(dies=f"committed {faulty.name}.{name}").ended()
        faulty.start()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-36",
    "streaming",
    "the driver is stopped (SIGSTOP) while another takes over, and goes on later",
    "the older ends, by the fence or for want of its half-written files; nothing goes back",
)
@pytest.mark.long
def test_a_driver_sleeps(faulty: Faulty, record_property: Seen) -> None:
    first = faulty.driver
    first.until("batch=1 ")
    first.signal(signal.SIGSTOP)
    faulty.start().until("batch=1 ")
    time.sleep(_WORK)
    first.signal(signal.SIGCONT)
    first.ended()
    assert first.process.returncode != 0
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-39", "committing", "`kill -9` of the driver while it compacts a MOR table", "readable all the time; compacted by the next driver")
@pytest.mark.long
def test_a_compaction_is_killed(faulty: Faulty, record_property: Seen) -> None:
    timeline = Path(faulty.settings.lake.path) / faulty.name / "mor" / ".hoodie" / "timeline"

    def compacting() -> set[str]:
        """Instants of compactions that have begun and not ended."""
        begun = {file.name.partition(".")[0] for file in timeline.glob("*.compaction.inflight")}
        return begun - {file.name.partition("_")[0] for file in timeline.glob("*_*.commit")}

    deadline = time.monotonic() + 400
    while not (killed := compacting()):
        assert time.monotonic() < deadline, sorted(file.name for file in timeline.iterdir())[-5:]
        time.sleep(0.01)
    faulty.restart()
    whole = faulty.require_whole()
    assert not killed & compacting()
    record_property("seen", whole)


@pytest.mark.fault("F-44", "streaming", "drivers in time zones 19 hours apart, one after another", "commits stay in order")
@pytest.mark.long
def test_drivers_in_other_time_zones(faulty: Faulty, record_property: Seen) -> None:
    for zone in ("Asia/Tokyo", "Pacific/Honolulu"):
        faulty.driver.kill()
        faulty.start(java=f"-Duser.timezone={zone}").until("batch=1 ")
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-40a", "streaming", "`kill -9` of the Kafka broker", "the stream ends or waits, and goes on")
@pytest.mark.long
def test_kafka_is_killed(faulty: Faulty, record_property: Seen) -> None:
    time.sleep(_WORK)
    faulty.kill("kafka")
    time.sleep(3)
    faulty.up("kafka", "connect")
    faulty.restart()
    record_property("seen", faulty.require_whole())


@pytest.mark.fault(
    "F-40b", "streaming", "a capture topic is deleted and made anew while the stream is away", "that table is stopped, the others go on; a full load mends it"
)
@pytest.mark.long
def test_a_topic_is_made_anew(faulty: Faulty, record_property: Seen) -> None:
    faulty.driver.kill()
    topics.delete(faulty.settings, [_topic(faulty, "cow")])
    time.sleep(_WORK)
    fix_position(faulty.settings)
    faulty.start()
    faulty.until_stopped("cow", why="the topic")
    record_property("seen", faulty.load_again())


@pytest.mark.fault(
    "F-40c", "streaming", "retention deletes changes that the stream has not read", "that table is stopped, the others go on; a full load mends it"
)
@pytest.mark.long
def test_unread_changes_are_deleted(faulty: Faulty, record_property: Seen) -> None:
    faulty.driver.kill()
    time.sleep(_WORK)
    topic = _topic(faulty, "mor")
    end = topics.end_offsets(faulty.settings, [topic])[topic]
    faulty.ask_kafka(lambda admin: admin.delete_records([TopicPartition(topic, 0, end)]))
    faulty.start()
    faulty.until_stopped("mor", why="Kafka has deleted them")
    record_property("seen", faulty.load_again())


@pytest.mark.fault("F-40d", "streaming", "a capture topic is given more partitions", "that table is stopped; deleted, and loaded again, it goes on")
@pytest.mark.long
def test_a_topic_is_given_partitions(faulty: Faulty, record_property: Seen) -> None:
    topic = _topic(faulty, "cow")
    faulty.ask_kafka(lambda admin: admin.create_partitions([NewPartitions(topic, 3)]))
    time.sleep(_WORK)
    faulty.restart()
    faulty.until_stopped("cow", why="more partitions")
    topics.delete(faulty.settings, [topic])
    fix_position(faulty.settings)
    record_property("seen", faulty.load_again())


@pytest.mark.fault("F-41", "streaming", "a transaction with changes is aborted in Kafka, as when Connect dies within it", "none of them is applied")
def test_an_aborted_transaction(faulty: Faulty, record_property: Seen) -> None:
    topic = _topic(faulty, "mor")
    key, value = next((key, value) for key, value in reversed(_records(faulty, topic)) if json.loads(value)["op"] != "d")
    event = json.loads(value)
    event["after"]["version"] += 1_000_000_000
    event["source"]["pos"] += 1_000_000_000
    producer = Producer({"bootstrap.servers": faulty.settings.kafka.bootstrap_servers, "transactional.id": faulty.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, key=key, value=json.dumps(event))
    assert producer.flush(30) == 0
    time.sleep(_WORK)
    producer.abort_transaction(30)
    record_property("seen", faulty.require_whole())


@pytest.mark.fault("F-43", "streaming", "every record of a capture topic is written to it again, in another order", "the newest by the binlog stays")
@pytest.mark.long
def test_changes_come_again_in_another_order(faulty: Faulty, record_property: Seen) -> None:
    topic = _topic(faulty, "mor")
    records = _records(faulty, topic)
    random.Random(5).shuffle(records)
    producer = Producer({"bootstrap.servers": faulty.settings.kafka.bootstrap_servers})
    for key, value in records[:2000]:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0
    record_property("seen", f"{len(records[:2000])} records; {faulty.require_whole()}")


@pytest.mark.fault("F-48", "loading", "a table that is streamed and written to is loaded again", "read whole all the time; the other's stream goes on")
def test_a_table_is_loaded_again_while_it_is_streamed(faulty: Faulty, record_property: Seen) -> None:
    mor = store.lake_table(faulty.settings, f"{faulty.name}.mor", ("id",))
    faulty.driver.until("batch=1 ")
    before = faulty.state().tables[f"{faulty.name}.cow"].load
    began, reads = _instant(), faulty.reader.reads
    faulty.full_load("cow", replace=True)
    ended = _instant()
    during = [commit for commit in store.commits(faulty.spark, mor) if commit.facts and began < commit.instant < ended]
    assert during
    assert faulty.reader.reads > reads
    assert faulty.state().tables[f"{faulty.name}.cow"].load != before
    record_property("seen", f"{len(during)} commits of the other meanwhile; {faulty.require_whole()}")


@pytest.mark.fault("F-45", "streaming", "a table is taken out of the settings, changed, and put back", "its changes wait, and are applied")
@pytest.mark.long
def test_a_table_leaves_the_settings_and_comes_back(faulty: Faulty, record_property: Seen) -> None:
    text = faulty.file.read_text()
    head, *tables = text.split("[[tables]]")
    faulty.file.write_text("[[tables]]".join([head, *(table for table in tables if f'{faulty.name}.cow"' not in table)]))
    faulty.restart().until("stream leaves out")
    time.sleep(_WORK)
    faulty.file.write_text(text)
    faulty.restart()
    record_property("seen", faulty.require_whole())
