"""What becomes of each record: the commit that applies it counts it. One that cannot be decoded stops its table, or is put aside until it can be read."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lakerelay.capture import topics
from lakerelay.capture.commits import read as read_commits
from lakerelay.capture.metrics import PipelineCollector
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.relay import scan_relay
from lakerelay.config import SETTINGS_VARIABLE, Settings
from lakerelay.errors import DecodeError
from lakerelay.lake import decode, load, quarantine, schema, store
from lakerelay.lake.store import Commit
from tests.integration.pipeline import Pipeline

PROJECT = Path(__file__).parents[2]
TABLES = {
    "stops": {},
    "aside": {"on_bad_record": "quarantine"},
    "upserted": {"on_bad_record": "quarantine"},
    "log": {"on_bad_record": "quarantine", "kind": "append"},
    "cow": {"type": "cow"},
    "mor": {},
    "counted_log": {"kind": "append"},
    "lost": {},
}


@pytest.fixture(scope="module")
def pipeline(make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    found = Pipeline(make_settings, spark, "bad_records", TABLES)
    for table in TABLES:
        found.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, n SMALLINT)", f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
    found.full_load()
    with found.streaming():
        yield found


def topic(pipeline: Pipeline, table: str) -> str:
    return topics.data(topics.capture_prefix(pipeline.settings), f"{pipeline.name}.{table}")


def send(pipeline: Pipeline, table: str, *values: bytes | None) -> None:
    """Into the capture topic, as no connector would."""
    producer = Producer({"bootstrap.servers": pipeline.settings.kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic(pipeline, table), value=value)
    assert producer.flush(30) == 0


def newest(pipeline: Pipeline, table: str) -> dict[str, Any]:
    """The newest event of a table."""
    consumer = Consumer({"bootstrap.servers": pipeline.settings.kafka.bootstrap_servers, "group.id": "bad", "isolation.level": "read_committed"})
    first, end = consumer.get_watermark_offsets(TopicPartition(topic(pipeline, table), 0))
    consumer.assign([TopicPartition(topic(pipeline, table), 0, first)])
    found: dict[str, Any] = {}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (message := consumer.poll(5.0)) is not None:
        found = json.loads(message.value() or b"{}")
    consumer.close()
    assert end > first
    return found


def stopped(pipeline: Pipeline, table: str) -> str:
    """Why the stream has stopped a table, once it has."""
    deadline = time.monotonic() + 120
    while (record := pipeline.state().tables[f"{pipeline.name}.{table}"]).state != "stopped":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return record.error


def rows(pipeline: Pipeline, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in pipeline.lake(table).select(*columns).collect())


def facts(pipeline: Pipeline, table: str) -> tuple[Counter[str], list[Commit]]:
    """The sums of what the commits of a table say, and those commits of the stream, newest first."""
    commits = [each for each in store.commits(pipeline.spark, store.lake_table(pipeline.settings, f"{pipeline.name}.{table}", ("id",))) if each.facts]
    sums = Counter[str]()
    for commit in commits:
        assert commit.facts
        assert commit.facts.unaccounted == 0
        sums.update({name: count for name, count in asdict(commit.facts).items() if name != "newest_at" and count})
    return sums, commits


@pytest.mark.parametrize("table", ["mor", "cow", "counted_log"])
def test_commits_say_what_became_of_each_record(pipeline: Pipeline, table: str) -> None:
    """One that stands before the load is counted too, and not applied."""
    began, registry, name = time.time(), CollectorRegistry(), f"{pipeline.name}.{table}"
    with PipelineCollector(pipeline.settings, registry):
        pipeline.run(f"INSERT INTO {table} VALUES (3, 3), (4, 4)", f"UPDATE {table} SET n = 10 WHERE id = 1", f"DELETE FROM {table} WHERE id = 2")
        pipeline.wait()
        assert registry.get_sample_value("lakerelay_events_total", {"table": name, "operation": "inserts"}) == 2
        assert registry.get_sample_value("lakerelay_table_phase", {"table": name, "phase": "streaming"}) == 1
        assert registry.get_sample_value("lakerelay_connector_up", {"connector": f"{pipeline.name}-capture"}) == 1
        assert registry.get_sample_value("lakerelay_lag_events", {"table": name}) == 0
        documented = set(re.findall(r"`lakerelay_(\w+)", (PROJECT / "docs" / "monitoring.md").read_text()))
        assert {metric.name.removeprefix("lakerelay_") for metric in registry.collect()} == {word.removesuffix("_total") for word in documented}
    event = newest(pipeline, table)
    send(
        pipeline, table, json.dumps({**event, "op": "d", "before": {"id": 1, "n": 1}, "source": event["source"] | {"file": "binlog.000001", "pos": 4}}).encode()
    )
    pipeline.wait()
    sums, commits = facts(pipeline, table)
    assert sums == {"events": 5, "inserts": 2, "updates": 1, "deletes": 1, "repeated": 1}
    assert sum(commit.rows for commit in commits) == 4
    assert all(commit.files and commit.bytes for commit in commits if commit.rows)
    told = [commit for commit in read_commits(pipeline.settings, began) if commit.table == name]
    assert [commit.instant for commit in reversed(told)] == [commit.instant for commit in commits]
    assert sum(commit.events for commit in told) == 5
    assert all(0 < commit.delay < 60 and commit.seconds > 0 for commit in told)
    assert read_commits(pipeline.settings, time.time() + 60) == []
    assert began < max(commit.facts.newest_at for commit in commits if commit.facts) < time.time()

    pipeline.run(f"INSERT INTO {table} VALUES (5, 5)", f"TRUNCATE TABLE {table}", f"INSERT INTO {table} VALUES (6, 6)")
    pipeline.wait()
    sums, _ = facts(pipeline, table)
    assert sums["events"] == 8
    assert table != "counted_log" or sums["truncates"] == 1
    assert table == "counted_log" or rows(pipeline, table, "id", "n") == [(6, 6)]


@pytest.mark.fault(
    "F-47", "streaming", "a record is lost between Kafka and the commit (a defect of ours, planted)", "not committed; the table stops and says why"
)
def test_a_batch_that_does_not_add_up_is_not_committed(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    decode_changes = decode.changes

    def lossy(*args: Any, **options: Any) -> DataFrame:
        return decode_changes(*args, **options).where("after.id is null or after.id != 4")

    with monkeypatch.context() as patch:
        patch.setattr(decode, "changes", lossy)
        pipeline.run("INSERT INTO lost VALUES (3, 3), (4, 4)")
        error = stopped(pipeline, "lost")
    assert "do not add up" in error
    assert rows(pipeline, "lost", "id", "n") == [(1, 1), (2, 2)]
    pipeline.full_load("lost", replace=True)
    assert rows(pipeline, "lost", "id", "n") == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.fault("F-42a", "streaming", "records that are no JSON, no event, of another type, empty", "put aside in the quarantine")
def test_bad_records_are_put_aside_as_they_are(pipeline: Pipeline) -> None:
    """The changes beside them arrive."""
    name = f"{pipeline.name}.aside"
    pipeline.run("UPDATE aside SET n = 10 WHERE id = 1")
    pipeline.wait()
    event = newest(pipeline, "aside")
    text = {**event, "op": "c", "before": None, "after": {"id": 3, "n": "three"}}
    nowhere = {**event, "source": {}}
    bad = [json.dumps(text).encode(), b"", b"{}", b"not JSON", None, json.dumps(nowhere).encode()]
    send(pipeline, "aside", *bad)
    pipeline.run("INSERT INTO aside VALUES (3, 3)", "UPDATE aside SET n = 11 WHERE id = 1")
    pipeline.wait()
    assert rows(pipeline, "aside", "id", "n") == [(1, 11), (2, 2), (3, 3)]
    assert pipeline.state().tables[name].quarantined == len(bad)
    kept = quarantine.waiting(pipeline.spark, pipeline.settings, name)
    assert kept is not None
    found = kept.orderBy("offset").collect()
    assert [row["value"] if row["value"] is None else bytes(row["value"]) for row in found] == bad
    assert {(row["topic"], row["partition"]) for row in found} == {(topic(pipeline, "aside"), 0)}
    assert all(row["reason"] for row in found)
    assert facts(pipeline, "aside")[0] == {"events": 9, "inserts": 1, "updates": 2, "quarantined": 6}


@pytest.mark.fault("F-42b", "streaming", "records in quarantine can be read again", "applied in order; newer rows stay")
@pytest.mark.parametrize("table", ["upserted", "log"])
def test_a_replay_applies_what_can_be_read_by_now(pipeline: Pipeline, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of lakerelay: here SMALLINT cannot be read for a while. Newer rows stay as they are, deleted ones deleted."""
    name = f"{pipeline.name}.{table}"
    with monkeypatch.context() as patch:
        patch.setitem(schema._MAPPINGS, "SMALLINT", schema.Mapping(T.BooleanType(), lambda column: column.cast("int"), T.IntegerType()))
        pipeline.run(f"INSERT INTO {table} VALUES (3, 3), (4, 4)", f"UPDATE {table} SET n = 10 WHERE id = 1", f"UPDATE {table} SET n = 20 WHERE id = 2")
        pipeline.wait()
    assert pipeline.state().tables[name].quarantined == 4
    pipeline.run(f"DELETE FROM {table} WHERE id = 3", f"UPDATE {table} SET n = 11 WHERE id = 1")
    send(pipeline, table, b"not JSON")
    pipeline.wait()

    file = pipeline.settings.local.folder / "settings" / f"{pipeline.name}.toml"  # type: ignore[union-attr]
    command = [str(Path(sys.executable).with_name("lakerelay")), "replay", name]
    told = subprocess.run(command, env=os.environ | {SETTINGS_VARIABLE: str(file)}, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "4 records applied, 1 still cannot be decoded" in told.stdout.replace("\n", " ")
    assert pipeline.state().tables[name].quarantined == 1
    if table == "upserted":
        assert rows(pipeline, table, "id", "n") == [(1, 11), (2, 20), (4, 4)]
    else:
        found = pipeline.lake(table).orderBy("_seq", "_change").select("_op", "id", "n").collect()
        expected = [("r", 1, 1), ("r", 2, 2), ("c", 3, 3), ("c", 4, 4), ("u", 1, 10), ("u", 2, 20), ("d", 3, 3), ("u", 1, 11)]
        assert [tuple(row) for row in found] == expected


@pytest.mark.fault("F-42c", "streaming", "the same without a quarantine", "that table stops and says why")
def test_a_table_stops_by_default(pipeline: Pipeline) -> None:
    send(pipeline, "stops", b"not JSON")
    error = stopped(pipeline, "stops")
    assert "does not fit" in error
    assert "quarantine" in error
    assert rows(pipeline, "stops", "id", "n") == [(1, 1), (2, 2)]


@pytest.mark.fault("F-42d", "loading", "a record that is no event comes while the table is read", "it is not loaded and says why; loaded again it is")
def test_a_load_names_what_it_cannot_read(make_settings: Callable[..., Settings], spark: SparkSession) -> None:
    found = Pipeline(make_settings, spark, "bad_load", {"t": {}})
    name = f"{found.name}.t"
    found.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    fix_position(found.settings)
    relays = plan_relays(found.settings, [name], run="one", replace=False)
    send(found, "t", b"not JSON")
    for relay in relays:
        scan_relay(found.settings, relay)
    with pytest.raises(DecodeError, match="cannot be decoded"):
        load.load_tables(spark, found.settings, [name])
    assert found.state().tables[name].state == "stopped"
    found.full_load(replace=True)
    assert rows(found, "t", "id") == [(1,)]
