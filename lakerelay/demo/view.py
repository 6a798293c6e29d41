"""What the demo shows while it runs: a line for each table, live in a terminal, or a line for each change of phase elsewhere."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lakerelay.capture.progress import State

_QUIET_SECONDS = 15.0  # without a terminal: between two lines on the stream


@dataclass(frozen=True)
class TableState:
    """`rows`: loaded, or scanned so far. `lag`: offsets captured that are not in the lake yet, None before the first micro-batch. `commit`: Hudi's instant."""

    table: str
    phase: str
    rows: int
    lag: int | None
    commit: str

    @property
    def committed_at(self) -> str:
        """The newest commit's time of day, UTC."""
        return f"{self.commit[8:10]}:{self.commit[10:12]}:{self.commit[12:14]}" if self.commit else ""


def table_state(state: State, table: str) -> TableState:
    streamed = state.stream.tables.get(table, {}) if state.stream else {}
    record = state.tables.get(table)
    commit = streamed.get("commit") or (record.commit if record else "")
    return TableState(table, phase(state, table), rows(state, table), streamed.get("lag_events"), commit)


def phase(state: State, table: str) -> str:
    """waiting → planned → scanning → staging and loading → loaded → streaming."""
    if (record := state.tables.get(table)) is None:
        return "waiting"
    if record.state == "loaded":
        return "streaming" if state.stream and table in state.stream.tables else "loaded"
    relays = [state.relays[relay].state for relay in record.relays if relay in state.relays]
    done = relays.count("scanned")
    if relays and done == len(relays):
        return "loading"
    return f"scanning {done}/{len(relays)}" if done or "scanning" in relays else "planned"


def rows(state: State, table: str) -> int:
    if (record := state.tables.get(table)) is None:
        return 0
    return record.rows if record.state == "loaded" else sum(state.relays[relay].rows.get(table, 0) for relay in record.relays if relay in state.relays)


class View(AbstractContextManager["View"]):
    def __init__(self, console: Console, tables: Sequence[str]) -> None:
        self._console, self._tables = console, tables
        self._phases = dict.fromkeys(tables, "waiting")
        self._began = self._told = time.monotonic()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {line}", markup=False, soft_wrap=True)

    def show(self, state: State, written: int, doing: str) -> None:
        """`written`: rows that the writer has changed in the source; `doing`: what the demo waits for."""
        now = [table_state(state, table) for table in self._tables]
        if self._live:
            self._live.update(self._table(now, written, doing), refresh=True)
        else:
            self._lines(now, written)

    def _table(self, now: Sequence[TableState], written: int, doing: str) -> Table:
        shown = Table(box=None, pad_edge=False, header_style="bold", title=None, caption_justify="left")
        shown.caption = f"{time.monotonic() - self._began:.0f} s · {doing} · rows changed in the source so far: {written:,}"
        for column in ("table", "phase"):
            shown.add_column(column)
        for column in ("rows loaded", "lag", "commit, UTC"):
            shown.add_column(column, justify="right", min_width=len(column))
        for each in now:
            shown.add_row(each.table, each.phase, f"{each.rows:,}", "" if each.lag is None else f"{each.lag:,}", each.committed_at)
        return shown

    def _lines(self, now: Sequence[TableState], written: int) -> None:
        for each in now:
            if each.phase != self._phases[each.table]:
                self._phases[each.table] = each.phase
                self.say(f"{each.table:<16} {each.phase:<14} {each.rows:>12,} rows")
        if time.monotonic() - self._told >= _QUIET_SECONDS:
            self._told = time.monotonic()
            lag = sum(each.lag or 0 for each in now)
            self.say(f"rows changed in the source so far {written:,}, lag {lag:,} offsets")
