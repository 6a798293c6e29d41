"""The full load's lake side: stage each relay as soon as it is scanned, load each table as soon as all its relays are staged."""

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby

from pyspark.sql import SparkSession

from lakerelay import failpoint
from lakerelay.capture import topics
from lakerelay.capture.progress import Progress, RelayRecord, State, TableRecord
from lakerelay.config import Settings
from lakerelay.errors import DecodeError, RelayError, SourceError
from lakerelay.lake import assemble, decode, stage, store
from lakerelay.lake.topic import read_schemas

log = logging.getLogger(__name__)

PATIENCE = 600.0  # seconds without any relay moving, after which the scans are taken for dead


def unfinished(state: State, tables: Iterable[str]) -> list[TableRecord]:
    """The loads among `tables` that were planned and do not stand in the lake yet."""
    return [record for name in tables if (record := state.tables.get(name)) and record.state == "planned"]


def load_tables(spark: SparkSession, settings: Settings, tables: Iterable[str], patience: float = PATIENCE) -> None:
    """Load every planned table among `tables`; return when all of them stand in the lake.

    Follows the progress topic while relays are being scanned. When relays failed, it first loads what is complete; then it raises RelayError
    naming the relays that are missing. Started again, it goes on with what is staged and loaded already.
    """
    names = tuple(tables)
    with Progress(settings) as progress, ThreadPoolExecutor(settings.stream.writers) as pool:
        work = _Work(spark, settings, progress, pool)
        moved, before = time.monotonic(), State()
        while True:
            busy = work.running  # asked before the state is read, which then holds what ended until now
            if not (todo := unfinished(state := progress.read(), names)):
                break
            if state.relays != before.relays or work.running:
                moved, before = time.monotonic(), state
            work.clean(state, names)
            work.submit(state, todo)
            if not (busy or work.running) and time.monotonic() - moved > (patience if _open(state, todo) else 0.0):
                break
            time.sleep(0.5)
        work.clean(state, names)
        work.raise_first()
        if todo:
            missing = [f"{relay.id} ({relay.error or relay.state})" for relay in _relays(state, todo) if relay.state != "scanned"]
            raise RelayError(
                "Some relays did not arrive.",
                safe="Every table that is complete stands in the lake; what is scanned is kept.",
                todo="Clear the failed scan_relay and load_tables tasks.",
                tables=[record.table for record in todo],
                relays=missing,
            )


def _relays(state: State, todo: list[TableRecord]) -> list[RelayRecord]:
    return list({relay: state.relays[relay] for record in todo for relay in record.relays}.values())


def _open(state: State, todo: list[TableRecord]) -> bool:
    """Whether some relay may still arrive without a person doing anything: Airflow tries a failed one again."""
    return any(relay.state != "scanned" for relay in _relays(state, todo))


@dataclass
class _Work:
    """What has been given to the pool: one future for each table of each relay, and one for each load."""

    spark: SparkSession
    settings: Settings
    progress: Progress
    pool: ThreadPoolExecutor
    futures: dict[tuple[str, str], Future[None]] = field(default_factory=dict)
    cleaned: set[str] = field(default_factory=set)

    @property
    def running(self) -> bool:
        return any(not future.done() for future in self.futures.values())

    def submit(self, state: State, todo: list[TableRecord]) -> None:
        # The tables of a shared one are loaded by one commit.
        for name, group in groupby(sorted(todo, key=self._lake_table), key=self._lake_table):
            records, staged = list(group), []
            for record in records:
                for relay in (state.relays[relay] for relay in record.relays):
                    if relay.state == "scanned" and (relay.id, record.table) not in self.futures:
                        self.futures[relay.id, record.table] = self.pool.submit(self._stage, relay, record.table)
                    staged.append(self.futures.get((relay.id, record.table)))
            if all(future and future.done() and not future.exception() for future in staged) and ("", name) not in self.futures:
                self.futures["", name] = self.pool.submit(self._try, records, state)

    def _lake_table(self, record: TableRecord) -> str:
        return self.settings.lake_table(record.table)

    def raise_first(self) -> None:
        for future in self.futures.values():
            future.result()

    def _stage(self, relay: RelayRecord, table: str) -> None:
        if stage.is_staged(self.spark, self.settings, relay, table):
            log.info("relay staged already relay=%s table=%s", relay.id, table)
            return
        began = time.monotonic()
        schema = read_schemas(self.settings, relay.schema_topic)[table][-1]
        stage.stage(self.spark, self.settings, relay, table, store.lake_table(self.settings, table, schema.key), schema)
        _log("relay staged relay=%s table=%s", (relay.id, table), relay.rows[table], began)

    def _try(self, records: list[TableRecord], state: State) -> None:
        try:
            self._load(records, state)
        except (DecodeError, SourceError) as error:
            # What was captured and scanned can never become the table: only another load can.
            self.progress.write(*(replace(record, state="stopped", error=str(error)) for record in records))
            raise

    def _load(self, records: list[TableRecord], state: State) -> None:
        began = time.monotonic()
        relays = {record.table: [state.relays[relay] for relay in record.relays] for record in records}
        schemas = {record.table: assemble.schema(self.settings, record, relays[record.table]) for record in records}
        table = store.lake_table(self.settings, records[0].table, schemas[records[0].table].key)
        commit = store.newest_commit(self.spark, table)
        reached = commit.sources if commit else {}
        missing = [record for record in records if record.table not in reached or reached[record.table].load != record.load]
        if missing:  # an interrupted run may have made it already
            try:
                commit = assemble.write(self.spark, self.settings, missing, relays, schemas, table, commit)
            except Exception as error:
                if not decode.is_malformed(error):
                    raise
                raise DecodeError(
                    "A record that was captured while the table was read cannot be decoded.",
                    safe="Nothing of this load is in the lake; what stood there stands.",
                    todo="Run full_load for it with replace set.",
                    table=table.name,
                    why=str(error)[:500],
                ) from error
        assert commit is not None
        failpoint.passed(f"loaded {records[0].table}")
        for record in records:
            rows, (_, high) = sum(relay.rows[record.table] for relay in relays[record.table]), assemble.window(relays[record.table])
            schema = replace(schemas[record.table], emptied=False).to_json()
            self.progress.write(replace(record, state="loaded", rows=rows, position=high, schema=schema, commit=commit.instant, loaded_at=time.time()))
            _log("table loaded table=%s commit=%s", (record.table, commit.instant), rows, began)

    def clean(self, state: State, names: Iterable[str]) -> None:
        """Remove what loaded tables no longer need: their relays' topics and staged rows, once all tables of a relay are loaded."""
        records = [state.tables[name] for name in names if name in state.tables and state.tables[name].state == "loaded"]
        for relay in {relay: state.relays[relay] for record in records for relay in record.relays}.values():
            if relay.id not in self.cleaned and not unfinished(state, relay.tables):
                self.cleaned.add(relay.id)
                stage.remove(self.spark, stage.folder(self.settings, relay.load, relay.id))
                topics.delete(self.settings, topics.present(self.settings, relay.schema_topic))


def _log(line: str, values: tuple[str, ...], rows: int, began: float) -> None:
    seconds = time.monotonic() - began
    log.info(line + " rows=%s seconds=%.1f rows/s=%.0f", *values, f"{rows:,}", seconds, rows / max(seconds, 0.001))  # noqa: G003
