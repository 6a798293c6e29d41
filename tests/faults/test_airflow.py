"""Faults of Airflow's own processes, while it loads and streams a table of the stack's own pipeline."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from lakerelay.capture.progress import Progress, State
from lakerelay.lake import store
from lakerelay.local import mysql
from lakerelay.local import stack as embedded
from lakerelay.local.airflow_api import AirflowApi
from lakerelay.local.process import Process
from tests.conftest import Stack

Seen = Callable[[str, object], None]
TABLE = "cow_airflow.t"
PARTS = ("airflow", "airflow-scheduler", "airflow-dags")


class Operated:
    """The table, in the hands of Airflow."""

    def __init__(self, stack: Stack, api: AirflowApi, spark: SparkSession) -> None:
        self.stack, self.api, self.spark = stack, api, spark
        numbers = "WITH RECURSIVE n AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM n WHERE a < 90000) SELECT a, 'first' FROM n"
        self.run("DROP DATABASE IF EXISTS cow_airflow", "CREATE DATABASE cow_airflow", f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, v VARCHAR(20))")
        # The other pattern of the stack's own pipeline has to match a table too.
        self.run("DROP DATABASE IF EXISTS mor_airflow", "CREATE DATABASE mor_airflow", "CREATE TABLE mor_airflow.t (id INT PRIMARY KEY)")
        self.run("SET cte_max_recursion_depth = 100000", f"INSERT INTO {TABLE} {numbers}")
        for dag in ("full_load", "stream_changes"):
            api.wait_for_dag(dag)

    def run(self, *statements: str) -> tuple[tuple[Any, ...], ...]:
        with mysql.connect(self.stack.local) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def state(self) -> State:
        with Progress(self.stack.settings) as progress:
            return progress.read()

    def until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.state()
            time.sleep(1)

    def equal(self) -> bool:
        rows = store.read(self.spark, store.lake_table(self.stack.settings, TABLE, ("id",))).select("id", "v").collect()
        return {tuple(row) for row in rows} == set(self.run(f"SELECT id, v FROM {TABLE}"))

    def drivers(self) -> list[psutil.Process]:
        """The JVMs of running stream_changes."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if process.info["name"] == "java" and "stream_changes.py" in line:
                found.append(process)
        return found

    def end_stream(self) -> None:
        self.api.pause("stream_changes")
        for run in self.api.runs("stream_changes"):
            if run["state"] in ("queued", "running"):
                self.api.set_state("stream_changes", run["dag_run_id"], "failed")
        _kill(*self.drivers())


def _kill(*processes: psutil.Process) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):  # ended with one of the others
            each.kill()
    psutil.wait_procs(processes, timeout=20)


@pytest.fixture(scope="module")
def operated(stack: Stack, airflow: AirflowApi, spark: SparkSession) -> Iterator[Operated]:
    found = Operated(stack, airflow, spark)
    try:
        yield found
    finally:
        found.end_stream()


@pytest.mark.fault("F-31", "loading", "`kill -9` of Airflow's API server, scheduler and DAG processor", "the run goes on, by a clear at most")
@pytest.mark.long
def test_airflow_is_killed(operated: Operated, record_property: Seen) -> None:
    api, seen = operated.api, "went on by itself"
    run = api.trigger("full_load", {"tables": [TABLE], "replace": True})
    operated.until(lambda: any(task["task_id"] == "scan_relay" and task["state"] == "running" for task in api.tasks("full_load", run)))
    for part in PARTS:
        process = Process(part, operated.stack.local.folder).find()
        assert process
        _kill(*process.children(recursive=True), process)
    embedded.up(operated.stack.settings)
    if api.wait("full_load", run, 900) == "failed":
        seen = "cleared once"
        api.clear("full_load", run, [task["task_id"] for task in api.tasks("full_load", run) if task["state"] == "failed"])
        assert api.wait("full_load", run, 600) == "success"
    assert operated.state().tables[TABLE].state == "loaded"
    assert operated.equal()
    record_property("seen", seen)


@pytest.mark.fault("F-30a", "streaming", "`kill -9` of the task's processes, whose driver stays", "tried again, the new driver fences the old one")
@pytest.mark.long
def test_a_task_of_airflow_is_killed(operated: Operated, record_property: Seen) -> None:
    operated.api.unpause("stream_changes")
    operated.until(lambda: operated.drivers())
    operated.run(f"INSERT INTO {TABLE} VALUES (-1, 'before')")
    operated.until(operated.equal)
    (orphan,) = operated.drivers()
    _kill(*(each for each in orphan.parents() if " ".join(each.cmdline()).startswith("airflow worker")))
    began = time.monotonic()
    operated.until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, 900)
    ended = time.monotonic() - began
    operated.run(f"INSERT INTO {TABLE} VALUES (-2, 'behind')")
    operated.until(operated.equal)
    record_property("seen", f"one driver after {ended:.0f} s")
