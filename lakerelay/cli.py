"""The `lakerelay` command."""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from lakerelay import config
from lakerelay.errors import LakerelayError

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
    if settings.local and any(server.name == "airflow" and server.pid for server in servers):
        say(f"Airflow's UI: user {airflow.USER}, password in {airflow.users_file(settings.local)}")


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
