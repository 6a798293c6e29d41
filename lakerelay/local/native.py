"""Shared libraries that the downloaded MySQL needs and a plain Debian has not."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from lakerelay.errors import StackError


def environment(folder: Path) -> dict[str, str]:
    """Our environment, with the libraries unpacked in the stack's folder on the loader's path."""
    unpacked = [str(each) for each in _folders(folder)]
    given = os.environ.get("LD_LIBRARY_PATH")
    path = ":".join([*unpacked, *([given] if given else [])])
    return dict(os.environ) | ({"LD_LIBRARY_PATH": path} if path else {})


def missing(libraries: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Those of `libraries` (file → Debian package) that the loader finds neither in the system nor in the stack's folder."""
    return {file: package for file, package in libraries.items() if not _loads(file) and not any((each / file).exists() for each in _folders(folder))}


def install(libraries: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> None:
    """Install what is missing: as root by apt-get, else unpacked into the stack's folder, which takes no right at all."""
    lacking = missing(libraries, folder)
    if not lacking:
        return
    say(f"installing {', '.join(lacking.values())}, which MySQL needs")
    if shutil.which("apt-get"):
        for fetch in (_install, _unpack):
            if fetch is not _install or os.geteuid() == 0:
                fetch(list(lacking.values()), folder)
                if not missing(lacking, folder):
                    return
    raise StackError("MySQL needs libraries that are not there.", todo=f"Install them: apt-get install {' '.join(lacking.values())}", missing=sorted(lacking))


def _install(packages: list[str], folder: Path) -> None:  # noqa: ARG001 — called like _unpack
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if not _run(command):  # a fresh image has no package lists yet
        _run(["apt-get", "update"])
        _run(command)


def _unpack(packages: list[str], folder: Path) -> None:
    target = folder / "native"
    target.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", *packages], target)
    for package in target.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(target)])


def _run(command: list[str], cwd: Path | None = None) -> bool:
    variables = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _folders(folder: Path) -> list[Path]:
    return sorted({file.parent for file in (folder / "native").rglob("lib*.so*")})
