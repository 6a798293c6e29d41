"""The main job on the real servers: tables are loaded while they are written to, then the stream makes them equal to their source.

One Spark session, the functions that the DAGs call. Rows are compared value by value, by pymysql and Spark, apart from the project's own verify.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.capture import binlog, topics
from lakerelay.capture.bodies import capture_name
from lakerelay.capture.connector import Connector
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.progress import Progress, State
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Settings
from lakerelay.errors import WriterFencedError
from lakerelay.lake import load, store
from lakerelay.local import mysql
from tests.integration.pipeline import Stream

NAME = f"main_job_{int(time.time())}"  # its own topics, also on servers that an earlier session left running
TABLES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {  # name → DDL, key, settings
    "cow_one": ("id INT PRIMARY KEY, v VARCHAR(40), n DECIMAL(12, 9), version INT", ("id",), {"type": "cow"}),
    "mor_one": ("id BIGINT PRIMARY KEY, v VARCHAR(40), d DOUBLE, version INT", ("id",), {"type": "mor"}),
    "cow_two": ("a INT, b VARCHAR(10), p VARCHAR(4), version INT, PRIMARY KEY (a, b)", ("a", "b"), {"type": "cow", "partition": "p"}),
    "mor_two": ("a INT, b VARCHAR(10), p VARCHAR(4), version INT, PRIMARY KEY (a, b)", ("a", "b"), {"type": "mor", "partition": "p"}),
}
ROWS = 400


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings]) -> Settings:
    tables = [{"name": f"{NAME}.{name}"} | options for name, (_, _, options) in TABLES.items()]
    return make_settings(NAME, tables, relay={"rows": 250}, stream={"seconds_between_batches": 0.5})


class Writer(threading.Thread):
    """Inserts, updates and deletes in every table, a transaction of all of them at a time; each update raises the row's version."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._connect = lambda: mysql.connect(settings.local, database=NAME, autocommit=False)
        self._random, self._next, self._ended = random.Random(7), 10_000, threading.Event()
        self.deleted: set[tuple[str, int]] = set()  # table, id

    def run(self) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            while not self._ended.is_set():
                self._write(cursor)
                connection.commit()
                time.sleep(0.02)

    def _write(self, cursor: Any) -> None:
        pick, self._next = self._random.randrange, self._next + 1
        for name, column in (("cow_one", "n"), ("mor_one", "d")):
            cursor.execute(f"INSERT INTO {name} VALUES (%s, 'new', %s, 0)", (self._next, self._next / 700_000))
            cursor.execute(f"UPDATE {name} SET version = version + 1, {column} = {column} / 3 WHERE id = %s", (pick(ROWS),))
            gone = pick(ROWS)
            cursor.execute(f"DELETE FROM {name} WHERE id = %s", (gone,))
            self.deleted.add((name, gone))
        for name in ("cow_two", "mor_two"):
            cursor.execute(f"INSERT INTO {name} VALUES (%s, 'n', 'p0', 0)", (self._next,))
            moved = (f"p{pick(4)}", pick(ROWS // 4), f"b{pick(4)}")
            cursor.execute(f"UPDATE {name} SET version = version + 1, p = %s WHERE a = %s AND b = %s", moved)
            cursor.execute(f"DELETE FROM {name} WHERE a = %s AND b = %s", (pick(ROWS // 4), f"b{pick(4)}"))

    def stop(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def streaming(spark: SparkSession, settings: Settings) -> Iterator[Stream]:
    running = Stream(spark, settings)
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, settings: Settings) -> Iterator[Writer]:
    """All tables loaded by relays while they are written to; the writer still at work."""
    with mysql.connect(settings.local) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {NAME}")
        cursor.execute(f"CREATE DATABASE {NAME}")
        cursor.execute(f"USE {NAME}")
        for name, (columns, key, _) in TABLES.items():
            cursor.execute(f"CREATE TABLE {name} ({columns})")
            rows = [(n, f"row {n}", n / 1e8, 0) for n in range(ROWS)] if len(key) == 1 else [(n // 4, f"b{n % 4}", f"p{n % 3}", 0) for n in range(ROWS)]
            cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s, %s)", rows)
        connection.commit()
    writer = Writer(settings)
    writer.start()
    fix_position(settings)
    relays = plan_relays(settings, [], run="first", replace=False)
    loading = threading.Thread(target=load.load_tables, args=(spark, settings, names(settings)))
    loading.start()
    for relay in relays:
        scan_relay(settings, relay)
    loading.join()
    yield writer
    writer.stop()


def names(settings: Settings) -> list[str]:
    return [table.name for table in settings.tables if table.name]


def state(settings: Settings) -> State:
    with Progress(settings) as progress:
        return progress.read()


def wait_until_applied(settings: Settings, patience: float = 180.0) -> None:
    """Until the stream has applied all that MySQL has committed so far: a last row in every table, and then the end of its topic."""
    with mysql.connect(settings.local, database=NAME) as connection, connection.cursor() as cursor:
        marker = int(time.time())
        for name, (_, key, _) in TABLES.items():
            cursor.execute(f"INSERT INTO {name} VALUES (%s, 'mark', {'0' if len(key) == 1 else chr(39) + 'p0' + chr(39)}, 0)", (marker,))
        connection.commit()
        end = binlog.position(connection)
    deadline = time.monotonic() + patience
    capture = Connector(settings, capture_name(settings))
    while (at := capture.position()) is None or at < end:
        assert time.monotonic() < deadline, f"capture stands at {at}, not {end}"
        time.sleep(0.5)
    ends = {name: topics.end_offsets(settings, [topic])[topic] for name in names(settings) for topic in [topics.data(topics.capture_prefix(settings), name)]}
    while not ((newest := state(settings).stream) and all(newest.tables.get(name, {}).get("offset", -1) >= end for name, end in ends.items())):
        assert time.monotonic() < deadline, f"the stream stands at {newest}, not {ends}"
        time.sleep(0.5)


def source_rows(settings: Settings, table: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    key = TABLES[table][1]
    with mysql.connect(settings.local, database=NAME) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return {tuple(row[: len(key)]): tuple(row) for row in cursor.fetchall()}


def lake_rows(spark: SparkSession, settings: Settings, table: str, *extra: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    columns, key, _ = TABLES[table]
    wanted = [column.split()[0] for column in columns.split(", PRIMARY KEY (")[0].replace("DECIMAL(12, 9)", "DECIMAL").split(", ")]
    found = store.read(spark, store.lake_table(settings, f"{NAME}.{table}", key)).select(*wanted, *extra).collect()
    rows = {tuple(row[: len(key)]): tuple(row) for row in found}
    assert len(rows) == len(found), "a key stands twice in the lake"
    return rows


def test_tables_loaded_under_writes_become_equal_to_their_source(spark: SparkSession, settings: Settings, loaded: Writer) -> None:
    """Relays read while every table is inserted into, updated (partitions too) and deleted from; then the stream: equal, value by value."""
    with streaming(spark, settings):
        time.sleep(10)
        loaded.stop()
        wait_until_applied(settings)
    for table in TABLES:
        assert lake_rows(spark, settings, table) == source_rows(settings, table)


def test_a_row_deleted_during_the_full_load_does_not_come_back(spark: SparkSession, settings: Settings, loaded: Writer) -> None:
    assert loaded.deleted
    for table in ("cow_one", "mor_one"):
        assert not {(table, key) for (key,) in lake_rows(spark, settings, table)} & loaded.deleted


def test_a_second_full_load_reads_nothing(spark: SparkSession, settings: Settings, loaded: Writer) -> None:
    assert plan_relays(settings, [], run="second", replace=False) == []


@pytest.mark.fault("F-35", "streaming", "the checkpoint is deleted", "the lake says from where to go on")
def test_the_stream_goes_on_from_the_lake_without_its_checkpoint(
    spark: SparkSession, settings: Settings, loaded: Writer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped, its checkpoint deleted, changed meanwhile, started: every version arrives, and rows that did not change are not written again."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with streaming(spark, settings):
        wait_until_applied(settings)
    before = {table: lake_rows(spark, settings, table, "_hoodie_commit_time") for table in TABLES}
    checkpoints = list(tmp_path.glob("lakerelay-checkpoint-*"))
    assert checkpoints
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)
    with mysql.connect(settings.local, database=NAME) as connection, connection.cursor() as cursor:
        for table, (_, key, _) in TABLES.items():
            cursor.execute(f"UPDATE {table} SET version = version + 1 WHERE {key[0]} < 40")
        connection.commit()
    with streaming(spark, settings):
        wait_until_applied(settings)
    for table in TABLES:
        source, lake = source_rows(settings, table), lake_rows(spark, settings, table, "_hoodie_commit_time")
        assert {key: row[:-1] for key, row in lake.items()} == source
        if table.startswith("mor"):  # a COW commit rewrites files, but keeps the commit time of rows that it only copies
            assert all(lake[key] == row for key, row in before[table].items() if row[:-1] == source.get(key))


def test_a_newer_stream_ends_the_older(spark: SparkSession, settings: Settings, loaded: Writer) -> None:
    """Two drivers of one pipeline: the older finds out before its next batch writes."""
    older, newer = Stream(spark, settings), Stream(spark, settings)
    older.start()
    time.sleep(5)
    newer.start()
    time.sleep(10)
    with mysql.connect(settings.local, database=NAME) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE cow_one SET version = version + 1 WHERE id < 40")
        connection.commit()
    older.join(timeout=120)
    assert isinstance(older.error, WriterFencedError)
    wait_until_applied(settings)
    newer.stop()
    assert lake_rows(spark, settings, "cow_one") == source_rows(settings, "cow_one")
