"""The `lakerelay` command."""

import os
import subprocess
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from lakerelay import config
from lakerelay.errors import LakerelayError, SettingsError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="MySQL into Apache Hudi: the embedded stack and the pipeline's commands.")
console = Console(highlight=False)
P = ParamSpec("P")


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
def status() -> None:
    """Show which servers run, and where."""
    from lakerelay.local import airflow, stack

    settings = config.load()
    servers = stack.status(settings)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("server", "state", "address", "pid"):
        table.add_column(column)
    for server in servers:
        state = "ready" if server.ready else "not ready" if server.pid else "down"
        table.add_row(server.name, state, server.address, str(server.pid or ""))
    console.print(table)
    kafka = any(server.name == "kafka" and server.ready for server in servers)
    for name, count in _quarantined(settings).items() if kafka else ():
        say(f"{name}: {count} records could not be decoded and wait in quarantine; lakerelay replay {name} tries them again")
    if settings.local and any(server.name == "airflow" and server.pid for server in servers):
        say(f"Airflow's UI: user {airflow.USER}, password in {airflow.users_file(settings.local)}")


def _quarantined(settings: config.Settings) -> dict[str, int]:
    from lakerelay.capture.progress import Progress

    with Progress(settings) as progress:
        return {name: record.quarantined for name, record in sorted(progress.read().tables.items()) if record.quarantined}


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
