"""The `lakerelay` command."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakerelay import config
from lakerelay.errors import LakerelayError, SettingsError

if TYPE_CHECKING:
    from lakerelay.capture.status import PipelineStatus

app = typer.Typer(no_args_is_help=True, add_completion=False, help="MySQL into Apache Hudi: the embedded stack and the pipeline's commands.")
console = Console(highlight=False)
P = ParamSpec("P")
_TABLES = "Such as shop.orders, as MySQL names it; all by default."
_WATCH = 2.0  # seconds between two looks


def say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def told(command: Callable[P, None]) -> Callable[P, None]:
    """Our own errors are a message and exit status 1, not a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except LakerelayError as error:
            Console(stderr=True, highlight=False).print(f"{error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return run


@app.command()
@told
def up() -> None:
    """Start the embedded stack; what is running already stays."""
    from lakerelay.local import stack

    stack.up(config.load(), say=say)


@app.command()
@told
def down(erase: Annotated[bool, typer.Option(help="Also remove data, logs, passwords and lake.")] = False) -> None:
    """Stop the embedded stack; its data stay, unless --erase."""
    from lakerelay.local import stack

    stack.down(config.load(), erase=erase, say=say)


@app.command()
@told
def status(
    watch: Annotated[bool, typer.Option(help="Show it again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show how far each table is, and which servers run.

    Example: lakerelay status --json | jq '.pipeline.tables[] | select(.lag_seconds > 60)'
    """
    settings = config.load()
    if as_json:
        typer.echo(json.dumps(_Seen(settings).document(), indent=2))
        return
    seen = _Seen(settings)
    if not watch:
        console.print(seen.shown())
        return
    with Live(seen.shown(), console=console, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            time.sleep(_WATCH)
            live.update(_Seen(settings).shown(), refresh=True)


class _Seen:
    """The embedded servers and the pipeline, as they are at one moment."""

    def __init__(self, settings: config.Settings) -> None:
        from lakerelay.capture import status
        from lakerelay.capture.progress import Progress
        from lakerelay.local import stack

        self._settings = settings
        self.servers = stack.status(settings) if settings.local else []
        self.pipeline, self.trouble = None, ""
        if any(server.name == "kafka" and not server.ready for server in self.servers):
            return
        try:
            with Progress(settings, timeout=10.0) as progress:
                state = progress.read()
            self.pipeline = status.of(settings, state)
            self.pipeline = replace(self.pipeline, connectors=status.connectors(settings, state))
        except LakerelayError as error:
            self.trouble = str(error)

    def document(self) -> dict[str, Any]:
        servers = [asdict(server) for server in self.servers]
        return {"servers": servers, "pipeline": asdict(self.pipeline) if self.pipeline else None, "trouble": self.trouble}

    def shown(self) -> Group:
        parts: list[Any] = [self._servers(), ""] if self.servers else []
        if self.pipeline:
            parts += [self._tables(self.pipeline), "", self._flow(self.pipeline), *self._notes(self.pipeline)]
        if self.trouble:
            parts.append(Text(self.trouble, style="red"))
        return Group(*parts)

    def _servers(self) -> Table:
        table = _columns("server", "state", "address", "pid")
        for server in self.servers:
            state = "ready" if server.ready else "not ready" if server.pid else "down"
            table.add_row(server.name, state, server.address, str(server.pid or ""))
        return table

    def _tables(self, pipeline: "PipelineStatus") -> Table:
        table = _columns("table", "phase", ">rows", ">rows/s", ">left", ">lag", "verified")
        for each in pipeline.tables:
            share = "" if each.share is None else f" {each.share:.0%}"
            lag = "" if each.lag_seconds is None else f"{each.lag_events:,} · {_spoken(each.lag_seconds)}"
            speed = "" if each.rows_per_second is None else f"{each.rows_per_second:,.0f}"
            left = "" if each.seconds_left is None else _spoken(each.seconds_left)
            colour = {"stopped": "red", "streaming": "green"}.get(each.phase, "")
            table.add_row(each.table, Text(f"{each.phase}{share}", colour), f"{each.rows:,}", speed, left, lag, each.verdict)
        return table

    def _flow(self, pipeline: "PipelineStatus") -> Text:
        stream = "no stream runs" if pipeline.batch is None else f"stream: batch {pipeline.batch}" if pipeline.batch >= 0 else "stream: starts"
        connectors = [f"{each.name} {each.connector or 'missing'}{f', task {each.task}' if each.task else ''}" for each in pipeline.connectors]
        return Text("; ".join([stream, *connectors]))

    def _notes(self, pipeline: "PipelineStatus") -> list[Text]:
        notes = [Text(f"{each.table}: {each.why}", "red") for each in pipeline.tables if each.why]
        waiting = "records could not be decoded and wait in quarantine; lakerelay replay {0} tries them again"
        notes += [Text(f"{each.table}: {each.quarantined} {waiting.format(each.table)}") for each in pipeline.tables if each.quarantined]
        if self._settings.local and any(server.name == "airflow" and server.pid for server in self.servers):
            from lakerelay.local import airflow

            notes.append(Text(f"Airflow's UI: user {airflow.USER}, password in {airflow.users_file(self._settings.local)}"))
        return notes


def _columns(*names: str) -> Table:
    """Names that begin with > are of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table


def _spoken(seconds: float) -> str:
    """
    >>> _spoken(4.2), _spoken(300), _spoken(9000)
    ('4 s', '5 min', '2.5 h')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@app.command()
@told
def check(
    grants: Annotated[bool, typer.Option(help="Print the statements that give source.user what it needs, and no more, instead.")] = False,
) -> None:
    """See whether MySQL, Kafka and Kafka Connect are fit for the pipeline; each failure comes with what mends it. Exit status 1 when one failed.

    Example: lakerelay check --grants
    """
    from lakerelay.capture import preflight

    if grants:
        for line in preflight.grants_needed(_with_password()):
            say(line)
        return
    checks = list(preflight.run(_with_password()))
    for each in checks:
        console.print(Text(str(each), "red" if each.mend else ""), soft_wrap=True)
    if any(each.mend for each in checks):
        raise typer.Exit(1)


@app.command()
@told
def plan(
    tables: Annotated[list[str] | None, typer.Argument(help=_TABLES)] = None,
    replace: Annotated[bool, typer.Option(help="As with `replace` in full_load: loaded tables too.")] = False,
) -> None:
    """Show the relays that full_load would scan now. Nothing is changed.

    Example: lakerelay plan shop.orders --replace
    """
    from lakerelay.capture import plan

    for line in plan.preview(_with_password(), tables or [], replace):
        say(line)


@app.command()
@told
def metrics(
    port: Annotated[int, typer.Option(help="Where Prometheus finds them.")] = 9464,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve the pipeline's metrics to Prometheus, until Ctrl-C.

    Example: lakerelay metrics --port 9464
    """
    from prometheus_client import CollectorRegistry, start_http_server

    from lakerelay.capture.metrics import PipelineCollector

    registry = CollectorRegistry()
    with PipelineCollector(config.load(), registry), suppress(KeyboardInterrupt):
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise SettingsError(f"The metrics cannot be served: {error}.", safe="", todo="Choose another --port or --host.", host=host, port=port) from error
        say(f"http://{host}:{port}/metrics")
        try:
            thread.join()
        finally:
            server.shutdown()


@app.command()
@told
def replay(
    table: Annotated[str, typer.Argument(help="Such as shop.orders, as MySQL names it.")],
    seconds: Annotated[float, typer.Option(help="How long to wait for the stream's answer.")] = 120,
) -> None:
    """Apply quarantined records of a table that can be decoded by now. The running stream does it."""
    from lakerelay.capture import replay

    answer = replay.replay(config.load(), table, seconds)
    if answer.answered_at:
        say(f"{table}: {answer.applied} records applied, {answer.left} still cannot be decoded")
    else:
        say(f"{table}: the stream has not answered within {seconds:.0f} s; it does it as soon as stream_changes runs")


@app.command()
@told
def verify(tables: Annotated[list[str] | None, typer.Argument(help="Such as shop.orders, as MySQL names it; all that are loaded by default.")] = None) -> None:
    """Compare tables of the lake with MySQL, while both are written to. Exit status 1 unless all are equal."""
    from lakerelay.capture.handover import comparable_tables

    settings = config.load()
    chosen = settings.choose(tables or (), comparable_tables(settings))
    if not chosen:
        raise SettingsError("No table is loaded that could be compared.", todo="Run full_load first.")
    command = ["spark-submit", "--name", "lakerelay-verify_tables", str(config.SPARK_JOBS / "verify_tables.py"), "--tables", ",".join(chosen)]
    raise typer.Exit(subprocess.run(command, env=_spark_environment(settings), check=False).returncode)


def _with_password() -> config.Settings:
    """The settings; the embedded MySQL's password is where `config.source_password` looks for it."""
    settings = config.load()
    if settings.local:
        from lakerelay.local import secrets

        os.environ.setdefault(config.PASSWORD_VARIABLE, secrets.source_password(settings.local))
    return settings


def _spark_environment(settings: config.Settings) -> dict[str, str]:
    """Where spark-submit is found, and its defaults: the embedded stack's, or those of the environment."""
    if settings.local is None:
        return dict(os.environ)
    from lakerelay.local import airflow, secrets, spark

    spark.write(settings.local)
    environment = airflow.environment(settings)
    return environment | {config.PASSWORD_VARIABLE: secrets.source_password(settings.local)}


@app.command()
@told
def demo(
    scale: Annotated[float, typer.Option(help="TPC-H's scale factor; 1.0 is 6 million lineitems.")] = 0.1,
    seconds: Annotated[float, typer.Option(help="How long to stream under write load once all tables are loaded.")] = 30,
    rate: Annotated[float, typer.Option(help="Rows that the writer changes in a second.")] = 300,
) -> None:
    """Bring TPC-H, under write load, into the lake through Airflow, and prove that lake and source are equal."""
    from lakerelay.demo import run

    if not run.run(config.load(), run.Options(scale, seconds, rate), console):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
