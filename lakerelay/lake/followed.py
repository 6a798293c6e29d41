"""A table of the lake that the stream follows: how it takes up schemas, a batch's changes, and quarantined records."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import or_

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture import topics
from lakerelay.capture.progress import TableRecord
from lakerelay.columns import ADDED, KEY, SEQ, SOFT_DELETED
from lakerelay.config import Settings, Table
from lakerelay.errors import DecodeError, LakeError, SchemaChangeError, SettingsError
from lakerelay.lake import assemble, decode, evolve, merge, quarantine, store, topic
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import Commit, LakeTable, Reached

log = logging.getLogger(__name__)

_ONE_TASK = 20_000  # events; fewer of a table in a batch are handled faster by one task than by several


@dataclass
class Source:
    """A source table that the query follows. `schemas`: oldest first, from the one of the load on, or the one with which the table was made anew since."""

    name: str
    topic: str
    schemas: list[TableSchema]

    @property
    def made_anew(self) -> int:
        """Changes up to here are of a table that was dropped."""
        return self.schemas[0].seq if self.schemas[0].emptied else 0

    @property
    def has_history(self) -> bool:
        """Whether it matters where in the binlog a change stands."""
        return len(self.schemas) > 1 or self.made_anew > 0

    def learn(self, captured: Sequence[TableSchema], history: bool) -> None:
        """Take up schemas from the schema-change topic; where rows are `history`, those of a table that was dropped stay."""
        known = [*self.schemas[:1], *(schema for schema in captured if schema.seq > self.schemas[0].seq)]
        anew = max((number for number, schema in enumerate(known) if schema.emptied), default=0)
        self.schemas = known if history else known[anew:]


@dataclass
class Followed:
    """A table of the lake with the source tables that are brought into it: the newest commit that the query made, and the columns that stand in the lake."""

    settings: Settings
    table: LakeTable
    sources: list[Source]
    commit: Commit
    columns: T.StructType

    def reached(self, source: Source) -> Reached:
        return self.commit.sources[source.name]

    def offset(self, source: Source) -> int:
        return self.reached(source).offset

    def altered(self, source: Source) -> list[TableSchema]:
        """The schemas that the lake's columns do not follow yet."""
        return [schema for schema in source.schemas if schema.seq > self.reached(source).schema]

    def without(self, gone: Sequence[Source], columns: T.StructType) -> DataFrame:
        """The table with `columns` when these sources have no row left."""
        standing, mine = store.read(SparkSession.active(), self.table), reduce(or_, (self.table.is_of(source.name) for source in gone))
        rows = standing.withColumn(SOFT_DELETED, mine | F.col(SOFT_DELETED)) if self.table.soft_delete else standing.where(~mine)
        return merge.shaped(rows, T.StructType([*columns, *_added(standing)]))

    def follow_schemas(self) -> None:
        """Bring the columns, and the rows that are there, to the newest schema of each source. Raises SchemaChangeError."""
        for source in self.sources:
            if self.altered(source):
                self._follow(source, self.altered(source))

    def apply(self, batch: DataFrame, counts: dict[str, Row], number: int) -> dict[str, int]:
        """Write a micro-batch's changes (topic, partition, offset, value), by one commit. `counts`: of each source that has some, its events, first and last.

        Returns source → records that are in quarantine, where some came. Raises DecodeError for what cannot be decoded.
        """
        began = time.monotonic()
        quarantined: dict[str, int] = {}
        try:
            self._write(batch, counts)
        except Exception as error:
            if not decode.is_malformed(error):
                raise
            batch, quarantined = self._without_unreadable(batch, counts)
            if not quarantined:
                raise self._malformed(error) from error
            self._write(batch, counts, spans_known=False)
        delay = time.time() - max(count["at"] for count in counts.values()).timestamp()
        log.info(
            "batch=%s table=%s events=%s seconds=%.1f delay_s=%.1f commit=%s",
            number,
            self.table.name,
            f"{sum(count['events'] for count in counts.values()):,}",
            time.monotonic() - began,
            delay,
            self.commit.instant,
        )
        return quarantined

    def replay(self, source: Source) -> tuple[int, int]:
        """Apply the quarantined records that can be decoded by now; returns how many were, and how many are left.

        All changes since the first of them are applied again, by one commit: so no newer row is undone, and no deleted one comes back. Raises LakeError
        when Kafka no longer holds them.
        """
        spark = SparkSession.active()
        waiting = quarantine.waiting(spark, self.settings, source.name)
        if waiting is None:
            return 0, 0
        left = quarantine.unreadable(waiting, source.schemas).select("topic", "offset").localCheckpoint()
        records = quarantine.without(waiting, left).localCheckpoint()
        applied = records.count()
        if applied:
            again = records
            if not self.table.history:
                first = records.agg(F.min("offset")).collect()[0][0]
                captured = topic.records(spark, self.settings, source.topic, first).where(F.col("offset") < self.offset(source))
                again = quarantine.without(captured, left)
                emptied = again.agg(F.max(F.when(decode.is_truncate(), F.col("offset")))).collect()[0][0]
                again = again if emptied is None else again.where(F.col("offset") > emptied)
            rows = merge.upserts(self._changes(source, again, None), self.table, self._standing())
            self.commit = store.upsert(rows, self.table, self.commit)
            quarantine.mark_applied(spark, self.settings, source.name, records)
        return applied, left.count()

    def _follow(self, source: Source, altered: list[TableSchema]) -> None:
        table = self.table
        if any(schema.captured_anew for schema in altered):
            raise SchemaChangeError(
                "Capture lost its position and began anew: changes in between are missing.",
                safe="The table stands in the lake as it was before.",
                todo="Run full_load for it with replace set.",
                table=source.name,
                reached=self.reached(source).schema,
                began=next(schema.seq for schema in altered if schema.captured_anew),
            )
        if self._entry(source).on_schema_change == "stop":
            raise SchemaChangeError(
                "A table was altered, and its settings say to stop then.",
                safe="The table stands in the lake as it was before; its changes stay in Kafka.",
                todo="Run full_load for it with replace set.",
                table=source.name,
            )
        spark, began, commit = SparkSession.active(), time.monotonic(), self.commit.moved(source.name, schema=altered[-1].seq)
        if altered[0].emptied and not table.history:
            columns = evolve.lake_columns(altered, self.columns if table.shared or table.soft_delete else None)
            self.commit = store.load(self.without([source], columns), table, commit)
            log.info("table emptied table=%s reason='dropped and created anew' commit=%s", source.name, self.commit.instant)
            self.columns = columns
            return
        chain = source.schemas[len(source.schemas) - len(altered) - 1 :]
        columns = evolve.lake_columns(chain, self.columns)
        if any(evolve.rewrites(old, new, self.columns, table.history) for old, new in pairwise(chain)):
            rows, mine = store.read(spark, table), table.is_of(source.name)
            values = evolve.columns({name: F.col(f"`{name}`") for name in self.columns.names}, chain, columns, table.history)
            rewritten = rows.where(mine).select(*values, *(field.name for field in _added(rows)))
            self.commit = store.load(rewritten.unionByName(merge.shaped(rows.where(~mine), rewritten.schema)), table, commit)
            log.info("table rewritten table=%s seconds=%.1f commit=%s", source.name, time.monotonic() - began, self.commit.instant)
        else:
            self.commit = commit  # the next upsert says it
        self.columns = columns

    def _write(self, batch: DataFrame, counts: dict[str, Row], spans_known: bool = True) -> None:
        sources = [source for source in self.sources if source.name in counts]
        few = sum(count["events"] for count in counts.values()) < _ONE_TASK
        emptied = [source for source in sources if counts[source.name]["emptied"] is not None and not self.table.history]
        parts, commit = [], self.commit
        for source in sources:
            count = counts[source.name]
            commit = commit.moved(source.name, offset=count["last"] + 1)
            records = batch.where((F.col("topic") == source.topic) & (F.col("offset") >= self.offset(source)))
            records = records.where(F.col("offset") > count["emptied"]) if source in emptied else records
            span = (decode.place(count["first_value"]), decode.place(count["last_value"])) if spans_known and source.has_history else None
            parts.append(self._changes(source, records.coalesce(1) if few else records, span))
        changes = reduce(DataFrame.unionByName, parts)
        if emptied:
            base = self.without(emptied, self.columns)
            self.commit = store.load(merge.brought_up(base, merge.upserts(changes, self.table, base), self.table), self.table, commit)
            log.info("table emptied table=%s reason=TRUNCATE", ",".join(source.name for source in emptied))
        else:
            self.commit = store.upsert(merge.upserts(changes, self.table, self._standing()), self.table, commit)

    def _changes(self, source: Source, records: DataFrame, span: tuple[int, int] | None) -> DataFrame:
        """The changes in records of a source's capture topic, without those that the load holds, and those of a table of this name that was dropped."""
        history = self.table.history
        if source.made_anew and not history and (span is None or span[0] <= source.made_anew):
            records = decode.placed(records).where(F.col(SEQ) > source.made_anew)
        changes = decode.changes(records, source.schemas, self.columns, span, self.table.constants(source.name), history)
        return changes.where(F.col(SEQ) > self.reached(source).cut)

    def _standing(self) -> DataFrame | None:
        return store.read(SparkSession.active(), self.table) if self.table.reads_standing else None

    def _without_unreadable(self, batch: DataFrame, counts: dict[str, Row]) -> tuple[DataFrame, dict[str, int]]:
        """The batch without the records that cannot be decoded, once they are in quarantine; how many each source has there, of those to which some came."""
        quarantined, spark = {}, SparkSession.active()
        for source in self.sources:
            if source.name not in counts or self._entry(source).on_bad_record != "quarantine":
                continue
            records = batch.where((F.col("topic") == source.topic) & (F.col("offset") >= self.offset(source)))
            unreadable = quarantine.unreadable(records, source.schemas).localCheckpoint()  # a few, looked at several times
            if found := unreadable.count():
                quarantine.put(spark, self.settings, source.name, unreadable)
                waiting = quarantine.waiting(spark, self.settings, source.name)
                assert waiting is not None
                quarantined[source.name] = waiting.count()
                log.warning("records quarantined table=%s records=%d waiting=%d", source.name, found, quarantined[source.name])
                batch = quarantine.without(batch, unreadable)
        return batch, quarantined

    def _entry(self, source: Source) -> Table:
        entry = self.settings.table(source.name)
        assert entry is not None
        return entry

    def _malformed(self, error: Exception) -> DecodeError:
        return DecodeError(
            "An event does not fit the table's schema.",
            safe="The table stands as its newest commit left it; its changes stay in Kafka.",
            todo='Run full_load for it with replace set; with on_bad_record = "quarantine" such records are put aside.',
            table=self.table.name,
            next_offsets={source.topic: self.offset(source) for source in self.sources},
            why=str(error)[:500],
        )


def taken_up(settings: Settings, name: str, schemas: Sequence[TableSchema]) -> TableRecord:
    """Make the lake's table of a source table that was created: the record with which the stream follows it, or which says why it does not."""
    created = [schema for schema in schemas if schema.created]
    record = TableRecord(name, f"created_{created[-1].seq}", "stream", (), state="loaded", planned_at=time.time(), loaded_at=time.time())
    captured = topics.data(topics.capture_prefix(settings), name)
    topics.create(settings, {captured: topics.SEVEN_DAYS})
    first, _ = topics.bounds(settings, [captured])[captured]
    identity, _ = topics.described(settings, [captured]).get(captured, ("", 1))  # made a moment ago: not every broker may know it
    try:
        table = store.lake_table(settings, name, created[-1].key)
        schema = replace(created[0 if table.history else -1], emptied=True)  # changes from before it are of another table of this name
        commit = assemble.write_empty(SparkSession.active(), name, schema, table, Reached(record.load, schema.seq, schema.seq, first, identity))
    except (DecodeError, LakeError, SettingsError) as error:
        log.warning("table not taken up table=%s %s", name, error)
        return replace(record, state="stopped", error=str(error))
    log.info("table taken up table=%s reason='it was created under a name of the settings' commit=%s", name, commit.instant)
    return replace(record, schema=schema.to_json(), offset=first, commit=commit.instant)


def _added(rows: DataFrame) -> list[T.StructField]:
    """Those of the columns that lakerelay adds which a commit is given."""
    return [field for field in rows.schema if field.name in ADDED and field.name != KEY]
