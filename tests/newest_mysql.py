"""The newest MySQL of long support, from Debian's unstable archive with all its libraries: on any Debian or Ubuntu, without root.

apt resolves and downloads, checks by Debian's signature and takes an interrupted download up again, in a folder of its own:

    <cache>/mysql-sid/apt    its configuration, lists and packages, removed at the end
    <cache>/mysql-sid/root   the packages unpacked, and a program `mysqld` that runs the server with the libraries beside it
"""

import fcntl
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakerelay.config import Local
from lakerelay.local import jars
from tests.conftest import Stack, another_mysql

_PACKAGE = "mysql-server-core"
_MIRROR = "http://deb.debian.org/debian"
# Read after the system's own, whose proxies it keeps; what others want to be run or downloaded at an update is left out.
_CONFIGURATION = """\
Dir::Etc::SourceList "{folder}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
#clear APT::Architectures;
#clear APT::Update;
#clear Acquire::IndexTargets::deb::DEP-11;
"""


@contextmanager
def running(stack: Stack) -> Iterator[Local]:
    """Such a server beside the stack's."""
    with another_mysql(stack, "newest", mysqld()) as local:
        yield local


def mysqld() -> Path:
    """The server's program; brought when it is not there."""
    folder = jars.cache() / "mysql-sid"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "root" / "mysqld"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _unpack(_download(folder / "apt"), folder / "root")
            shutil.rmtree(folder / "apt")
    return program


def _download(folder: Path) -> list[Path]:
    """The packages: the server's and all that it depends on, for apt is told that nothing is installed."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")
    (folder / "sources.list").write_text(f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {_mirror()} sid main\n")
    (folder / "apt.conf").write_text(_CONFIGURATION.format(folder=folder))
    for command in (
        ["update", "--error-on=any"],
        ["autoclean"],
        ["install", "--yes", "--download-only", _PACKAGE],
    ):  # autoclean: older versions, of an earlier attempt
        subprocess.run(["apt-get", "-c", str(folder / "apt.conf"), "--quiet", *command], stdin=subprocess.DEVNULL, check=True)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


def _mirror() -> str:
    """Where this system has its own packages from."""
    told = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True).stdout
    return next((address for address in told.split() if address.rstrip("/").endswith("/debian")), _MIRROR)


def _unpack(packages: list[Path], target: Path) -> None:
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", str(package), str(part)], check=True)
    usr = target / "usr"
    loader = [usr / "lib64" / "ld-linux-x86-64.so.2", "--library-path", usr / "lib" / "x86_64-linux-gnu"]
    command = shlex.join(map(str, [*loader, usr / "sbin" / "mysqld"]))
    (part / "mysqld").write_text(f'#!/bin/sh\nexec {command} "$@" --basedir={shlex.quote(str(usr))}\n')
    (part / "mysqld").chmod(0o755)
    part.rename(target)
