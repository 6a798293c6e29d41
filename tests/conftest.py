"""The servers that the tests run on: one embedded stack for the session, in a folder and on ports of its own.

    stack          MySQL, Kafka and Kafka Connect run
    airflow        Airflow runs too: a client of its API
    make_settings  settings of a pipeline on that stack
    spark          one small Spark session

$LAKERELAY_TEST_FOLDER names another folder than .lakerelay-test. With $LAKERELAY_TEST_KEEP the servers stay up after the session and the
next one takes them over.

What an interrupted session left running is found through its pid files and stopped first. Nothing is ever skipped for want of a server.
"""

import atexit
import fcntl
import json
import logging
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from lakerelay import config
from lakerelay.config import Local, Settings
from lakerelay.lake import session
from lakerelay.local import jars, java, secrets
from lakerelay.local import stack as embedded
from lakerelay.local.airflow import AirflowApi, url, users_file
from tests.faults import table as faults

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("LAKERELAY_TEST_FOLDER") or PROJECT / ".lakerelay-test").resolve()
KEEP = bool(os.environ.get("LAKERELAY_TEST_KEEP"))
PORTS = ("mysql_port", "kafka_port", "controller_port", "connect_port", "airflow_port")

# Before anything imports Airflow or starts a JVM.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="lakerelay-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ["JAVA_HOME"] = str(java.home())
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

MakeSettings = Callable[..., Settings]


@dataclass(frozen=True)
class Stack:
    """`settings_file` is what Airflow's DAGs read; its tables: every table of a database whose name starts with cow_ or mor_."""

    settings: Settings
    settings_file: Path

    @property
    def local(self) -> Local:
        assert self.settings.local is not None
        return self.settings.local


def free_ports(count: int) -> list[int]:
    """Below the range that the system gives to outgoing connections, so that a server can be stopped and find its port free again."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.randint(20000, 32000)
            tried = held.enter_context(socket.socket())
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports


def write_settings(file: Path, name: str, tables: Sequence[Mapping[str, Any]], sections: Mapping[str, Mapping[str, Any]]) -> Path:
    """A pipeline.toml. JSON's numbers, strings, booleans and lists are TOML's too."""
    lines = [f"name = {json.dumps(name)}"]
    for title, values in [*((f"[{name}]", values) for name, values in sections.items()), *(("[[tables]]", table) for table in tables)]:
        lines += ["", title, *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER.with_name(f"{FOLDER.name}.toml")  # beside the folder, which is erased
    with file.with_suffix(".lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file.exists() and not KEEP:
            embedded.down(config.load(file), erase=True)
        if not (file.exists() and KEEP):
            local = {"folder": str(FOLDER)} | dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
            tables = [{"pattern": r"cow_[^.]*\..*", "type": "cow"}, {"pattern": r"mor_[^.]*\..*", "type": "mor"}]
            write_settings(file, "tests", tables, {"local": local})
        started = Stack(config.load(file), file)
        patch.setenv(config.SETTINGS_VARIABLE, str(file))
        patch.setenv(config.PASSWORD_VARIABLE, secrets.source_password(started.local))
        try:
            embedded.up(started.settings, ("mysql", "kafka", "connect"))
            yield started
        finally:
            if not KEEP:
                embedded.down(started.settings)


@contextmanager
def another_mysql(stack: Stack, name: str, mysqld: Path | None = None) -> Iterator[Local]:
    """A server beside the stack's Kafka and Connect: as they reach it, with the stack's passwords, and data of its own."""
    folder = stack.local.folder.with_name(f"{stack.local.folder.name}-{name}")  # outlives the stack's, so that a server left running is found
    changed = {"folder": folder, "mysql_port": free_ports(1)[0]} | ({"mysqld": mysqld} if mysqld else {})
    local = stack.local.model_copy(update=changed)
    settings = Settings(name=name, local=local, tables=[{"name": "a.b"}])  # type: ignore[call-arg,arg-type]
    embedded.down(settings, erase=True)
    secrets.write(secrets.folder(local) / local.password_file.name, stack.local.password_file.read_text())
    try:
        embedded.up(settings, ("mysql",))
        yield local
    finally:
        embedded.down(settings, erase=not KEEP)


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[AirflowApi]:
    embedded.up(stack.settings)
    with AirflowApi(url(stack.local), users_file(stack.local)) as api:
        yield api


@pytest.fixture(scope="session")
def make_settings(stack: Stack) -> MakeSettings:
    """`make_settings(name, tables=[{"name": "a.b", "type": "cow"}], relay={"rows": 100})`: a pipeline with topics and a lake of its own.

    The file stands in <folder>/settings/<name>.toml, for what is started with $LAKERELAY_SETTINGS.
    """

    def make(name: str, tables: Sequence[Mapping[str, Any]], **sections: Mapping[str, Any]) -> Settings:
        local = stack.local.model_dump(mode="json", exclude_none=True)
        lake = {"path": str(stack.local.folder / "lakes" / name)}
        return config.load(write_settings(stack.local.folder / "settings" / f"{name}.toml", name, tables, {"local": local, "lake": lake} | sections))

    return make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs its own end when the log is closed already
    options = {"spark.jars": ",".join(map(str, jars.spark())), "spark.master": "local[2]", "spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    found = session.start("tests", **options)
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def _stacks_of_what_hangs() -> Iterator[None]:
    """Before pytest's own time limit ends a test and shows Python's stacks, those of the JVMs that it started, among the test's output."""

    def ask() -> None:
        for child in psutil.Process().children(recursive=True):
            if child.name() == "java":
                child.send_signal(signal.SIGQUIT)

    timer = threading.Timer(600, ask)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call" and (marker := item.get_closest_marker("fault")):
        faults.seen(marker, call.excinfo is None, dict(item.user_properties).get("seen", ""), call.duration)


def pytest_sessionfinish() -> None:
    faults.write()
