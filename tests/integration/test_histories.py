"""Random tables with random histories of statements, before a full load, during it and while streaming: all of them end equal to MySQL.

hypothesis draws the histories; one pipeline runs them all, side by side, for a run takes a minute and a history milliseconds.
`LAKERELAY_TEST_SEED=… make test ARGS=tests/integration/test_histories.py` draws others; the seed of a failure is in its message.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pymysql
import pytest
from pyspark.sql import SparkSession

from lakerelay.capture.position import fix_position
from lakerelay.config import Settings
from lakerelay.errors import LakerelayError
from lakerelay.local import mysql
from tests.integration import canonical
from tests.integration.histories import History, drawn
from tests.integration.pipeline import Pipeline

SEED = int(os.environ.get("LAKERELAY_TEST_SEED") or 1)
TABLES = 25
_ATTEMPTS = 3  # of a load: a relay whose table is altered under its eyes fails, and Airflow tries again


class Run(Pipeline):
    """`refused`: statements that MySQL did not take, such as an INSERT of a key that is there; `done`: those that it took."""

    def __init__(self, make_settings: Callable[..., Settings], spark: SparkSession, found: dict[str, History]) -> None:
        super().__init__(make_settings, spark, "histories", {name: history.settings for name, history in found.items()})
        self.histories, self.refused, self.done = found, 0, 0
        self.run("SET sql_mode = ''", *(history.table.replace("{t}", name) for name, history in found.items()))
        self.write(0)
        fix_position(self.settings)  # a table must not be altered while Debezium reads the schemas for the first time
        writer = threading.Thread(target=self.write, args=[1])
        writer.start()
        self.load(_ATTEMPTS)
        writer.join()
        with self.streaming():
            self.write(2)
            self.wait(stopped=found)
            self.stopped = {name: record.error for name in found if (record := self.state().tables[f"{self.name}.{name}"]).state == "stopped"}
            self.wait(stopped=self.stopped)

    def load(self, attempts: int) -> None:
        try:
            self.full_load()
        except LakerelayError as error:
            if attempts == 1 or not error.retryable:
                raise
            self.load(attempts - 1)

    def write(self, phase: int) -> None:
        """A transaction of each table in turn."""
        turns = zip_longest(*([(name, transaction) for transaction in history.phases[phase]] for name, history in self.histories.items()))
        with mysql.connect(self.settings.local, database=self.name) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            for name, transaction in (each for turn in turns for each in turn if each):
                for statement in transaction:
                    try:
                        cursor.execute(statement.replace("{t}", name))
                        self.done += 1
                    except pymysql.MySQLError:
                        self.refused += 1

    def differences(self, name: str) -> list[str]:
        with mysql.connect(self.settings.local, conv={}) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            table = canonical.read_source(cursor, self.name, name)
        if name in self.stopped:
            return [f"{table.name} is stopped: {self.stopped[name]}"]
        return canonical.compare(self.spark, f"{self.settings.lake.path}/{self.name}/{name}", table, self.histories[name].settings["type"])


@pytest.fixture(scope="module")
def run(make_settings: Callable[..., Settings], spark: SparkSession) -> Run:
    found = {f"t{number}": history for number, history in enumerate(drawn(SEED, TABLES))}
    return Run(make_settings, spark, found)


def test_every_history_ends_equal(run: Run) -> None:
    with ThreadPoolExecutor(4) as pool:
        lines = dict(zip(run.histories, pool.map(run.differences, run.histories), strict=True))
    told = ["\n".join([*wrong, str(run.histories[name]).replace("{t}", name)]) for name, wrong in lines.items() if wrong]
    assert not told, "\n\n".join([f"LAKERELAY_TEST_SEED={SEED}: {len(told)} of {len(lines)} tables", *told])


def test_most_statements_are_taken_by_mysql(run: Run) -> None:
    """Else the histories would say little."""
    assert run.done > 3 * run.refused
