"""The stream: one Structured Streaming query over the capture topics of all loaded tables, upserted micro-batch by micro-batch.

The lake is the only truth. Each start takes every topic's offset from its table's newest commit and makes a fresh checkpoint, so that no
checkpoint, however old, can skip or repeat anything.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from lakerelay.capture import topics
from lakerelay.capture.progress import Progress, State, StreamRecord
from lakerelay.config import Settings
from lakerelay.errors import DecodeError, LakeError, LakerelayError, SchemaChangeError
from lakerelay.lake import decode, evolve, store
from lakerelay.lake.merge import PARTITION, brought_up, latest_per_key
from lakerelay.lake.schema import DELETED, SEQ, TableSchema
from lakerelay.lake.store import Commit, LakeTable
from lakerelay.lake.topic import SchemaTopic, require, source_options, starting_offsets

log = logging.getLogger(__name__)

_ONE_TASK = 20_000  # events; fewer of a table in a batch are handled faster by one task than by several
_MALFORMED = ("MALFORMED_RECORD_IN_PARSING", "CANNOT_PARSE_JSON_FIELD")
_POLL = 1  # seconds between two looks at the query and at the loaded tables


def stream_changes(spark: SparkSession, settings: Settings, stop: threading.Event | None = None) -> None:
    """Upsert the changes of every loaded table until `stop` is set (never, by default); tables loaded meanwhile are taken up.

    Raises WriterFencedError when a newer driver of this pipeline has started, LakeError and DecodeError for what it must not guess.
    """
    stop = stop or threading.Event()
    parent = os.getppid()
    # Adaptive execution, which joins small partitions, is off in streaming queries.
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    with (
        Progress(settings, sole_writer="stream") as progress,
        SchemaTopic(settings, topics.capture_prefix(settings)) as schema_topic,
        ThreadPoolExecutor(settings.stream.writers) as pool,
    ):
        while not stop.is_set():
            loads = _loads(progress.read())
            if not loads:
                log.info("stream waiting reason='no table is loaded yet'")
                _until(lambda: bool(_loads(progress.read())) or stop.is_set())
                continue
            followed = _followed(spark, settings, progress.read())
            batches = _Batches(settings, schema_topic, progress, pool, followed)
            query = batches.start(spark)
            while not (stop.is_set() or query.awaitTermination(_POLL)):
                progress_of_query(query, batches, progress)
                if os.getppid() != parent:
                    raise LakerelayError("The program that started this driver is gone.", safe="What is committed stands.", todo="Start the stream again.")
                if _loads(progress.read()) != loads:
                    break
            batches.stop(query)
            progress_of_query(query, batches, progress)


def _until(condition: Any) -> None:
    while not condition():
        time.sleep(_POLL)


def _loads(state: State) -> dict[str, str]:
    """Loaded table → its load."""
    return {record.table: record.load for record in state.tables.values() if record.state == "loaded"}


@dataclass
class _Followed:
    """A table that the query follows: the newest commit that it made, and the columns that stand in the lake.

    `schemas`: the source's, oldest first, from the one of the load on, or the one with which the table was made anew since;
    those after `commit.schema` are still to be followed.
    """

    table: LakeTable
    topic: str
    commit: Commit
    columns: T.StructType
    schemas: list[TableSchema]

    @property
    def offset(self) -> int:
        return self.commit.offsets[self.topic]

    @property
    def altered(self) -> list[TableSchema]:
        """The schemas that the lake's columns do not follow yet."""
        return [schema for schema in self.schemas if schema.seq > self.commit.schema]

    @property
    def made_anew(self) -> int:
        """Changes up to here are of a table that was dropped."""
        return self.schemas[0].seq if self.schemas[0].emptied else 0

    def learn(self, captured: Sequence[TableSchema]) -> None:
        """Take up schemas from the schema-change topic."""
        known = [*self.schemas[:1], *(schema for schema in captured if schema.seq > self.schemas[0].seq)]
        anew = max((number for number, schema in enumerate(known) if schema.emptied), default=0)
        self.schemas = known[anew:]


def _followed(spark: SparkSession, settings: Settings, state: State) -> list[_Followed]:
    """Every loaded table with the offset that its newest commit reached."""
    found = []
    for name, load in sorted(_loads(state).items()):
        if settings.table(name) is None:
            log.info("stream leaves out table=%s reason='not in the settings'", name)
            continue
        schema = TableSchema.from_json(state.tables[name].schema)
        table = store.lake_table(settings, name, schema.key)
        commit = store.newest_commit(spark, table)
        if commit is None or commit.load != load:
            raise LakeError(
                "A table that was loaded is not in the lake as the load left it.",
                safe="Nothing was written.",
                todo="Run full_load for this table with replace set.",
                table=name,
                path=table.path,
                recorded_load=load,
                found_load=commit and commit.load,
            )
        topic = topics.data(topics.capture_prefix(settings), name)
        found.append(_Followed(table, topic, commit, store.columns(spark, table), [replace(schema, emptied=False)]))
    return found


class _Batches:
    """One query and the micro-batches that it hands over."""

    def __init__(self, settings: Settings, schema_topic: SchemaTopic, progress: Progress, pool: ThreadPoolExecutor, followed: list[_Followed]) -> None:
        self._settings, self._schema_topic, self._progress, self._pool = settings, schema_topic, progress, pool
        self.followed = followed
        self.newest = StreamRecord(-1, time.time(), {})
        self._writing = threading.Lock()
        self._stopping = False
        self._error: BaseException | None = None
        self._number = -1

    def start(self, spark: SparkSession) -> StreamingQuery:
        self._read_schemas()
        if altered := [each for each in self.followed if each.altered]:
            self._progress.write(self.newest)  # as before each batch
            self._write_tables([(each, None, None) for each in altered])
        offsets = {each.topic: each.offset for each in self.followed}
        require(self._settings, offsets)
        # A schema change makes a micro-batch too: rows that are there may have to follow it.
        offsets |= topics.end_offsets(self._settings, [topics.capture_prefix(self._settings)])
        log.info("stream starts tables=%s", ",".join(each.table.name for each in self.followed))
        options = source_options(self._settings) | {
            "subscribe": ",".join(offsets),
            "startingOffsets": starting_offsets(offsets),
            "maxOffsetsPerTrigger": str(self._settings.stream.max_events_per_batch),
        }
        records = spark.readStream.format("kafka").options(**options).load().select("topic", "offset", "timestamp", "value")
        writer = records.writeStream.foreachBatch(self._apply).trigger(processingTime=f"{self._settings.stream.seconds_between_batches} seconds")
        return writer.option("checkpointLocation", tempfile.mkdtemp(prefix="lakerelay-checkpoint-")).start()

    def stop(self, query: StreamingQuery) -> None:
        """End the query between two micro-batches. Raises what a micro-batch raised."""
        with self._writing:
            self._stopping = True
            query.stop()
        if self._error:
            raise self._error
        if problem := query.exception():
            raise problem

    def _apply(self, batch: DataFrame, number: int) -> None:
        with self._writing:
            if self._stopping:
                return
            try:
                self._write(batch, number)
            except BaseException as error:
                self._error = error  # on its way through Java it would become text
                raise

    def _write(self, batch: DataFrame, number: int) -> None:
        self._progress.write(self.newest)  # a driver that was replaced is refused here, before it writes
        batch.persist()
        try:
            emptied = F.max(F.when(decode.is_truncate(), F.col("offset")))
            counts = batch.groupBy("topic").agg(
                F.count("*").alias("events"),
                F.max("timestamp").alias("at"),
                F.max("offset").alias("last"),
                F.min_by("value", "offset").alias("first_value"),
                F.max_by("value", "offset").alias("last_value"),
                emptied.alias("emptied"),
            )
            by_topic = {row["topic"]: row for row in counts.collect()}
            self._read_schemas()  # after the batch's end is fixed: every schema that the batch needs is there
            self._number = number
            self._write_tables([(each, batch, by_topic.get(each.topic)) for each in self.followed if each.topic in by_topic or each.altered])
        finally:
            batch.unpersist()

    def _read_schemas(self) -> None:
        captured = self._schema_topic.read()
        for each in self.followed:
            each.learn(captured.get(each.table.name, ()))

    def _write_tables(self, work: list[tuple[_Followed, DataFrame | None, Any]]) -> None:
        """Side by side. A table whose changes cannot be applied is recorded as stopped, the others go on."""
        errors = list(self._pool.map(lambda item: self._try(*item), work))
        for (followed, _, _), error in zip(work, errors, strict=True):
            if error:
                log.error("table stopped table=%s %s", followed.table.name, error)
                record = self._progress.read().tables[followed.table.name]
                self._progress.write(replace(record, state="stopped", error=str(error)))
        stopped = {id(followed) for (followed, _, _), error in zip(work, errors, strict=True) if error}
        self.followed = [each for each in self.followed if id(each) not in stopped]

    def _try(self, followed: _Followed, batch: DataFrame | None, count: Any) -> DecodeError | None:
        try:
            if followed.altered:
                self._follow_schema(followed)
            if batch is not None and count is not None:
                self._write_table(followed, batch, count)
        except DecodeError as error:
            return error
        except Exception as error:
            if not any(word in str(error) for word in _MALFORMED):
                raise
            return DecodeError(
                "An event does not fit the table's schema.",
                safe="The table stands as its newest commit left it; its changes stay in Kafka.",
                todo="Run full_load for it with replace set.",
                table=followed.table.name,
                next_offset=followed.offset,
                why=str(error)[:500],
            )
        return None

    def _follow_schema(self, followed: _Followed) -> None:
        """Bring the table's columns, and the rows that are there, to the newest schema."""
        altered = followed.altered
        if self._settings.table(followed.table.name).on_schema_change == "stop":  # type: ignore[union-attr]
            raise SchemaChangeError(
                "A table was altered, and its settings say to stop then.",
                safe="The table stands in the lake as it was before; its changes stay in Kafka.",
                todo="Run full_load for it with replace set.",
                table=followed.table.name,
            )
        commit, spark, began = replace(followed.commit, schema=altered[-1].seq), SparkSession.active(), time.monotonic()
        if altered[0].emptied:
            followed.columns = evolve.lake_columns(altered)
            followed.commit = store.empty(spark, followed.table, followed.columns, commit)
            log.info("table emptied table=%s reason='dropped and created anew' commit=%s", followed.table.name, followed.commit.instant)
            return
        chain = followed.schemas[len(followed.schemas) - len(altered) - 1 :]
        columns = evolve.lake_columns(chain, followed.columns)
        if any(evolve.rewrites(old, new, followed.columns) for old, new in pairwise(chain)):
            rows = store.read(spark, followed.table)
            values = evolve.columns({name: F.col(f"`{name}`") for name in followed.columns.names}, chain, columns)
            kept = [name for name in (SEQ, DELETED, PARTITION) if name in rows.columns]
            followed.commit = store.load(rows.select(*values, *kept), followed.table, commit)
            log.info("table rewritten table=%s seconds=%.1f commit=%s", followed.table.name, time.monotonic() - began, followed.commit.instant)
        else:
            followed.commit = commit  # the next upsert says it
        followed.columns = columns

    def _write_table(self, followed: _Followed, batch: DataFrame, count: Any) -> None:
        began, table = time.monotonic(), followed.table
        records = batch.where((F.col("topic") == followed.topic) & (F.col("offset") >= followed.offset))
        if count["events"] < _ONE_TASK:
            records = records.coalesce(1)
        span = decode.place(count["first_value"]), decode.place(count["last_value"])
        if span[0] <= followed.made_anew:
            records = decode.placed(records).where(F.col(SEQ) > followed.made_anew)
        changes = decode.changes(records, followed.schemas, followed.columns, span).where(F.col(SEQ) > followed.commit.cut)  # the load holds the rest
        commit = replace(followed.commit, offsets={followed.topic: count["last"] + 1})
        if count["emptied"] is None:
            rows = latest_per_key(changes, table.key, table.partition, table.key_may_change)
            followed.commit = store.upsert(rows, followed.table, commit)
        else:
            rows = brought_up(None, changes.where(F.col("offset") > count["emptied"]), table.key, table.partition, table.key_may_change)
            followed.commit = store.load(rows, followed.table, commit)
            log.info("table emptied table=%s reason=TRUNCATE", followed.table.name)
        delay = time.time() - count["at"].timestamp()
        log.info(
            "batch=%s table=%s events=%s seconds=%.1f delay_s=%.1f commit=%s",
            self._number,
            followed.table.name,
            f"{count['events']:,}",
            time.monotonic() - began,
            delay,
            followed.commit.instant,
        )


def progress_of_query(query: StreamingQuery, batches: _Batches, progress: Progress) -> None:
    """Record the newest finished micro-batch: per table the next offset, the lag in offsets, the newest commit."""
    newest = query.lastProgress
    if not newest or newest["batchId"] == batches.newest.batch or not newest["sources"][0]["endOffset"]:
        return
    source = newest["sources"][0]
    tables = {}
    for each in batches.followed:
        end, latest = source["endOffset"][each.topic]["0"], source["latestOffset"][each.topic]["0"]
        tables[each.table.name] = {"offset": end, "lag_events": latest - end, "commit": each.commit.instant}
    batches.newest = StreamRecord(newest["batchId"], time.time(), tables)
    progress.write(batches.newest)
