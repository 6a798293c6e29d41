"""The servers that the benches run on: an embedded stack of their own, kept from bench to bench so that the source is made once."""

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from lakerelay import config
from lakerelay.config import Settings
from lakerelay.local import secrets, spark
from lakerelay.local import stack as embedded
from lakerelay.local.process import Process

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT / ".lakerelay-bench"
PORTS = {"mysql_port": 13406, "kafka_port": 19192, "controller_port": 19193, "connect_port": 18183, "airflow_port": 18180}
SERVERS = ("mysql", "kafka", "connect")


def up(name: str, tables: Iterable[Mapping[str, str]], relay: Mapping[str, int]) -> Settings:
    """Start the servers and return the settings of pipeline `name`; they are what processes started from here load too."""
    lines = [f'name = "{name}"', "[local]", f'folder = "{FOLDER}"', *(f"{port} = {number}" for port, number in PORTS.items())]
    lines += ["[lake]", f'path = "{FOLDER / "lakes" / name}"', "[relay]", *(f"{option} = {value}" for option, value in relay.items())]
    for table in tables:
        lines += ["[[tables]]", *(f"{option} = '''{value}'''" for option, value in table.items())]
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{name}.toml"
    file.write_text("\n".join(lines) + "\n")
    settings = config.load(file)
    assert settings.local is not None
    embedded.up(settings, SERVERS)
    spark.write(settings.local)
    os.environ |= {config.SETTINGS_VARIABLE: str(file), config.PASSWORD_VARIABLE: secrets.source_password(settings.local)}
    return settings


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
