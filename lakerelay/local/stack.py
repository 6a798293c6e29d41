"""The servers of the embedded stack, in the order they are started in; stopped in the reverse one."""

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from lakerelay.config import Local, Settings
from lakerelay.errors import StackError
from lakerelay.local import check, jars, mysql, native, secrets
from lakerelay.local.airflow import ApiServer, DagProcessor, Scheduler
from lakerelay.local.connect import Connect
from lakerelay.local.kafka import Kafka
from lakerelay.local.mysql import Mysql
from lakerelay.local.process import Process

_STOP_SECONDS = 40.0
_POLL_SECONDS = 0.5


class Server(Protocol):
    """`ports`: setting → port. `gigabytes`: memory it grows to. `seconds`: how long its start may take."""

    @property
    def name(self) -> str: ...
    @property
    def ports(self) -> dict[str, int]: ...
    @property
    def address(self) -> str: ...
    @property
    def gigabytes(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def command(self) -> list[str]: ...
    @property
    def environment(self) -> dict[str, str]: ...
    def prepare(self) -> None: ...
    def is_ready(self) -> bool: ...


SERVERS: dict[str, Callable[[Settings], Server]] = {
    "mysql": Mysql,
    "kafka": Kafka,
    "connect": Connect,
    "airflow": ApiServer,
    "airflow-scheduler": Scheduler,
    "airflow-dags": DagProcessor,
}


@dataclass(frozen=True)
class Status:
    """`pid` is None when the server is down."""

    name: str
    address: str
    pid: int | None
    ready: bool


def up(settings: Settings, servers: Sequence[str] = tuple(SERVERS), say: Callable[[str], None] = print) -> None:
    """Start what is not running yet and wait until it is ready; `airflow` among `servers` means all its processes.

    Raises StackError, before anything starts where it can be known before.
    """
    local = _local(settings)
    chosen = [make(settings) for name, make in SERVERS.items() if name.partition("-")[0] in servers]
    with _only_one(local):
        secrets.folder(local)
        down = [server for server in chosen if Process(server.name, local.folder).find() is None]
        downloaded_mysql = any(server.name == "mysql" for server in down) and mysql.installed(local) is None
        check.before_start(local.folder, down)
        jars.fetch(say)
        if downloaded_mysql:
            native.install(mysql.LIBRARIES, local.folder, say)
        for _, together in groupby(chosen, key=lambda server: server.name.partition("-")[0]):
            _start(list(together), local, say)


def down(settings: Settings, *, erase: bool = False, say: Callable[[str], None] = print) -> None:
    """Stop all servers, those started last first. `erase` then removes the stack's folder: data, logs, passwords, lake."""
    local = _local(settings)
    if not local.folder.exists():
        say(f"nothing at {local.folder}")
        return
    with _only_one(local):
        for name in reversed(SERVERS):
            stopped = Process(name, local.folder).stop(_STOP_SECONDS)
            say(f"{name:<17}  {'stopped' if stopped else 'was down'}")
        if erase:
            shutil.rmtree(local.folder)
            say(f"erased {local.folder}")


def status(settings: Settings) -> list[Status]:
    local = _local(settings)
    found = []
    for name, make in SERVERS.items():
        process, server = Process(name, local.folder).find(), make(settings)
        found.append(Status(name, server.address, process.pid if process else None, process is not None and server.is_ready()))
    return found


def _start(servers: Sequence[Server], local: Local, say: Callable[[str], None]) -> None:
    """Start those that are down side by side, then wait for all: also for one that runs, as an earlier `up` may have been interrupted."""
    words = {}
    for server in servers:
        process = Process(server.name, local.folder)
        words[server.name] = (time.monotonic(), "running" if process.find() else "ready")
        if process.find() is None:
            server.prepare()
            process.start(server.command, server.environment)
    for server in servers:
        _wait(server, Process(server.name, local.folder))
        began, word = words[server.name]
        say(f"{server.name:<17}  {word:<7}  {server.address:<23}  {time.monotonic() - began:4.1f} s")


def _wait(server: Server, process: Process) -> None:
    deadline = time.monotonic() + server.seconds
    while not server.is_ready():
        if process.find() is None:
            raise StackError(f"{server.name} ended while it started:\n{process.last_lines()}\n", safe="Data are kept.", todo="", log=str(process.log))
        if time.monotonic() > deadline:
            raise StackError(
                f"{server.name} is not ready after {server.seconds:.0f} s:\n{process.last_lines()}\n",
                safe="Data are kept.",
                todo="Run `lakerelay up` again to wait on, or `lakerelay down` to stop it.",
                log=str(process.log),
            )
        time.sleep(_POLL_SECONDS)


def _local(settings: Settings) -> Local:
    if settings.local is None:
        raise StackError("The settings have no section [local].", todo="Add it to have an embedded stack; without it the servers are your own.")
    return settings.local


@contextmanager
def _only_one(local: Local) -> Iterator[None]:
    """One `up` or `down` at a time for a folder."""
    try:
        local.folder.mkdir(parents=True, exist_ok=True)
        lock = (local.folder / "lock").open("w")
    except OSError as error:
        raise StackError(
            f"The stack's folder cannot be written: {error.strerror}.", todo="Set `folder` in [local] to one that can.", folder=str(local.folder)
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError("Another `lakerelay up` or `down` is at work on this folder.", todo="Wait for it.", folder=str(local.folder)) from error
        yield
