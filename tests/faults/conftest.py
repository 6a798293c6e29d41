"""A pipeline that is written to, streamed by a driver of its own and read, while the faults happen; after each of them it must be whole.

    faulty      the pipeline, loaded and streaming
    fault       marker: what happens, in which phase, how it is made, what is expected. docs/faults.md lists them (`make faults` writes it)

Whole: the lake equals MySQL, MySQL holds every write that was acknowledged, and no reader of the lake ever saw a row go back to an older version, or a
deleted row come back.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pymysql
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from lakerelay import airflow_tasks, config, failpoint
from lakerelay.capture import topics
from lakerelay.config import Settings
from lakerelay.lake import store
from lakerelay.local import mysql
from lakerelay.local import spark as spark_settings
from lakerelay.local import stack as embedded
from lakerelay.local.process import Process
from tests.conftest import PROJECT, MakeSettings
from tests.integration.pipeline import Pipeline

TABLES = {"cow": {"type": "cow"}, "mor": {"type": "mor", "partition": "p"}}
_COLUMNS = "id INT PRIMARY KEY, version BIGINT NOT NULL, p INT NOT NULL, v VARCHAR(40)"
_ROWS = 300


class Ledger(threading.Thread):
    """Writes without a pause, and notes what MySQL acknowledged: table → id → version, None once it is deleted. A version is higher than all before it."""

    def __init__(self, settings: Settings, database: str) -> None:
        super().__init__(daemon=True)
        self._settings, self._database, self._random = settings, database, random.Random(7)
        self._version, self._rests, self._ended = 0, threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self.acknowledged: dict[str, dict[int, int | None]] = {name: {} for name in TABLES}
        self._doubtful: set[tuple[str, int]] = set()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with mysql.connect(self._settings.local, database=self._database) as connection, connection.cursor() as cursor:
                    while not self._ended.is_set():
                        with self._writing:
                            self._write(connection, cursor)
                        time.sleep(0.03)
            except (pymysql.MySQLError, OSError):
                time.sleep(0.3)  # the server is away: part of the test

    def _write(self, connection: Any, cursor: Any) -> None:
        changes = {(name, self._random.randrange(_ROWS)): self._random.choice(["write", "write", "write", "delete"]) for name in TABLES for _ in range(3)}
        new: dict[tuple[str, int], int | None] = {}
        self._doubtful |= changes.keys()  # until the server says that it is committed
        for (name, id_), what in changes.items():
            self._version += 1
            new[name, id_] = self._version if what == "write" else None
            if what == "write":
                cursor.execute(f"REPLACE INTO {name} VALUES (%s, %s, %s, 'of {self._version}')", (id_, self._version, self._version % 3))
            else:
                cursor.execute(f"DELETE FROM {name} WHERE id = %s", (id_,))
        connection.commit()
        for (name, id_), version in new.items():
            self.acknowledged[name][id_] = version
        self._doubtful -= changes.keys()

    def pause(self) -> None:
        self._writing.acquire()

    def go_on(self) -> None:
        self._writing.release()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def missing(self, name: str, source: dict[int, int]) -> list[str]:
        """Acknowledged writes that MySQL itself does not hold, those in doubt aside."""
        sure = {id_: version for id_, version in self.acknowledged[name].items() if (name, id_) not in self._doubtful}
        return [f"{name} {id_}: {version} acknowledged, {source.get(id_)} found" for id_, version in sure.items() if source.get(id_) != version]


class Reader(threading.Thread):
    """Reads the lake again and again, and notes each row that went back."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._ended = pipeline, threading.Event()
        self._floor: dict[str, dict[int, float]] = {name: {} for name in TABLES}  # id → no version below it may be seen again
        self.backwards: list[str] = []
        self.reads = 0

    def run(self) -> None:
        while not self._ended.is_set():
            for name, floor in self._floor.items():
                self._look(name, floor, lake_rows(self._pipeline, name))
            self.reads += 1
            time.sleep(0.5)

    def _look(self, name: str, floor: dict[int, float], now: dict[int, int]) -> None:
        self.backwards += [f"{name} {id_}: {version} after {floor[id_]}" for id_, version in now.items() if version < floor.get(id_, 0)]
        gone = {id_: int(version) + 0.5 for id_, version in floor.items() if id_ not in now}  # it may come back, but not as it was
        floor.update(now | gone)

    def stop(self) -> None:
        self._ended.set()
        self.join()


class Driver:
    """A job as Airflow's task starts it, the stream by default: spark-submit, which starts Python."""

    def __init__(self, pipeline: "Breakable", *job: str, dies: str = "", java: str = "") -> None:
        """`dies`: a point of lakerelay.failpoint; `java`: an option of its JVM, stronger than spark-defaults.conf's."""
        conf = spark_settings.write(pipeline.local)
        environment = os.environ | {config.SETTINGS_VARIABLE: str(pipeline.file), "SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": sys.executable}
        environment |= {"_JAVA_OPTIONS": java} if java else {}
        environment |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT), failpoint.VARIABLE: dies}
        self.log = pipeline.file.with_suffix(f".{time.time_ns()}.log")
        program, *arguments = job or ("stream_changes",)
        command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", config.SPARK_JOBS / f"{program}.py", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def error(self) -> str | None:
        return None if self.process.poll() is None else self.text[-3000:]

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, words: str, seconds: float = 90.0) -> str:
        """Its log, once it has these words."""
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, f"{words!r} is not in\n{self.text[-3000:]}"
            time.sleep(0.2)
        return self.text

    def ended(self, seconds: float = 90.0) -> str:
        """Its log, once it has ended by itself."""
        self.process.wait(seconds)
        return self.text

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, what: int) -> None:
        """To all that it started."""
        os.killpg(self.process.pid, what)

    def kill(self) -> None:
        """At once, and all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Breakable(Pipeline):
    """A pipeline whose servers can be broken."""

    @property
    def file(self) -> Path:
        """Its settings."""
        return self.local.folder / "settings" / f"{self.name}.toml"

    def server(self, name: str) -> psutil.Process:
        found = Process(name, self.local.folder).find()
        assert found is not None
        return found

    def kill(self, server: str) -> None:
        process = self.server(server)
        process.kill()
        process.wait(20)

    def up(self, *servers: str) -> None:
        embedded.up(self.settings, servers, say=lambda _: None)

    @contextmanager
    def denied(self) -> Iterator[None]:
        """Debezium's account cannot log in, and loses the connections that it has."""
        user = f"'{self.settings.source.user}'@'127.0.0.1'"
        self.run(f"ALTER USER {user} ACCOUNT LOCK")
        try:
            for number, *_ in self.run(f"SELECT id FROM information_schema.processlist WHERE user = '{self.settings.source.user}'"):
                self.run(f"KILL {number}")
            yield
        finally:
            self.run(f"ALTER USER {user} ACCOUNT UNLOCK")

    def ask_kafka(self, what: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> None:
        """Until Kafka has done it."""
        admin = AdminClient({"bootstrap.servers": self.settings.kafka.bootstrap_servers})  # which must outlive the answers
        for future in what(admin).values():
            future.result()

    @contextmanager
    def topic_config(self, topic: str, option: str, value: str) -> Iterator[None]:
        def set_to(wanted: str) -> None:
            entry = ConfigEntry(option, wanted, incremental_operation=AlterConfigOpType.SET)
            self.ask_kafka(lambda admin: admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]))

        set_to(value)
        try:
            yield
        finally:
            set_to(str(topics.LARGEST))


class Faulty(Breakable):
    """The pipeline with its writer, its reader and its driver."""

    def __init__(self, make_settings: MakeSettings, spark: SparkSession) -> None:
        super().__init__(make_settings, spark, "faults", TABLES, stream={"seconds_between_batches": 1.0})
        self.run(*(f"CREATE TABLE {name} ({_COLUMNS})" for name in TABLES))
        self.ledger = Ledger(self.settings, self.name)
        self.ledger.start()
        self.full_load()
        self._stream: Any = self  # whose error `wait` looks at
        self._retries = 0
        self._drivers: list[Driver] = []
        self.reader = Reader(self)
        self.reader.start()
        self.start()

    def start(self, dies: str = "", java: str = "") -> Driver:
        self.driver = Driver(self, dies=dies, java=java)
        self._drivers.append(self.driver)
        return self.driver

    @property
    def error(self) -> str | None:
        """Of the stream, when Airflow would have tried it often enough."""
        if self.driver.error and self._retries:
            self._retries -= 1
            self.start()
        return self.driver.error

    def restart(self) -> Driver:
        self.driver.kill()
        return self.start()

    def until_stopped(self, *tables: str, why: str) -> None:
        """Until exactly these are, for this reason."""
        deadline = time.monotonic() + 120
        while set(stopped := self.stopped()) != set(tables):
            assert time.monotonic() < deadline, f"{stopped}\n{self.driver.text[-3000:]}"
            time.sleep(0.5)
        assert all(why in error for error in stopped.values()), stopped

    def stopped(self) -> dict[str, str]:
        """Table → why."""
        return {name.partition(".")[2]: record.error for name, record in self.state().tables.items() if record.state == "stopped"}

    def load_again(self) -> str:
        """The stopped tables; returns as `require_whole`."""
        self.full_load(*self.stopped(), replace=True)
        return self.require_whole()

    def require_whole(self) -> str:
        """Wait until all is applied, and compare; returns what was compared."""
        self.ledger.pause()
        self._retries = int(airflow_tasks.DEFAULT_ARGS["retries"])
        try:
            self.wait(patience=240)
            compared = []
            for name in TABLES:
                source, lake = dict(self.run(f"SELECT id, version FROM {name}")), lake_rows(self, name)
                assert lake == source
                assert self.ledger.missing(name, source) == []
                compared.append(f"{name} {len(lake)} rows")
            if tried := int(airflow_tasks.DEFAULT_ARGS["retries"]) - self._retries:
                compared.append(f"tried again: {tried}")
            assert self.reader.is_alive()
            assert self.reader.backwards == []
        finally:
            self.ledger.go_on()
        return ", ".join(compared)

    def close(self) -> None:
        self.ledger.stop()
        self.reader.stop()
        for driver in self._drivers:
            driver.kill()


def lake_rows(pipeline: Pipeline, name: str) -> dict[int, int]:
    found = store.read(pipeline.spark, store.lake_table(pipeline.settings, f"{pipeline.name}.{name}", ("id",))).select("id", "version").collect()
    rows = {row["id"]: row["version"] for row in found}
    assert len(rows) == len(found), "a key stands twice in the lake"
    return rows


@pytest.fixture(scope="module")
def faulty(make_settings: MakeSettings, spark: SparkSession) -> Iterator[Faulty]:
    with closing(Faulty(make_settings, spark)) as pipeline:
        yield pipeline
