"""A table of the lake that the stream follows: how it takes up schemas, a batch's changes, and quarantined records."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import or_

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture import topics
from lakerelay.capture.commits import CommitRecord
from lakerelay.capture.progress import TableRecord
from lakerelay.columns import ADDED, KEY, OP, SEQ, SOFT_DELETED
from lakerelay.config import Settings, Table
from lakerelay.errors import DecodeError, LakeError, SchemaChangeError, SettingsError
from lakerelay.lake import assemble, decode, evolve, merge, quarantine, store, topic
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import Commit, Facts, LakeTable, Reached

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
    told: list[CommitRecord] = field(default_factory=list)  # commits that nobody has been told of yet

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

        Returns source → records that are in quarantine, where some came. Raises DecodeError for what cannot be decoded, and when a record is not accounted for.
        """
        began = time.monotonic()
        bad: dict[str, DataFrame] = {}
        try:
            facts = self._write(batch, counts, bad)
        except Exception as error:
            if not decode.is_malformed(error):
                raise
            bad = self._put_aside(batch, counts)
            if not bad:
                raise self._malformed(error) from error
            facts = self._write(batch, counts, bad)
        at, seconds, commit = time.time(), time.monotonic() - began, self.commit
        did = {name: getattr(facts, name) for name in ("events", "inserts", "updates", "deletes", "quarantined")}
        written = {"rows": commit.rows, "files": commit.files, "bytes": commit.bytes}
        self.told.append(CommitRecord(self.table.name, commit.instant, at, seconds, at - facts.newest_at, **did, **written))
        log.info(
            "batch=%s table=%s %s %s seconds=%.1f delay_s=%.1f commit=%s",
            number,
            self.table.name,
            facts,
            " ".join(f"{name}={count:,}" for name, count in written.items()),
            seconds,
            at - facts.newest_at,
            commit.instant,
        )
        return {name: self._waiting(name) for name in bad}

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
            arrivals = merge.arrivals(self._changes(source, self._of_this_table(source, again, None), None), self.table).where(~self._is_repeated())
            self.commit = store.upsert(merge.upserts(arrivals, self.table, self._standing()), self.table, self.commit)
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

    def _write(self, batch: DataFrame, counts: dict[str, Row], bad: dict[str, DataFrame]) -> Facts:
        """`bad`: of each source that has some, its records that cannot be decoded."""
        sources = [source for source in self.sources if source.name in counts]
        few = sum(count["events"] for count in counts.values()) < _ONE_TASK
        emptied = [source for source in sources if counts[source.name]["emptied"] is not None and not self.table.history]
        parts, commit, gone = [], self.commit, 0
        for source in sources:
            count = counts[source.name]
            commit = commit.moved(source.name, offset=count["last"] + 1)
            records = self._records(batch, source)
            records = quarantine.without(records, bad[source.name]) if source.name in bad else records
            span = (decode.place(*count["first_event"]), decode.place(*count["last_event"])) if source.has_history and not bad else None
            left = self._of_this_table(source, records, span)
            left = left.where(F.col("offset") > count["emptied"]) if source in emptied else left
            gone += records.count() - left.count() if left is not records else 0
            parts.append(self._changes(source, left.coalesce(1) if few else left, span))
        arrivals = merge.arrivals(reduce(DataFrame.unionByName, parts), self.table).persist()
        try:
            facts = self._facts(arrivals, list(counts.values()), gone, sum(records.count() for records in bad.values()))
            new = arrivals.where(~self._is_repeated())
            if emptied:
                base = self.without(emptied, self.columns)
                self.commit = store.load(merge.brought_up(base, merge.upserts(new, self.table, base), self.table), self.table, commit, facts)
                log.info("table emptied table=%s reason=TRUNCATE", ",".join(source.name for source in emptied))
            else:
                self.commit = store.upsert(merge.upserts(new, self.table, self._standing()), self.table, commit, facts)
        finally:
            arrivals.unpersist()
        return facts

    def _facts(self, arrivals: DataFrame, counts: list[Row], emptied: int, quarantined: int) -> Facts:
        """What becomes of each record. Raises DecodeError when there are more, or fewer, than came."""
        here, repeated = ~F.col(merge.LEAVES), self._is_repeated()
        ops = {"inserts": "cr", "updates": "u", "deletes": "d", "truncates": "t"}
        numbers = [F.count_if(here & ~repeated & F.col(OP).isin(*values)).alias(name) for name, values in ops.items()]
        counted = arrivals.agg(*numbers, F.count_if(here & repeated).alias("repeated")).collect()[0].asDict()
        newest_at = max(count["at"] for count in counts).timestamp()
        facts = Facts(sum(count["events"] for count in counts), emptied=emptied, quarantined=quarantined, newest_at=newest_at, **counted)
        if facts.unaccounted:
            raise DecodeError(
                "The records of a micro-batch do not add up.",
                safe="None of them was committed: the table stands as it was before, its changes stay in Kafka.",
                todo="Run full_load for it with replace set, and report this.",
                table=self.table.name,
                unaccounted=facts.unaccounted,
                found=str(facts),
            )
        return facts

    def _records(self, batch: DataFrame, source: Source) -> DataFrame:
        return batch.where((F.col("topic") == source.topic) & (F.col("offset") >= self.offset(source)))

    def _of_this_table(self, source: Source, records: DataFrame, span: tuple[int, int] | None) -> DataFrame:
        """Without the records of a table of this name that was dropped."""
        if source.made_anew and not self.table.history and (span is None or span[0] <= source.made_anew):
            return decode.placed(records).where(F.col(SEQ) > source.made_anew)
        return records

    def _changes(self, source: Source, records: DataFrame, span: tuple[int, int] | None) -> DataFrame:
        return decode.changes(records, source.schemas, self.columns, span, self.table.constants(source.name), self.table.history)

    def _is_repeated(self) -> Column:
        """Whether the load of its source table holds a change."""
        return reduce(or_, (self.table.is_of(source.name) & (F.col(SEQ) <= self.reached(source).cut) for source in self.sources))

    def _standing(self) -> DataFrame | None:
        return store.read(SparkSession.active(), self.table) if self.table.reads_standing else None

    def _put_aside(self, batch: DataFrame, counts: dict[str, Row]) -> dict[str, DataFrame]:
        """Put the records that cannot be decoded into quarantine: those of each source that has some."""
        bad = {}
        for source in self.sources:
            if source.name not in counts or self._entry(source).on_bad_record != "quarantine":
                continue
            unreadable = quarantine.unreadable(self._records(batch, source), source.schemas).localCheckpoint()  # a few, looked at several times
            if found := unreadable.count():
                quarantine.put(SparkSession.active(), self.settings, source.name, unreadable)
                log.warning("records quarantined table=%s records=%d waiting=%d", source.name, found, self._waiting(source.name))
                bad[source.name] = unreadable
        return bad

    def _waiting(self, name: str) -> int:
        waiting = quarantine.waiting(SparkSession.active(), self.settings, name)
        return 0 if waiting is None else waiting.count()

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
