"""A server's process: started in a session of its own, found again through its pid file, stopped.

<folder>/pids/<name>.json   pid and start time
<folder>/logs/<name>.log    what it printed
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lakerelay.errors import StackError

_KILL_WAIT = 10.0  # seconds
_started: dict[int, "subprocess.Popen[bytes]"] = {}  # kept, as Python warns of a process that outlives its Popen: these are meant to


@dataclass(frozen=True)
class Process:
    """`name` is the server's, `folder` the stack's."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "pids" / f"{self.name}.json"

    def find(self) -> psutil.Process | None:
        """The running process that `start` started, whoever asks; None when it has ended, even if its pid has a new owner."""
        try:
            noted = json.loads(self.pid_file.read_text())
            process = psutil.Process(noted["pid"])
            alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            return None
        return process if alive and _start(noted["pid"]) == noted["start"] else None

    def start(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> int:
        """Start `command` with nothing of our terminal, its output appended to the log. Returns its pid."""
        for file in (self.log, self.pid_file):
            file.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command, env=environment, cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                raise StackError(f"{self.name} cannot be started: {error}.", todo="", command=command[0]) from error
        _started[process.pid] = process
        _write_whole(self.pid_file, json.dumps({"pid": process.pid, "start": _start(process.pid)}))
        return process.pid

    def stop(self, seconds: float) -> bool:
        """TERM; after `seconds`, KILL, also for what it started and left behind. Returns False when it was not running."""
        process = self.find()
        if process is None:
            self.pid_file.unlink(missing_ok=True)
            return False
        family = _family(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
        psutil.wait_procs([process], timeout=seconds)
        family |= _session(process.pid)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        _, alive = psutil.wait_procs(list(family), timeout=_KILL_WAIT)
        if child := _started.pop(process.pid, None):
            child.poll()
        if any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in alive):
            raise StackError(
                f"{self.name} does not end.", safe="Its data are untouched.", todo="End these processes yourself.", pids=[each.pid for each in alive]
            )
        self.pid_file.unlink(missing_ok=True)
        return True

    def last_lines(self, count: int = 15) -> str:
        """The end of the log, for an error message."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""


def _start(pid: int) -> str:
    """What tells a process from a later one with its pid. Linux: clock ticks since boot, which a corrected wall clock does not move."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return stat.read_text().rpartition(")")[2].split()[19]
    return str(psutil.Process(pid).create_time())


def _family(process: psutil.Process) -> set[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return {process, *process.children(recursive=True)} | _session(process.pid)
    return {process}


def _session(leader: int) -> set[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == leader:
                found.add(process)
    return found


def _write_whole(file: Path, text: str) -> None:
    part = file.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}.part")
    part.write_text(text)
    part.replace(file)
