"""The stream: one Structured Streaming query over the capture topics of all loaded tables, upserted micro-batch by micro-batch.

The lake is the only truth. Each start takes every topic's offset from its table's newest commit and makes a fresh checkpoint, so that no
checkpoint, however old, can skip or repeat anything.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from lakerelay.capture import topics
from lakerelay.capture.progress import Progress, ReplayRecord, State, StreamRecord
from lakerelay.capture.watch import Watch
from lakerelay.config import Settings
from lakerelay.errors import CommitConflictError, DecodeError, LakeError, LakerelayError
from lakerelay.lake import decode, store
from lakerelay.lake.followed import Followed, Source, taken_up
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import Commit
from lakerelay.lake.topic import SchemaTopic, lost, source_options, starting_offsets

log = logging.getLogger(__name__)

_BEAT = 30.0  # seconds after which a driver without work says that it is there
_POLL = 1  # seconds between two looks at the query and at the loaded tables


def stream_changes(spark: SparkSession, settings: Settings, stop: threading.Event | None = None) -> None:
    """Upsert the changes of every loaded table until `stop` is set (never, by default); tables loaded meanwhile are taken up.

    Raises WriterFencedError when a newer driver of this pipeline has started, ConnectError when nothing is captured any more.
    """
    stop = stop or threading.Event()
    parent, watch = os.getppid(), Watch(settings)
    # Adaptive execution, which joins small partitions, is off in streaming queries.
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    with (
        Progress(settings, sole_writer="stream") as progress,
        SchemaTopic(settings, topics.capture_prefix(settings), progress) as schema_topic,
        ThreadPoolExecutor(settings.stream.writers) as pool,
    ):
        while not stop.is_set():
            _take_up(settings, progress, schema_topic.read(), pool)
            state = progress.read()
            loads = _loads(settings, state)
            if not loads:
                log.info("stream waiting reason='no table is loaded yet'")
                _until(lambda: stop.is_set() or bool(_take_up(settings, progress, schema_topic.read(), pool) or _loads(settings, progress.read())), progress)
                continue
            batches = _Batches(settings, schema_topic, progress, pool, _followed(spark, settings, progress))
            if requests := _requested(state):
                _replay(progress, batches.learnt(), requests)
            try:
                query = batches.start(spark)
                while not (stop.is_set() or batches.over(query)):
                    progress_of_query(query, batches, progress)
                    watch.look()
                    batches.newest = _said(progress, batches.newest)
                    if os.getppid() != parent:
                        raise LakerelayError("The program that started this driver is gone.", safe="What is committed stands.", todo="Start the stream again.")
                    state = progress.read()
                    if batches.ended or _loads(settings, state) != loads or _requested(state):
                        break
                batches.stop(query)
                progress_of_query(query, batches, progress)
            except CommitConflictError as error:
                log.warning("stream starts anew reason='%s'", error)  # from what the newest commits say


def _until(condition: Callable[[], bool], progress: Progress) -> None:
    newest = StreamRecord(-1, 0.0, {})
    while not condition():
        newest = _said(progress, newest)
        time.sleep(_POLL)


def _said(progress: Progress, newest: StreamRecord) -> StreamRecord:
    """Write now and then that this driver is there: one that was replaced is refused, also when there is nothing to commit."""
    if time.time() > newest.written_at + _BEAT:
        newest = replace(newest, written_at=time.time())
        progress.write(newest)
    return newest


def _loading(settings: Settings, state: State) -> set[str]:
    """Tables of the lake into which a load is on its way."""
    return {settings.lake_table(record.table) for record in state.tables.values() if record.state == "planned"}


def _loads(settings: Settings, state: State) -> dict[str, str]:
    """Loaded table → its load; none whose table in the lake is being loaded."""
    loading = _loading(settings, state)
    loaded = [record for record in state.tables.values() if record.state == "loaded"]
    return {record.table: record.load for record in loaded if settings.lake_table(record.table) not in loading}


def _followed(spark: SparkSession, settings: Settings, progress: Progress) -> list[Followed]:
    """Every loaded table with the offsets that its newest commit reached. One that cannot go on from there is recorded as stopped."""
    found: dict[str, Followed] = {}
    state = progress.read()
    for name, load in sorted(_loads(settings, state).items()):
        if settings.table(name) is None:
            log.info("stream leaves out table=%s reason='not in the settings'", name)
            continue
        schema = TableSchema.from_json(state.tables[name].schema)
        table = store.lake_table(settings, name, schema.key)
        if table.path not in found:
            commit = store.newest_commit(spark, table)
            found[table.path] = Followed(settings, table, [], commit or Commit(0, {}), store.columns(spark, table) if commit else T.StructType())
        followed = found[table.path]
        reached = followed.commit.sources.get(name)
        if reached is None or reached.load != load:
            error = LakeError(
                "A table that was loaded is not in the lake as the load left it.",
                safe="Nothing was written.",
                todo="Run full_load for this table with replace set.",
                table=name,
                path=table.path,
                recorded_load=load,
                found_load=reached and reached.load,
            )
            _stop(progress, [name], error)
            continue
        followed.sources.append(Source(name, topics.data(topics.capture_prefix(settings), name), [schema]))
    return _with_changes(settings, progress, [each for each in found.values() if each.sources])


def _with_changes(settings: Settings, progress: Progress, followed: list[Followed]) -> list[Followed]:
    """Without the tables whose next change Kafka does not hold, which are recorded as stopped."""
    reached = {source.topic: each.reached(source) for each in followed for source in each.sources}
    errors = lost(settings, {topic: (each.offset, each.topic) for topic, each in reached.items()})
    left = []
    for each in followed:
        mine = [errors[source.topic] for source in each.sources if source.topic in errors]
        if mine:
            _stop(progress, [source.name for source in each.sources], mine[0])
        else:
            left.append(each)
    return left


def _stop(progress: Progress, names: Sequence[str], error: LakerelayError) -> None:
    """Record that these tables are followed no longer; the others go on."""
    log.error("table stopped table=%s %s", ",".join(names), error)
    records = progress.read().tables
    # Not of a table whose next load is on its way.
    progress.write(*(replace(records[name], state="stopped", error=str(error)) for name in names if records[name].state == "loaded"))


def _take_up(settings: Settings, progress: Progress, captured: Mapping[str, Sequence[TableSchema]], pool: ThreadPoolExecutor) -> list[str]:
    """Make a table in the lake for each that was created under a name of the settings: all its rows are captured, so it needs no load. Returns their names.

    The query starts anew with them, as it does with tables that were loaded.
    """
    state = progress.read()
    loading = _loading(settings, state)
    created: dict[str, list[str]] = {}  # of each table of the lake, which has one writer at a time
    for name, schemas in captured.items():
        if name not in state.tables and settings.table(name) and any(schema.created for schema in schemas) and settings.lake_table(name) not in loading:
            created.setdefault(settings.lake_table(name), []).append(name)
    for records in pool.map(lambda names: [taken_up(settings, name, captured[name]) for name in names], created.values()):
        progress.write(*records)
    return [name for names in created.values() for name in names]


def _requested(state: State) -> list[ReplayRecord]:
    return [record for record in state.replays.values() if not record.answered_at]


def _replay(progress: Progress, followed: list[Followed], requests: list[ReplayRecord]) -> None:
    """Answer what `lakerelay replay` has asked for."""
    sources = {source.name: (each, source) for each in followed for source in each.sources}
    for request in requests:
        try:
            if request.table not in sources:
                raise LakeError("The stream does not follow this table.", safe="Nothing was changed.", todo="Load it first.", table=request.table)
            each, source = sources[request.table]
            each.follow_schemas()
            applied, left = each.replay(source)
        except (DecodeError, LakeError) as error:
            log.warning("replay refused table=%s %s", request.table, error)
            progress.write(replace(request, answered_at=time.time(), error=str(error)))
            continue
        log.info("replayed table=%s applied=%d left=%d", request.table, applied, left)
        table = progress.read().tables[request.table]
        progress.write(replace(table, quarantined=left), replace(request, answered_at=time.time(), applied=applied, left=left))


class _Batches:
    """One query and the micro-batches that it hands over."""

    def __init__(self, settings: Settings, schema_topic: SchemaTopic, progress: Progress, pool: ThreadPoolExecutor, followed: list[Followed]) -> None:
        self._settings, self._schema_topic, self._progress, self._pool = settings, schema_topic, progress, pool
        self.followed = followed
        self._epochs = progress.read().epochs
        self.newest = StreamRecord(-1, time.time(), {})
        self.left_out: int | None = None  # the micro-batch that came when the query was to end
        self._writing = threading.Lock()
        self.ended = False
        self._error: BaseException | None = None
        self._number = -1

    def learnt(self) -> list[Followed]:
        """The tables, with the schemas that are known by now."""
        self._read_schemas()
        return self.followed

    def start(self, spark: SparkSession) -> StreamingQuery:
        self._read_schemas()
        if altered := [each for each in self.followed if any(map(each.altered, each.sources))]:
            self._progress.write(self.newest)  # as before each batch
            self._write_tables([(each, None, {}) for each in altered])
        offsets = {source.topic: each.offset(source) for each in self.followed for source in each.sources}
        # A schema change makes a micro-batch too: rows that are there may have to follow it.
        offsets |= topics.end_offsets(self._settings, [topics.capture_prefix(self._settings)])
        log.info("stream starts tables=%s", ",".join(each.table.name for each in self.followed))
        options = source_options(self._settings) | {
            "subscribe": ",".join(offsets),
            "startingOffsets": starting_offsets(offsets),
            "maxOffsetsPerTrigger": str(self._settings.stream.max_events_per_batch),
        }
        records = spark.readStream.format("kafka").options(**options).load()
        records = decode.with_epoch(records, self._epochs).select("topic", "partition", "offset", "timestamp", "value", "epoch")
        writer = records.writeStream.foreachBatch(self._apply).trigger(processingTime=f"{self._settings.stream.seconds_between_batches} seconds")
        return writer.option("checkpointLocation", tempfile.mkdtemp(prefix="lakerelay-checkpoint-")).start()

    def over(self, query: StreamingQuery) -> bool:
        """Whether the query ends within a moment; `stop` says why."""
        try:
            return bool(query.awaitTermination(_POLL))
        except StreamingQueryException:
            return True

    def stop(self, query: StreamingQuery) -> None:
        """End the query between two micro-batches. Raises what a micro-batch raised."""
        self.ended = True
        with self._writing:  # a micro-batch that is being written is finished,
            pass
        query.stop()  # and the lock is free: this waits for a micro-batch that was handed over since, which is left out
        if self._error:
            raise self._error
        if problem := query.exception():
            raise problem

    def _apply(self, batch: DataFrame, number: int) -> None:
        with self._writing:
            # Changes of a server that took the source's place are not decoded as if they were of the one before.
            if self.ended or self._progress.read().epochs != self._epochs:
                self.ended, self.left_out = True, number
                return
            try:
                self._write(batch, number)
            except BaseException as error:
                self._error = error  # on its way through Java it would become text
                raise

    def _write(self, batch: DataFrame, number: int) -> None:
        self._progress.write(self.newest)  # a driver that was replaced is refused here, before it writes
        self._read_schemas()  # the batch's end is fixed by now: every schema that it needs is there
        batch.persist()
        try:
            emptied = F.max(F.when(decode.is_truncate(), F.col("offset")))
            counts = [F.count("*").alias("events"), F.max("timestamp").alias("at"), F.max("offset").alias("last"), emptied.alias("emptied")]
            event = F.struct("value", "epoch")
            # Only where there are several schemas to choose from: values as results make Spark sort all records.
            spans = any(source.has_history for each in self.followed for source in each.sources)
            counts += [F.min_by(event, "offset").alias("first_event"), F.max_by(event, "offset").alias("last_event")] if spans else []
            by_topic = {row["topic"]: row for row in batch.groupBy("topic").agg(*counts).collect()}
            self._number = number
            work = [(each, {source.name: by_topic[source.topic] for source in each.sources if source.topic in by_topic}) for each in self.followed]
            self._write_tables([(each, batch, count) for each, count in work if count or any(map(each.altered, each.sources))])
            # A table that was taken up may be a part of one that is followed, whose newest commit is another then.
            if _take_up(self._settings, self._progress, self._captured, self._pool):
                self.ended = True
        finally:
            batch.unpersist()

    def _read_schemas(self) -> None:
        self._captured = self._schema_topic.read()
        for each in self.followed:
            for source in each.sources:
                source.learn(self._captured.get(source.name, ()), each.table.history)

    def _write_tables(self, work: list[tuple[Followed, DataFrame | None, dict[str, Row]]]) -> None:
        """Side by side. A table whose changes cannot be applied is recorded as stopped, the others go on."""
        errors = list(self._pool.map(lambda item: self._try(*item), work))
        for (followed, _, _), error in zip(work, errors, strict=True):
            if error:
                _stop(self._progress, [source.name for source in followed.sources], error)
        stopped = {id(followed) for (followed, _, _), error in zip(work, errors, strict=True) if error}
        self.followed = [each for each in self.followed if id(each) not in stopped]

    def _try(self, followed: Followed, batch: DataFrame | None, counts: dict[str, Row]) -> DecodeError | None:
        try:
            followed.follow_schemas()
            quarantined = followed.apply(batch, counts, self._number) if batch is not None and counts else {}
            if quarantined:
                records = self._progress.read().tables
                self._progress.write(*(replace(records[name], quarantined=count) for name, count in quarantined.items()))
        except DecodeError as error:
            return error
        return None


def progress_of_query(query: StreamingQuery, batches: _Batches, progress: Progress) -> None:
    """Record the newest finished micro-batch: per table the next offset, the lag in offsets, the newest commit."""
    newest = query.lastProgress
    if not newest or newest["batchId"] in (batches.newest.batch, batches.left_out) or not newest["sources"][0]["endOffset"]:
        return
    source = newest["sources"][0]
    tables = {}
    for each in batches.followed:
        for table in each.sources:
            end, latest = source["endOffset"][table.topic]["0"], source["latestOffset"][table.topic]["0"]
            captured_at = each.commit.facts.newest_at if each.commit.facts else 0.0
            tables[table.name] = {"offset": end, "lag_events": latest - end, "commit": each.commit.instant, "captured_at": captured_at}
    batches.newest = StreamRecord(newest["batchId"], time.time(), tables)
    told = [each.told.pop(0) for each in batches.followed for _ in range(len(each.told))]
    progress.write(batches.newest, commits=sorted(told, key=lambda commit: commit.at))
