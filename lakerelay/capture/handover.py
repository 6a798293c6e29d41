"""What the progress topic says of tables: are they loaded, from where does the stream go on, are they equal to the source."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from lakerelay.capture.progress import Progress, State
from lakerelay.config import Settings
from lakerelay.errors import LakeError, VerifyError

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


def comparable_tables(settings: Settings) -> list[str]:
    """Tables that stand in the lake, stopped ones too, and are to hold the rows that MySQL holds."""
    with Progress(settings) as progress:
        known = progress.read().tables
    return sorted(name for name, record in known.items() if record.state != "planned" and (entry := settings.table(name)) and entry.kind == "upsert")


def require_equal(settings: Settings, table: str, since: float) -> dict[str, str | int]:
    """Rows, source position and time of a comparison made after `since`, Unix seconds. Raises VerifyError unless it found the table equal."""
    with Progress(settings) as progress:
        record = progress.read().verified.get(table)
    if record is None or record.checked_at < since:
        raise VerifyError("The comparison did not come to this table.", safe="Nothing was changed.", todo="See the log of verify_tables.", table=table)
    if record.verdict != "equal":
        keys = {"/".join(key): what for key, what in record.keys}
        todo = "Run full_load for it with replace set." if record.verdict == "different" else "See to it, then compare again."
        raise VerifyError(
            f"A table is {record.verdict}.", safe="Nothing was changed.", todo=todo, table=table, why=record.why, differing=record.differing, keys=keys
        )
    return {"rows": record.source_rows, "position": str(record.position), "checked_at": datetime.fromtimestamp(record.checked_at, UTC).isoformat()}


def relay_name(state: State, relay: str) -> str:
    """What Airflow's UI shows for a relay: `lineitem 2/4` for a range, `orders` for a table, `customer +5` for a group."""
    record = state.relays[relay]
    first = record.tables[0].partition(".")[2]
    siblings = sorted(other.id for other in state.relays.values() if other.load == record.load and other.tables == record.tables)
    if len(siblings) > 1:
        return f"{first} {siblings.index(relay) + 1}/{len(siblings)}"
    return first if len(record.tables) == 1 else f"{first} +{len(record.tables) - 1}"
