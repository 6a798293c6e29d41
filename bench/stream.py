"""Measure the stream: changes to ten tables (60 % updates, 30 % inserts, 10 % deletes), MySQL → Hudi, by the job that the DAG stream_changes runs.

    python bench/stream.py --type mor --rate 1000 --seconds 120

Everything runs on this machine, for COW and for MOR in turn. Two figures each:

* changes per second: the changes stand in the binlog; from the moment on which Debezium and the stream start until the last is committed to the lake.
* delay: from a statement on MySQL, at a steady rate, to the end of the Hudi commit that holds its rows. Of the rows that stand at the end.

Prints a table, and as its last line the same as one JSON object. Ends with an error when lake and source differ.
"""

import argparse
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import reduce
from random import Random

import stack  # beside this file
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakerelay.capture import bodies
from lakerelay.capture.binlog import MySQL
from lakerelay.capture.connector import Connector
from lakerelay.config import Settings
from lakerelay.lake import session, store, verify

TABLES = tuple(f"bench.t{number}" for number in range(10))
COLUMNS = "id BIGINT PRIMARY KEY, number INT NOT NULL, amount DECIMAL(15, 2) NOT NULL, text VARCHAR(100) NOT NULL, changed_at DATETIME(6) NOT NULL"
VALUES = "id % 1000, id / 100, REPEAT(MD5(id), 2), UTC_TIMESTAMP(6)"  # of the columns behind id
_LINE = re.compile(r"^batch=(?P<batch>\d+) table=(?P<table>\S+) events=(?P<events>[\d,]+) seconds=(?P<seconds>[\d.]+) .*commit=(?P<commit>\d+)")


@dataclass
class Source:
    """Ten tables with dense keys: new rows behind the last key, deletes at the first, updates anywhere between."""

    connection: MySQL
    rows: int
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(1))

    def create(self) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
            cursor.execute(f"SET SESSION cte_max_recursion_depth = {self.rows}")
        for table in TABLES:
            self._run(f"DROP TABLE IF EXISTS {table}")
            self._run(f"CREATE TABLE {table} ({COLUMNS})")
            self._insert(table, 1, self.rows)
            self.spans[table] = (1, self.rows)

    def change(self, table: str, changes: int) -> None:
        """One transaction of so many changed rows."""
        first, last = self.spans[table]
        updated, deleted = changes * 6 // 10, changes // 10
        inserted = changes - updated - deleted
        low = self.random.randint(first + deleted, last - updated)
        self._run("BEGIN")
        done = self._run(
            f"UPDATE {table} SET number = number + 1, amount = amount + 0.01, changed_at = UTC_TIMESTAMP(6) WHERE id BETWEEN {low} AND {low + updated - 1}"
        )
        done += self._run(f"DELETE FROM {table} WHERE id < {first + deleted}")
        done += self._insert(table, last + 1, last + inserted)
        self._run("COMMIT")
        if done != changes:
            sys.exit(f"{table}: {done} rows changed, not {changes}")
        self.spans[table] = (first + deleted, last + inserted)

    def _insert(self, table: str, first: int, last: int) -> int:
        numbers = f"WITH RECURSIVE numbers (id) AS (SELECT {first} UNION ALL SELECT id + 1 FROM numbers WHERE id < {last})"
        return self._run(f"INSERT INTO {table} {numbers} SELECT id, {VALUES} FROM numbers")

    def _run(self, statement: str) -> int:
        with self.connection.cursor() as cursor:
            return cursor.execute(statement)


class Stream:
    """The stream's driver. `events`: changes taken up so far; `committed`: (table, commit) → when its line was printed, seconds since the epoch."""

    def __init__(self) -> None:
        self.events, self.batches = 0, 0
        self.committed: dict[tuple[str, str], float] = {}
        self._job = stack.spark_job("stream_changes")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._job.stdout or ():
            found = _LINE.match(line)
            if found is None:
                print(line, end="", flush=True)
                continue
            self.committed[found["table"], found["commit"]] = time.time()
            self.batches = int(found["batch"]) + 1
            self.events += int(found["events"].replace(",", ""))

    def wait(self, events: int) -> None:
        told = time.monotonic()
        while self.events < events:
            if self._job.poll() is not None:
                sys.exit("the stream ended")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{self.events:,} of {events:,} changes in the lake", flush=True)
            time.sleep(0.05)

    def stop(self) -> None:
        self._job.terminate()
        self._job.wait()
        self._thread.join()


def main() -> None:
    arguments = _arguments()
    figures: dict[str, object] = {"tables": len(TABLES), "rows_per_table": arguments.rows, "backlog": arguments.backlog, "rate": arguments.rate}
    for kind in arguments.type:
        figures |= {f"{kind}_{name}": value for name, value in _measure(kind, arguments).items()}
    figures["machine"] = stack.machine()
    stack.report(figures)


def _measure(kind: str, arguments: argparse.Namespace) -> dict[str, object]:
    backlog = arguments.backlog // 1000 * 1000
    tables = [{"name": table, "type": kind} for table in TABLES]
    with stack.pipeline(f"stream_{kind}", tables) as settings, stack.connection(settings) as connection, stack.Memory() as memory:
        source = Source(connection, arguments.rows)
        source.create()
        stack.full_load(settings, TABLES)
        capture = Connector(settings, bodies.capture_name(settings))
        capture.stop()
        for number in range(backlog // 1000):
            source.change(TABLES[number % len(TABLES)], 1000)
        began = time.time()
        capture.resume()
        stream = Stream()
        stream.wait(backlog)
        applied, batches, since = max(stream.committed.values()) - began, stream.batches, time.time()
        steady = _steady(source, arguments.rate, arguments.seconds)
        stream.wait(backlog + steady)
        stream.stop()
        spark = session.start("bench_stream")
        verify.verify_tables(spark, settings, TABLES)
        typical, rare = _delays(spark, settings, stream, since)
    return {
        "changes_per_second": round(backlog / applied),
        "delay_p50_seconds": round(typical, 2),
        "delay_p99_seconds": round(rare, 2),
        "steady_changes": steady,
        "steady_batches": stream.batches - batches,
        "peak_memory_gib": round(memory.peak / 2**30, 1),
    }


def _steady(source: Source, rate: int, seconds: int) -> int:
    """Transactions of ten changes, `rate` changes a second; returns how many changes there were."""
    began, done = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        if done < passed * rate:
            source.change(source.random.choice(TABLES), 10)
            done += 10
        else:
            time.sleep(0.002)
    return done


def _delays(spark: SparkSession, settings: Settings, stream: Stream, since: float) -> tuple[float, float]:
    """p50 and p99, seconds, over the rows that were changed after `since` (seconds since the epoch)."""
    ends = spark.createDataFrame([(table, commit, at) for (table, commit), at in stream.committed.items()], "name string, commit string, ended double")
    parts = [store.read(spark, store.lake_table(settings, table, ("id",))).withColumn("name", F.lit(table)) for table in TABLES]
    rows = reduce(DataFrame.unionByName, parts).select(
        "name", F.col("_hoodie_commit_time").alias("commit"), F.col("changed_at").cast("double").alias("changed")
    )
    delays = rows.where(F.col("changed") >= since).join(F.broadcast(ends), ["name", "commit"])
    typical, rare = delays.selectExpr("percentile(ended - changed, array(0.5, 0.99)) AS delays").collect()[0]["delays"]
    return typical, rare


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--type", choices=["cow", "mor"], action="append", help="both when not given")
    parser.add_argument("--rows", type=int, default=100_000, help="of a table before the changes")
    parser.add_argument("--backlog", type=int, default=500_000, help="changes that stand in the binlog")
    parser.add_argument("--rate", type=int, default=1000, help="changes per second in the steady part")
    parser.add_argument("--seconds", type=int, default=120, help="of the steady part")
    arguments = parser.parse_args()
    arguments.type = arguments.type or ["cow", "mor"]
    return arguments


if __name__ == "__main__":
    main()
