"""The servers that the benches run on: an embedded stack of their own, kept from bench to bench so that the source is made once."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from lakerelay import config
from lakerelay.capture import bodies, topics
from lakerelay.capture.binlog import MySQL
from lakerelay.capture.connector import Connector
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.preflight import preflight
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Settings
from lakerelay.local import airflow, mysql, secrets, spark
from lakerelay.local import stack as embedded
from lakerelay.local.process import Process

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT / ".lakerelay-bench"
PORTS = {"mysql_port": 13406, "kafka_port": 19192, "controller_port": 19193, "connect_port": 18183, "airflow_port": 18180}
SERVERS = ("mysql", "kafka", "connect")


@contextmanager
def pipeline(name: str, tables: Iterable[Mapping[str, str]], relay: Mapping[str, int] | None = None) -> Iterator[Settings]:
    """The servers run, and a pipeline of its own that is removed at the end; its settings are what processes started from here load too.

    Where pipelines are nested, those of the innermost, unless `spark_job` is told otherwise.
    """
    name = f"bench_{name}_{time.time():.0f}"
    lake, file = FOLDER / "lakes" / name, FOLDER / f"{name}.toml"
    lines = [f'name = "{name}"', "[local]", f'folder = "{FOLDER}"', *(f"{port} = {number}" for port, number in PORTS.items())]
    lines += ["[lake]", f'path = "{lake}"', "[relay]", *(f"{option} = {value}" for option, value in (relay or {}).items())]
    for table in tables:
        lines += ["[[tables]]", *(f"{option} = '''{value}'''" for option, value in table.items())]
    FOLDER.mkdir(exist_ok=True)
    for each in (file, FOLDER / "pipeline.toml"):  # the latter is where `make clean` finds the servers
        each.write_text("\n".join(lines) + "\n")
    settings = config.load(file)
    assert settings.local is not None
    embedded.up(settings, SERVERS)
    spark.write(settings.local)
    os.environ |= {config.SETTINGS_VARIABLE: str(file), config.PASSWORD_VARIABLE: secrets.source_password(settings.local)}
    os.environ |= airflow.environment(settings)
    try:
        yield settings
    finally:
        Connector(settings, bodies.capture_name(settings)).delete()
        topics.delete(settings, topics.present(settings, name))
        shutil.rmtree(lake, ignore_errors=True)
        file.unlink()


def connection(settings: Settings, **options: Any) -> MySQL:
    """To the source, as one who may do everything; each statement commits by itself."""
    assert settings.local is not None
    return mysql.connect(settings.local, **{"autocommit": True} | options)


def spark_job(name: str, *arguments: str, settings: Settings | None = None) -> subprocess.Popen[str]:
    """spark_jobs/<name>.py as Airflow starts it, in a process group of its own; its log is on stdout."""
    job = ["spark-submit", "--master", "local[*]", str(config.SPARK_JOBS / f"{name}.py"), *arguments]
    environment = os.environ | ({config.SETTINGS_VARIABLE: str(FOLDER / f"{settings.name}.toml")} if settings else {})
    return subprocess.Popen(job, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def full_load(settings: Settings, tables: Sequence[str]) -> str:
    """What the DAG full_load does: the scans in `lanes` lanes, beside them one Spark application. Returns what that printed."""
    preflight(settings)
    fix_position(settings)
    relays = plan_relays(settings, list(tables), run="bench", replace=False)
    printed = []
    with spark_job("load_tables", "--tables", ",".join(tables), settings=settings) as job, ThreadPoolExecutor(settings.relay.lanes) as pool:
        scans = [pool.submit(scan_relay, settings, relay) for relay in relays]
        for line in job.stdout or ():
            print(line, end="", flush=True)
            printed.append(line)
        for scan in scans:
            scan.result()
    if job.returncode:
        sys.exit("load_tables failed")
    return "".join(printed)


def report(figures: Mapping[str, object]) -> None:
    """As a table, and as one JSON object on the last line."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:,}" if isinstance(value, int | float) else f"{name:<{width}}  {value}")
    print(json.dumps(figures))


class Memory:
    """The peak, in bytes, of what the servers and this process's children hold (resident, shared pages counted once for each)."""

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        servers = [process for name in SERVERS if (process := Process(name, FOLDER).find())]
        while not self._ended.wait(1.0):
            self.peak = max(self.peak, sum(map(_resident, [psutil.Process(), *psutil.Process().children(recursive=True), *servers])))


def _resident(process: Any) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def machine() -> str:
    """What the figures were measured on."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(models)} cores of {models[0]}, {psutil.virtual_memory().total / 2**30:.0f} GiB"
