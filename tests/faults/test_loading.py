"""Faults while a table is loaded and written to: tried again as Airflow does, the lake is equal to MySQL in the end."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pymysql
import pytest
from pyspark.sql import SparkSession

from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.progress import RelayRecord
from lakerelay.capture.relay import scan_relay
from lakerelay.errors import LakerelayError
from lakerelay.lake import load, store
from lakerelay.local import mysql
from tests.conftest import MakeSettings
from tests.faults.conftest import Breakable, Driver

Seen = Callable[[str, object], None]
ROWS, RANGES = 400_000, 4


class Loading(Breakable):
    """One table of several relays, `big`, and a writer."""

    def __init__(self, make_settings: MakeSettings, spark: SparkSession) -> None:
        super().__init__(make_settings, spark, "loading", {"big": {}}, relay={"rows": ROWS // RANGES, "lanes": 1})
        self.run("CREATE TABLE big (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(100))")
        digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
        tables = ", ".join(f"({digits}) AS t{power}" for power in range(6))
        number = " + ".join(f"t{power}.d * {10**power}" for power in range(6))
        self.run(f"INSERT INTO big SELECT {number} AS id, 0, REPEAT('v', 80) FROM {tables} HAVING id < {ROWS}", "ANALYZE TABLE big")
        self.table, self._tried = f"{self.name}.big", 0
        self._ended, self._writing = threading.Event(), threading.Lock()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        numbers = random.Random(1)
        while not self._ended.is_set():
            try:
                with mysql.connect(self.local, database=self.name, autocommit=True) as connection, connection.cursor() as cursor:
                    while not self._ended.is_set():
                        with self._writing:
                            id_ = numbers.randrange(ROWS + 1000)
                            cursor.execute("DELETE FROM big WHERE id = %s" if id_ % 7 == 0 else f"REPLACE INTO big VALUES (%s, {id_ + 1}, 'written')", (id_,))
                        time.sleep(0.02)
            except (pymysql.MySQLError, OSError):
                time.sleep(0.3)

    def close(self) -> None:
        self._ended.set()
        self._writer.join()

    def plan(self) -> list[str]:
        fix_position(self.settings)
        self._tried = 0
        return plan_relays(self.settings, [self.table], run=f"{time.time()}", replace=True)

    def _scan_all(self, relays: list[str]) -> None:
        """As tasks of Airflow's, which are tried again; an error that is not to be tried again is what a person would clear a task for."""
        for relay in relays:
            while self.relay(relay).state != "scanned":
                try:
                    scan_relay(self.settings, relay)
                except LakerelayError:
                    self._tried += 1
                    assert self._tried < 6
                    time.sleep(5)

    @contextmanager
    def scanning(self) -> Iterator[None]:
        """All relays one after another; within, the second is being read."""
        relays = self.plan()
        assert len(relays) == RANGES
        with ThreadPoolExecutor(1) as pool:
            scans = pool.submit(self._scan_all, relays)
            deadline = time.monotonic() + 120
            while [self.relay(relay).state for relay in relays[:2]] != ["scanned", "scanning"] or self.relay(relays[1]).low is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1.0)
            yield
            scans.result(timeout=400)
        self.read_again = sum(self.relay(relay).attempt > 1 for relay in relays)

    def relay(self, relay: str) -> RelayRecord:
        return self.state().relays[relay]

    def load(self) -> None:
        load.load_tables(self.spark, self.settings, [self.table])

    def require_equal(self) -> str:
        """Stream what was written meanwhile, and compare."""
        with self._writing:
            with self.streaming():
                self.wait()
            found = store.read(self.spark, store.lake_table(self.settings, self.table, ("id",))).select("id", "n", "v").collect()
            assert sorted(map(tuple, found)) == list(self.run("SELECT id, n, v FROM big ORDER BY id"))
        return f"{len(found):,} rows equal; tried again: {self._tried}"


@pytest.fixture(scope="module")
def loading(make_settings: MakeSettings, spark: SparkSession) -> Iterator[Loading]:
    with closing(Loading(make_settings, spark)) as pipeline:
        yield pipeline


def _finish(loading: Loading, record_property: Seen) -> None:
    assert loading.read_again <= 1
    loading.load()
    record_property("seen", f"{loading.read_again} of {RANGES} ranges read again; {loading.require_equal()}")


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param(
            ["connect"],
            marks=pytest.mark.fault(
                "F-10p", "loading", "`kill -9` of the Kafka Connect worker while the second of four ranges is read", "only that range is read again"
            ),
        ),
        pytest.param(
            ["mysql"],
            marks=pytest.mark.fault("F-20p", "loading", "`kill -9` of mysqld while the second of four ranges is read", "only that range is read again"),
        ),
        pytest.param(
            ["kafka", "connect"],  # which may end without Kafka
            marks=pytest.mark.fault(
                "F-40p", "loading", "`kill -9` of the Kafka broker while the second of four ranges is read", "only that range is read again"
            ),
        ),
    ],
)
@pytest.mark.long
def test_a_server_is_killed(loading: Loading, servers: list[str], record_property: Seen) -> None:
    """The first of them; then all are up."""
    with loading.scanning():
        loading.kill(servers[0])
        loading.up(*servers)
    _finish(loading, record_property)


@pytest.mark.fault("F-21p", "loading", "mysqld is stopped for 40 s (SIGSTOP) while the second of four ranges is read", "waits, then goes on")
@pytest.mark.long
def test_mysql_stands_still(loading: Loading, record_property: Seen) -> None:
    with loading.scanning():
        mysqld = loading.server("mysql")
        mysqld.suspend()
        time.sleep(40)
        mysqld.resume()
    _finish(loading, record_property)


@pytest.mark.fault("F-33p", "loading", "`kill -9` of load_tables while it stages, and while it writes the table", "it goes on; the table appears by one commit")
@pytest.mark.long
def test_the_load_is_killed(loading: Loading, record_property: Seen) -> None:
    with loading.scanning():
        first = Driver(loading, "load_tables", "--tables", loading.table)
        first.until("relay staged")
        first.kill()
    second = Driver(loading, "load_tables", "--tables", loading.table)
    second.until("relay staged already")
    time.sleep(10)
    second.kill()
    _finish(loading, record_property)


@pytest.mark.fault("F-34p", "loading", "load_tables dies between the commit and its record", "the commit is found, and not made again")
@pytest.mark.long
def test_the_load_dies_behind_its_commit(loading: Loading, record_property: Seen) -> None:
    with loading.scanning():
        pass
    Driver(loading, "load_tables", "--tables", loading.table, dies=f"loaded {loading.table}").ended(180)
    table = store.lake_table(loading.settings, loading.table, ("id",))
    made = store.newest_commit(loading.spark, table)
    assert loading.state().tables[loading.table].state == "planned"
    loading.load()
    assert made
    assert loading.state().tables[loading.table].commit == made.instant
    record_property("seen", loading.require_equal())
