"""The stream: one Structured Streaming query over the capture topics of all loaded tables, upserted micro-batch by micro-batch.

The lake is the only truth. Each start takes every topic's offset from its table's newest commit and makes a fresh checkpoint, so that no
checkpoint, however old, can skip or repeat anything.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lakerelay.capture import topics
from lakerelay.capture.progress import Progress, State, StreamRecord
from lakerelay.config import Settings
from lakerelay.errors import DecodeError, LakeError, LakerelayError
from lakerelay.lake import decode, store
from lakerelay.lake.merge import latest_per_key
from lakerelay.lake.schema import SEQ, TableSchema
from lakerelay.lake.store import Commit, LakeTable
from lakerelay.lake.topic import SchemaTopic, require, source_options, starting_offsets

log = logging.getLogger(__name__)

_ONE_TASK = 20_000  # events; fewer of a table in a batch are handled faster by one task than by several
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
            followed = _followed(spark, settings, loads, schema_topic.read())
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
    """A table that the query follows, and the newest commit that it made."""

    table: LakeTable
    topic: str
    commit: Commit

    @property
    def offset(self) -> int:
        return self.commit.offsets[self.topic]


def _followed(spark: SparkSession, settings: Settings, loads: Mapping[str, str], schemas: Mapping[str, list[TableSchema]]) -> list[_Followed]:
    """Every loaded table with the offset that its newest commit reached."""
    found = []
    for name, load in sorted(loads.items()):
        if settings.table(name) is None:
            log.info("stream leaves out table=%s reason='not in the settings'", name)
            continue
        table = store.lake_table(settings, name, _schema(schemas, name).key)
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
        found.append(_Followed(table, topics.data(topics.capture_prefix(settings), name), commit))
    return found


def _schema(schemas: Mapping[str, list[TableSchema]], table: str) -> TableSchema:
    if table not in schemas:
        raise DecodeError("No schema of a table was captured.", todo="Run full_load for this table with replace set.", table=table)
    return schemas[table][-1]


class _Batches:
    """One query and the micro-batches that it hands over."""

    def __init__(self, settings: Settings, schema_topic: SchemaTopic, progress: Progress, pool: ThreadPoolExecutor, followed: list[_Followed]) -> None:
        self._settings, self._schema_topic, self._progress, self._pool = settings, schema_topic, progress, pool
        self.followed = followed
        self.newest = StreamRecord(-1, time.time(), {})
        self._writing = threading.Lock()
        self._stopping = False
        self._error: BaseException | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        offsets = {each.topic: each.offset for each in self.followed}
        require(self._settings, offsets)
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
            counts = batch.groupBy("topic").agg(F.count("*").alias("events"), F.max("offset").alias("last"), F.max("timestamp").alias("at")).collect()
            by_topic = {row["topic"]: row for row in counts}
            schemas = self._schema_topic.read()  # after the batch's end is fixed: it holds every schema that the batch needs
            changed = [each for each in self.followed if each.topic in by_topic]
            list(self._pool.map(lambda each: self._write_table(each, batch, by_topic[each.topic], _schema(schemas, each.table.name), number), changed))
        finally:
            batch.unpersist()

    def _write_table(self, followed: _Followed, batch: DataFrame, count: Any, schema: TableSchema, number: int) -> None:
        began = time.monotonic()
        records = batch.where((F.col("topic") == followed.topic) & (F.col("offset") >= followed.offset))
        if count["events"] < _ONE_TASK:
            records = records.coalesce(1)
        changes = decode.changes(records, schema).where(F.col(SEQ) > followed.commit.cut)  # the load holds the rest
        rows = latest_per_key(changes, followed.table.key, followed.table.partition)
        followed.commit = store.upsert(rows, followed.table, replace(followed.commit, offsets={followed.topic: count["last"] + 1}))
        delay = time.time() - count["at"].timestamp()
        log.info(
            "batch=%s table=%s events=%s seconds=%.1f delay_s=%.1f commit=%s",
            number,
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
