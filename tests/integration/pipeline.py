"""A pipeline for a test of the whole way: its own database, topics and lake; loaded by relays, streamed, compared with MySQL value by value."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakerelay.capture import binlog, topics
from lakerelay.capture.bodies import capture_name
from lakerelay.capture.connector import Connector
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.progress import Progress, State
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Local, Settings
from lakerelay.lake import load, store, stream
from lakerelay.local import mysql

_HEARTBEAT = "heartbeat_"  # a table whose change makes a micro-batch, and so shows how far the stream is


class Stream(threading.Thread):
    """`stream_changes` beside the test, until `stop`."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._spark, self._settings, self._end = spark, settings, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            stream.stream_changes(self._spark, self._settings, self._end)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._end.set()
        self.join()
        if self.error:
            raise self.error


class Pipeline:
    """`tables`: table → its settings, `type`, `partition`, …; they are in the database of the pipeline's name, and made by the test.

    `patterns`: more entries of the settings. A table that is named without its database is in the pipeline's.
    """

    def __init__(
        self,
        make_settings: Callable[..., Settings],
        spark: SparkSession,
        name: str,
        tables: Mapping[str, dict[str, Any]],
        patterns: Sequence[dict[str, Any]] = (),
        **sections: Any,
    ) -> None:
        self.spark, self.name = spark, f"{name}_{int(time.time())}"  # topics of its own, also on servers that an earlier session left running
        self._make_settings = make_settings
        self._given = [*({"name": f"{self.name}.{table}"} | options for table, options in [*tables.items(), (_HEARTBEAT, {})]), *patterns]
        self.configure(**sections)
        with mysql.connect(self.local, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
        self.run(f"CREATE TABLE {_HEARTBEAT} (id INT PRIMARY KEY AUTO_INCREMENT)")

    def configure(self, **sections: Any) -> None:
        self.settings = self._make_settings(self.name, self._given, **({"stream": {"seconds_between_batches": 0.5}} | sections))

    @property
    def local(self) -> Local:
        assert self.settings.local is not None
        return self.settings.local

    def run(self, *statements: str) -> tuple[tuple[Any, ...], ...]:
        """In the pipeline's database, each in a transaction of its own."""
        with mysql.connect(self.local, database=self.name, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def state(self) -> State:
        with Progress(self.settings) as progress:
            return progress.read()

    def full_load(self, *tables: str, replace: bool = False) -> None:
        """Load these tables (all by default)."""
        names = [table if "." in table else f"{self.name}.{table}" for table in tables]
        fix_position(self.settings, begin_anew=replace)
        relays = plan_relays(self.settings, names, run=f"{time.time()}", replace=replace)
        for relay in relays:
            scan_relay(self.settings, relay)
        load.load_tables(self.spark, self.settings, names or list(self.state().tables))

    @contextmanager
    def streaming(self) -> Iterator[Stream]:
        self._stream = Stream(self.spark, self.settings)
        self._stream.start()
        try:
            yield self._stream
        finally:
            self._stream.stop()

    def wait(self, patience: float = 180.0, stopped: Collection[str] = (), also: Collection[str] = ()) -> None:
        """Until the stream has applied all that MySQL has committed so far, to all loaded tables but the `stopped`; and to `also`, which come meanwhile."""
        self.run(f"INSERT INTO {_HEARTBEAT} VALUES ()")
        with binlog.connect(self.settings) as connection:
            end = binlog.position(connection)
        deadline, capture = time.monotonic() + patience, Connector(self.settings, capture_name(self.settings))
        while (at := capture.position()) is None or at < end:
            capture.check()
            assert time.monotonic() < deadline, f"capture stands at {at}, not {end}"
            self.run(f"INSERT INTO {_HEARTBEAT} VALUES ()")  # a transaction is behind the connector when it comes to the next one
            time.sleep(0.3)
        ends = {
            table: topics.end_offsets(self.settings, [topic])[topic]
            for table in {*also, *(name for name, record in self.state().tables.items() if record.state != "planned")}
            if table.partition(".")[2] not in stopped
            for topic in [self._topic(table)]
        }
        while not ((newest := self.state().stream) and all(newest.tables.get(table, {}).get("offset", -1) >= end for table, end in ends.items())):
            assert self._stream.error is None, self._stream.error
            failed = {table: record.error for table, record in self.state().tables.items() if record.state == "stopped"}
            assert {table.partition(".")[2] for table in failed} <= set(stopped), failed
            assert time.monotonic() < deadline, f"the stream stands at {newest}, not {ends}"
            time.sleep(0.3)

    def lake(self, table: str, *key: str) -> DataFrame:
        return store.read(self.spark, store.lake_table(self.settings, f"{self.name}.{table}", key or ("id",)))

    def _topic(self, table: str) -> str:
        return topics.data(topics.capture_prefix(self.settings), table)
