"""Twin drill: two pipelines on one source, one left alone, one broken at random moments; at the end both lakes must equal MySQL.

    python bench/drill.py --minutes 60 --write

After each fault a row is written to the table `marks`; recovered is when the lake of the broken pipeline has it. Prints a table; --write also writes
docs/drill.md, with a picture of the time line. Ends with an error when a lake differs.
"""

import argparse
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import stack  # beside this file
from hudi import HudiTableBuilder
from pyspark.sql import SparkSession

from lakerelay.capture import bodies
from lakerelay.capture.connector import Connector
from lakerelay.config import Settings
from lakerelay.lake import session, store

DOCS = stack.PROJECT / "docs"
TABLES = {"drill.orders": {"partition": "day"}, "drill.items": {"type": "cow"}, "drill.marks": {"type": "cow"}}
COLUMNS = "id INT PRIMARY KEY, version BIGINT NOT NULL, day INT NOT NULL, text VARCHAR(60)"
ROWS = 20_000
_EVENTS = re.compile(r"^batch=\d+ table=(?!drill\.marks)\S+ events=([\d,]+) ")
_PATIENCE = 600.0  # seconds for a recovery


class Writer(threading.Thread):
    """Transactions of five changes each: rows replaced, and a few deleted."""

    def __init__(self, settings: Settings, rate: int) -> None:
        super().__init__(daemon=True)
        self._settings, self._rate, self._random = settings, rate, random.Random(1)
        self.changes, self.ended = 0, threading.Event()

    def run(self) -> None:
        with stack.connection(self._settings, autocommit=False) as connection, connection.cursor() as cursor:
            while not self.ended.wait(5 / self._rate):
                table = self._random.choice(("orders", "items"))
                for _ in range(5):
                    self.changes, id_ = self.changes + 1, self._random.randrange(ROWS)
                    if self._random.random() < 0.1:
                        cursor.execute(f"DELETE FROM drill.{table} WHERE id = %s", (id_,))
                    else:
                        cursor.execute(f"REPLACE INTO drill.{table} VALUES (%s, %s, %s, 'of the drill')", (id_, self.changes, self.changes % 5))
                connection.commit()


class Twin:
    """A pipeline with its stream. `events`: changes that its commits have applied."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.events, self.starts = settings, 0, 0
        self._marks = f"{settings.lake.path}/drill/marks"
        self.start()

    def start(self) -> None:
        self.job = stack.spark_job("stream_changes", settings=self.settings)
        self.starts += 1
        threading.Thread(target=self._read, args=(self.job,), daemon=True).start()

    def _read(self, job: "stack.subprocess.Popen[str]") -> None:
        with (stack.FOLDER / "logs" / f"{self.settings.name}.log").open("a") as log:
            for line in job.stdout or ():
                log.write(line)
                log.flush()
                if found := _EVENTS.match(line):
                    self.events += int(found[1].replace(",", ""))

    def signal(self, number: int) -> None:
        os.killpg(self.job.pid, number)

    def kill(self) -> None:
        if self.job.poll() is None:
            self.signal(signal.SIGKILL)
        self.job.wait()

    def capture(self) -> Connector:
        return Connector(self.settings, bodies.capture_name(self.settings))

    def has(self, mark: int) -> bool:
        """Whether its lake has this row, as a reader without Spark sees it."""
        batches = HudiTableBuilder.from_base_uri(self._marks).build().read()
        return any(mark in batch.column("id").to_pylist() for batch in batches)

    def thrown_away(self) -> int:
        """Commits that were half done, and rolled back."""
        return len([*Path(self.settings.lake.path).glob("drill/*/.hoodie/timeline/*.rollback")])


def _killed(twin: Twin) -> None:
    twin.kill()
    twin.start()


def _python_killed(twin: Twin) -> None:
    for child in psutil.Process(twin.job.pid).children(recursive=True):
        child.kill()
    twin.start()


def _asleep(twin: Twin) -> None:
    twin.signal(signal.SIGSTOP)
    time.sleep(15)
    twin.signal(signal.SIGCONT)


def _second(twin: Twin) -> None:
    twin.start()


def _taken_over_asleep(twin: Twin) -> None:
    first = twin.job.pid
    os.killpg(first, signal.SIGSTOP)
    twin.start()
    time.sleep(20)
    os.killpg(first, signal.SIGCONT)


def _task_restarted(twin: Twin) -> None:
    httpx.post(f"{twin.settings.connect.url}/connectors/{bodies.capture_name(twin.settings)}/tasks/0/restart", timeout=60).raise_for_status()


def _capture_stopped(twin: Twin) -> None:
    twin.capture().stop()
    time.sleep(10)
    twin.capture().resume()


FAULTS: dict[str, Callable[[Twin], None]] = {
    "driver killed": _killed,
    "its Python killed, its JVM left": _python_killed,
    "driver asleep for 15 s": _asleep,
    "a second driver started": _second,
    "driver asleep while a second takes over": _taken_over_asleep,
    "capture task restarted": _task_restarted,
    "capture stopped for 10 s": _capture_stopped,
}


@dataclass(frozen=True)
class Recovery:
    """Seconds: `at` since the drill began, `took` from the fault until the lake had what was written behind it, `twin` in the pipeline that was left alone."""

    fault: str
    at: float
    took: float
    twin: float


class Drill:
    def __init__(self, calm: Twin, hit: Twin, seed: int) -> None:
        self.calm, self.hit, self._random = calm, hit, random.Random(seed)
        self._began, self._mark = time.monotonic(), 0
        self.recoveries: list[Recovery] = []

    def run(self, minutes: float) -> None:
        while (at := time.monotonic() - self._began) < minutes * 60:
            time.sleep(self._random.uniform(3, 25))
            fault = self._random.choice(list(FAULTS))
            began = time.monotonic()
            FAULTS[fault](self.hit)
            self.recover(fault, at, began)

    def recover(self, fault: str, at: float, began: float) -> None:
        """Wait until both lakes have a row that is written now."""
        self._mark += 1
        with stack.connection(self.hit.settings) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO drill.marks VALUES (%s)", (self._mark,))
        took: dict[Twin, float] = {}
        while len(took) < 2:
            for twin in (self.calm, self.hit):
                if twin not in took and twin.has(self._mark):
                    took[twin] = time.monotonic() - began
                if twin.job.poll() is not None:
                    twin.start()  # as Airflow would
            if time.monotonic() - began > _PATIENCE:
                sys.exit(f"not recovered from: {fault}")
            time.sleep(0.3)
        self.recoveries.append(Recovery(fault, at, took[self.hit], took[self.calm]))
        print(f"{at:6.0f} s  {fault:<40} recovered in {took[self.hit]:5.1f} s, the twin had it in {took[self.calm]:5.1f} s", flush=True)


def main() -> None:
    arguments = _arguments()
    with ExitStack() as held:
        calm, hit = (held.enter_context(stack.pipeline(name, _entries())) for name in ("calm", "hit"))
        _create(calm)
        for settings in (calm, hit):
            stack.full_load(settings, list(TABLES))
        writer = Writer(calm, arguments.rate)
        writer.start()
        twins = Twin(calm), Twin(hit)
        try:
            drill = Drill(*twins, arguments.seed)
            drill.run(arguments.minutes)
            writer.ended.set()
            writer.join()
            drill.recover("nothing: the end", arguments.minutes * 60, time.monotonic())
            time.sleep(10)
            rows = [_compared(session.start("drill"), settings) for settings in (calm, hit)]
        finally:
            for twin in twins:
                twin.kill()
        _report(arguments, drill, writer.changes, rows[0])


def _entries() -> list[dict[str, str]]:
    return [{"name": name} | options for name, options in TABLES.items()]


def _create(settings: Settings) -> None:
    numbers = f"WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < {ROWS - 1}) SELECT id, 0, id % 5, 'first' FROM n"
    statements = [
        "DROP DATABASE IF EXISTS drill",
        "CREATE DATABASE drill",
        "CREATE TABLE drill.marks (id INT PRIMARY KEY)",
        "INSERT INTO drill.marks VALUES (0)",
    ]
    statements += [f"SET SESSION cte_max_recursion_depth = {ROWS}"]
    statements += [statement for name in ("orders", "items") for statement in (f"CREATE TABLE drill.{name} ({COLUMNS})", f"INSERT INTO drill.{name} {numbers}")]
    with stack.connection(settings) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _compared(spark: SparkSession, settings: Settings) -> int:
    """How many rows are equal; ends the drill when one is not."""
    total = 0
    for name in ("drill.orders", "drill.items"):
        lake = store.read(spark, store.lake_table(settings, name, ("id",))).select("id", "version", "day", "text").collect()
        with stack.connection(settings) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, version, day, text FROM {name} ORDER BY id")
            if list(cursor.fetchall()) != sorted(map(tuple, lake)):
                sys.exit(f"{settings.name}: {name} differs from MySQL")
        total += len(lake)
    return total


def _report(arguments: argparse.Namespace, drill: Drill, changes: int, rows: int) -> None:
    faults = [each for each in drill.recoveries if each.fault in FAULTS]
    kinds = {fault: [each.took for each in faults if each.fault == fault] for fault in FAULTS}
    lines = [f"| {fault} | {len(took)} | {statistics.median(took):.0f} | {max(took):.0f} |" for fault, took in kinds.items() if took]
    twin = [each.twin for each in faults]
    text = f"""# The twin drill

Written by `python bench/drill.py --minutes {arguments.minutes:g} --write`. Two pipelines on one source; one is left alone, the other is broken at random
moments. The source is written to all the time ({arguments.rate} changes a second). After each fault a row is written: recovered is when a reader of the lake
sees it.

| fault | times | recovered in, s (median) | longest |
|---|---|---|---|
{chr(10).join(lines)}

{len(faults)} faults in {arguments.minutes:g} minutes; {changes:,} changes. At the end both lakes equal MySQL, row by row: {rows:,} rows.
The pipeline that was left alone showed such a row in {statistics.median(twin):.0f} s (median), {max(twin):.0f} s at most, on the same two cores.
Changes applied: {drill.calm.events:,} by the one left alone, {drill.hit.events:,} in the logs of the other, whose driver was started {drill.hit.starts} times
(a killed driver may not have told of its last commit). Half-done commits that were rolled back: {drill.hit.thrown_away()}, and {drill.calm.thrown_away()}.
Machine: {stack.machine()}.

![seconds to recover, by the time of the fault](drill.svg)
"""
    print(text)
    if arguments.write:
        (DOCS / "drill.md").write_text(text)
        (DOCS / "drill.svg").write_text(_picture(drill.recoveries, arguments.minutes * 60))


def _picture(recoveries: list[Recovery], seconds: float) -> str:
    """A bar for each fault, as high as the recovery took; behind it a dot for the twin."""
    width, height, left, bottom = 900, 260, 50, 30
    highest = max(each.took for each in recoveries)
    shades = dict(zip(FAULTS, ("#d62728", "#ff7f0e", "#9467bd", "#2ca02c", "#8c564b", "#1f77b4", "#17becf"), strict=True))

    def x(at: float) -> float:
        return left + at / seconds * (width - left - 10)

    def y(took: float) -> float:
        return height - bottom - took / highest * (height - bottom - 20)

    parts = [f'<line x1="{left}" y1="{y(0):.0f}" x2="{width}" y2="{y(0):.0f}" stroke="#888"/>']
    parts += [f'<text x="{x(minute * 60):.0f}" y="{height - 10}" text-anchor="middle">{minute} min</text>' for minute in range(0, int(seconds // 60) + 1, 10)]
    parts += [f'<text x="{left - 6}" y="{y(took) + 4:.0f}" text-anchor="end">{took:.0f} s</text>' for took in (highest / 2, highest)]
    parts += [
        f'<line x1="{x(each.at):.1f}" y1="{y(0):.1f}" x2="{x(each.at):.1f}" y2="{y(each.took):.1f}" stroke="{shades.get(each.fault, "#888")}" stroke-width="4">'
        f"<title>{each.fault}: {each.took:.0f} s</title></line>"
        f'<circle cx="{x(each.at):.1f}" cy="{y(each.twin):.1f}" r="2.5" fill="#888"/>'
        for each in recoveries
    ]
    legend = "".join(
        f'<rect x="{left + number % 4 * 210}" y="{height + number // 4 * 18}" width="10" height="10" fill="{shade}"/>'
        f'<text x="{left + 14 + number % 4 * 210}" y="{height + 9 + number // 4 * 18}">{fault}</text>'
        for number, (fault, shade) in enumerate(shades.items())
    )
    size = f'viewBox="0 0 {width} {height + 40}" font-family="sans-serif" font-size="11" fill="#888"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}{legend}</svg>\n'


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=100, help="changes a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="docs/drill.md and its picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
