"""Faults of the network and the disk while a table is loaded and streamed."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakerelay.lake import store
from tests.conftest import MakeSettings
from tests.faults.conftest import Breakable, Driver
from tests.faults.proxy import Proxy

Seen = Callable[[str, object], None]


class Simple(Breakable):
    """One table, `t`, written to by the test itself."""

    def create(self) -> None:
        self.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT)", "INSERT INTO t (v) VALUES ('first')")

    def write(self, rows: int) -> None:
        for _ in range(rows):
            self.run("INSERT INTO t (v) SELECT UUID()", "UPDATE t SET v = 'changed' ORDER BY id DESC LIMIT 1")

    def rows(self) -> list[tuple[object, ...]]:
        found = store.read(self.spark, store.lake_table(self.settings, f"{self.name}.t", ("id",))).selectExpr("id", "md5(v)")
        return sorted(tuple(row) for row in found.collect())

    def require_equal(self) -> str:
        with self.streaming():
            self.wait(patience=300)
        assert self.rows() == list(self.run("SELECT id, MD5(v) FROM t ORDER BY id"))
        return f"{len(self.rows())} rows equal"


@pytest.fixture
def behind_proxy(make_settings: MakeSettings, spark: SparkSession) -> Iterator[tuple[Simple, Proxy]]:
    """A pipeline that reaches MySQL through a proxy alone."""
    port = make_settings("port", [{"name": "a.b"}]).source.port
    with Proxy(port) as proxy:
        pipeline = Simple(make_settings, spark, "network", {"t": {}}, source={"port": proxy.port})
        pipeline.create()
        yield pipeline, proxy


@pytest.mark.fault("F-26a", "loading, streaming", "each packet to and from MySQL comes 100 ms late", "slower, and equal")
@pytest.mark.long
def test_a_slow_network(behind_proxy: tuple[Simple, Proxy], record_property: Seen) -> None:
    pipeline, proxy = behind_proxy
    proxy.delay = 0.05
    pipeline.full_load()
    pipeline.write(20)
    record_property("seen", pipeline.require_equal())


@pytest.mark.fault("F-26b", "streaming", "connections to MySQL are reset after some 5 s, three times", "capture connects again, and goes on")
@pytest.mark.long
def test_connections_are_reset(behind_proxy: tuple[Simple, Proxy], record_property: Seen) -> None:
    pipeline, proxy = behind_proxy
    pipeline.full_load()
    proxy.lifetime = 5.0
    driver = Driver(pipeline)
    began, before = time.monotonic(), proxy.connections
    while proxy.connections < before + 3:  # Debezium looks at its connection every connect.keep.alive.interval.ms
        assert time.monotonic() < began + 300
        pipeline.write(1)
        time.sleep(0.5)
    proxy.lifetime = 0.0
    driver.kill()
    record_property("seen", pipeline.require_equal())


@pytest.mark.fault("F-26c", "streaming", "connections to MySQL stay open and bring nothing for 90 s", "the stream's log says so; it goes on")
@pytest.mark.long
def test_connections_that_bring_nothing(behind_proxy: tuple[Simple, Proxy], record_property: Seen) -> None:
    pipeline, proxy = behind_proxy
    pipeline.full_load()
    driver = Driver(pipeline)
    driver.until("stream starts")
    proxy.frozen = True
    pipeline.write(5)
    driver.until("hears nothing from MySQL", 150)
    proxy.frozen = False
    driver.kill()
    record_property("seen", pipeline.require_equal())


@pytest.fixture
def small_disk(make_settings: MakeSettings, spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Simple, Path]]:
    """A lake on a disk of 3 MB. Mounting one needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)], check=True)
    try:
        yield Simple(make_settings, spark, "disk", {"t": {}}, lake={"path": str(tmp_path)}), tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.fault("F-38", "committing", "the lake's disk is full", "the stream fails; the table stays readable; with room again it goes on")
@pytest.mark.long
def test_a_full_disk(small_disk: tuple[Simple, Path], record_property: Seen) -> None:
    pipeline, folder = small_disk
    pipeline.create()
    pipeline.full_load()
    driver = Driver(pipeline)
    rows = "WITH RECURSIVE n AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM n WHERE a < 900) SELECT SHA2(CONCAT(RAND(), a), 512) FROM n"
    deadline = time.monotonic() + 200
    while driver.error is None:
        assert time.monotonic() < deadline
        pipeline.run(f"INSERT INTO t (v) {rows}")
        time.sleep(1)
    assert "No space left on device" in driver.text
    before = pipeline.rows()
    source = dict(pipeline.run("SELECT id, v FROM t"))
    assert all(source[id_] == v for id_, v in before)
    subprocess.run(["mount", "-o", "remount,size=500m", str(folder)], check=True)
    record_property("seen", f"{len(before)} rows while it was full; {pipeline.require_equal()}")


@pytest.mark.fault("F-37", "streaming", "the driver's memory does not suffice for 20 rows of 7 MB", "it ends; with more memory it goes on")
@pytest.mark.long
def test_too_little_memory(make_settings: MakeSettings, spark: SparkSession, record_property: Seen) -> None:
    pipeline = Simple(make_settings, spark, "memory", {"t": {}})
    pipeline.create()
    pipeline.full_load()
    pipeline.run(*["INSERT INTO t (v) SELECT REPEAT(UUID(), 200000)"] * 20)
    assert "OutOfMemoryError" in Driver(pipeline, java="-Xmx560m").ended(240)
    driver = Driver(pipeline)
    driver.until("table=" + pipeline.name, 240)
    driver.kill()
    record_property("seen", pipeline.require_equal())
