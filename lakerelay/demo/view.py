"""What the demo shows while it runs: a line for each table, live in a terminal, or a line for each change of phase elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lakerelay.capture.progress import State, StreamRecord

_QUIET_SECONDS = 15.0  # without a terminal: between two lines on the stream


@dataclass(frozen=True)
class TableState:
    """`rows`: loaded, or scanned so far. `changes`: streamed since the demo began. `lag`: captured events that are not in the lake yet, None = unknown."""

    table: str
    phase: str
    rows: int
    changes: int
    lag: int | None


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


class Changes:
    """Adds up the rows of micro-batches; a batch that was seen already is not added again."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._seen: tuple[int, float] | None = None

    def add(self, record: StreamRecord | None) -> None:
        if record and (record.batch, record.written_at) != self._seen:
            self._seen = (record.batch, record.written_at)
            self.rows.update({table: int(facts.get("rows", 0)) for table, facts in record.tables.items()})


class View(AbstractContextManager["View"]):
    def __init__(self, console: Console, tables: Sequence[str]) -> None:
        self._console, self._tables = console, tables
        self._changes, self._phases = Changes(), dict.fromkeys(tables, "waiting")
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
        self._changes.add(state.stream)
        lags = state.stream.tables if state.stream else {}
        now = [
            TableState(table, phase(state, table), rows(state, table), self._changes.rows[table], lags.get(table, {}).get("lag_events"))
            for table in self._tables
        ]
        if self._live:
            self._live.update(self._table(now, written, doing), refresh=True)
        else:
            self._lines(now, written)

    def _table(self, now: Sequence[TableState], written: int, doing: str) -> Table:
        shown = Table(box=None, pad_edge=False, header_style="bold", title=None, caption_justify="left")
        shown.caption = f"{time.monotonic() - self._began:.0f} s · {doing} · rows changed in the source so far: {written:,}"
        for column in ("table", "phase"):
            shown.add_column(column)
        for column in ("rows loaded", "changes applied", "lag"):
            shown.add_column(column, justify="right", min_width=len(column))
        for each in now:
            shown.add_row(each.table, each.phase, f"{each.rows:,}", f"{each.changes:,}", "" if each.lag is None else f"{each.lag:,}")
        return shown

    def _lines(self, now: Sequence[TableState], written: int) -> None:
        for each in now:
            if each.phase != self._phases[each.table]:
                self._phases[each.table] = each.phase
                self.say(f"{each.table:<16} {each.phase:<14} {each.rows:>12,} rows")
        if time.monotonic() - self._told >= _QUIET_SECONDS:
            self._told = time.monotonic()
            lag = sum(each.lag or 0 for each in now)
            self.say(f"rows changed in the source {written:,}, changes applied {sum(self._changes.rows.values()):,}, lag {lag:,} events")
