"""Full load → stream: which tables are loaded, from the progress topic."""

import logging
from collections.abc import Sequence

from lakerelay.capture.progress import Progress, State
from lakerelay.config import Settings
from lakerelay.errors import LakeError

log = logging.getLogger(__name__)


def hand_over(settings: Settings, tables: Sequence[str]) -> dict[str, dict[str, str | int]]:
    """Log a verdict on each of `tables`; returns table → rows, position and commit of its load.

    Raises LakeError when one of them is not loaded.
    """
    with Progress(settings) as progress:
        state = progress.read()
    log.info("loaded tables:\n%s", verdict(state, tables))
    if missing := [table for table in tables if table not in state.tables or state.tables[table].state != "loaded"]:
        stopped = {table: state.tables[table].error for table in missing if table in state.tables and state.tables[table].error}
        todo = "Set replace to load stopped tables again." if stopped else "Clear load_tables, or trigger full_load again."
        raise LakeError("Tables are not loaded.", safe="The others are.", todo=todo, tables=missing, stopped=stopped)
    return {name: {"rows": record.rows, "position": str(record.position), "commit": record.commit} for name in tables if (record := state.tables[name])}


def verdict(state: State, tables: Sequence[str]) -> str:
    """A line for each table: state, rows, seconds from plan to commit, binlog position from which the stream goes on."""
    width = max(map(len, tables), default=5)
    lines = [f"{'table':<{width}}  {'state':<7}  {'rows':>12}  {'seconds':>7}  stream goes on from"]
    for table in tables:
        if (record := state.tables.get(table)) is None:
            lines.append(f"{table:<{width}}  missing")
            continue
        seconds = f"{record.loaded_at - record.planned_at:.0f}" if record.loaded_at else "-"
        lines.append(f"{table:<{width}}  {record.state:<7}  {record.rows:>12,}  {seconds:>7}  {record.position or '-'}")
    return "\n".join(lines)


def loaded_tables(settings: Settings) -> list[str]:
    with Progress(settings) as progress:
        return sorted(name for name, record in progress.read().tables.items() if record.state == "loaded")


def relay_name(state: State, relay: str) -> str:
    """What Airflow's UI shows for a relay: `lineitem 2/4` for a range, `orders` for a table, `customer +5` for a group."""
    record = state.relays[relay]
    first = record.tables[0].partition(".")[2]
    siblings = sorted(other.id for other in state.relays.values() if other.load == record.load and other.tables == record.tables)
    if len(siblings) > 1:
        return f"{first} {siblings.index(relay) + 1}/{len(siblings)}"
    return first if len(record.tables) == 1 else f"{first} +{len(record.tables) - 1}"
