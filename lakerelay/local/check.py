"""What can be known before anything starts: ports, memory, disk."""

import shutil
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from lakerelay.errors import StackError
from lakerelay.local import LOOPBACK

DISK_GIGABYTES = 5.0
_GIGABYTE = 1e9
_LIMITS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),)


class Wants(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def ports(self) -> dict[str, int]: ...
    @property
    def gigabytes(self) -> float: ...


def before_start(folder: Path, servers: Sequence[Wants]) -> None:
    """Raises StackError naming everything that is in the way of starting `servers`, none of which is running."""
    if not servers:
        return
    needed = sum(server.gigabytes for server in servers)
    wrong = [
        *taken_ports(servers),
        *too_little("memory", needed, free_memory()),
        *too_little("disk", DISK_GIGABYTES, shutil.disk_usage(folder).free / _GIGABYTE),
    ]
    if wrong:
        raise StackError(
            "The stack cannot start:\n" + "\n".join(f"  {line}" for line in wrong) + "\n", safe="Nothing was started.", todo="", folder=str(folder)
        )


def taken_ports(servers: Iterable[Wants]) -> list[str]:
    """One line for each port that somebody else listens on, or that is given twice."""
    lines, seen = [], dict[int, str]()
    for server in servers:
        for setting, port in server.ports.items():
            if port in seen:
                lines.append(f"port {port} is given to both {seen[port]} and {setting}: change one in [local], or $LAKERELAY_LOCAL__{setting.upper()}")
            elif not _is_free(port):
                lines.append(f"port {port} is taken: set another {setting} in [local], or $LAKERELAY_LOCAL__{setting.upper()} (for {server.name})")
            seen[port] = setting
    return lines


def too_little(what: str, needed: float, free: float) -> list[str]:
    """`needed` and `free` in GB."""
    return [] if free >= needed else [f"too little {what}: {needed:.1f} GB are needed, {free:.1f} GB are free"]


def free_memory() -> float:
    """GB that new processes can have, a container's limit counted."""
    free = float(psutil.virtual_memory().available)
    for limit, used in _LIMITS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return free / _GIGABYTE


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just stopped does not count
        try:
            tried.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
