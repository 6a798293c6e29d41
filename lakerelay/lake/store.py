"""The only module that writes Hudi tables: their options, their commits, and what a commit says of the Kafka offsets it reached."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay import failpoint
from lakerelay.columns import ADDED, CHANGE, KEY, PARTITION, SCHEMA, SEQ, TABLE
from lakerelay.config import Settings
from lakerelay.errors import CommitConflictError, LakeError, SettingsError
from lakerelay.lake import session

ROWS_PER_BUCKET = 1_000_000  # a base file of some 50 to 150 MB
_SKEW = 10.0  # seconds that a clock may be behind
_PREFIX = "lakerelay."
_KEYS = tuple(_PREFIX + name for name in ("buckets", "sources", "id"))
_FACTS = _PREFIX + "facts"  # of one commit: later ones do not repeat it


@dataclass(frozen=True)
class LakeTable:
    """A table's place and shape in the lake. `key`: columns that tell the source's rows apart, none of a table that has no key; `partition`: Spark SQL
    expression or None.

    `key_may_change`: the key is declared in the settings and is not the primary key, so an update may change it.
    `shared`: several source tables are brought into it; `_schema` and `_table` are part of its key.
    """

    name: str
    path: str
    key: tuple[str, ...]
    partition: str | None
    type: str  # cow | mor
    buckets: int | None = None  # per partition, where the settings say so
    key_may_change: bool = False
    kind: str = "upsert"  # upsert | patch | append
    soft_delete: bool = False
    shared: bool = False

    @property
    def history(self) -> bool:
        """Whether a row is a change, rather than a row of the source."""
        return self.kind == "append"

    @property
    def record_key(self) -> tuple[str, ...]:
        """Hudi's."""
        return (*([SCHEMA, TABLE] if self.shared else []), CHANGE) if self.history else self.key

    @property
    def reads_standing(self) -> bool:
        """Whether what a change writes depends on the row that stands: on its values, or on the partition that it is in."""
        return self.kind == "patch" or (self.soft_delete and self.partition is not None)

    def constants(self, source: str) -> dict[str, Column]:
        """The columns that say which source table a row comes from."""
        return {name: F.lit(part) for name, part in zip((SCHEMA, TABLE), source.split(".", 1), strict=True)} if self.shared else {}

    def is_of(self, source: str) -> Column:
        """Whether a row of the lake comes from this source table."""
        return reduce(and_, (F.col(name) == value for name, value in self.constants(source).items()), F.lit(True))


@dataclass(frozen=True)
class Reached:
    """How far a commit is with one source table.

    `load`: id of the load that brought it; `cut`: `_seq` up to which the load holds every change; `schema`: `_seq` of the source's schema that the columns
    follow; `offset`: of its capture topic, the next to apply; `topic`: that topic's id, empty when an older version wrote the commit.
    """

    load: str
    cut: int
    schema: int = 0
    offset: int = 0
    topic: str = ""


@dataclass(frozen=True)
class Facts:
    """What a commit of the stream took from Kafka: `events` is the sum of all that follow, but for the last. Kept in the commit's metadata, as lakerelay.facts.

    `repeated`: the load holds them; `emptied`: a TRUNCATE or a DROP behind them took their rows; `newest_at`: Unix seconds, when the newest was captured.
    """

    events: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    repeated: int = 0
    emptied: int = 0
    quarantined: int = 0
    newest_at: float = 0.0

    @property
    def unaccounted(self) -> int:
        counted = self.inserts + self.updates + self.deletes + self.truncates + self.repeated + self.emptied + self.quarantined
        return self.events - counted

    def __str__(self) -> str:
        return " ".join(f"{name}={count:,}" for name, count in asdict(self).items() if name != "newest_at" and (count or name == "events"))


@dataclass(frozen=True)
class Commit:
    """What the newest commit of a table says. `buckets`: per partition, fixed by the load; `instant` is Hudi's; `id` is the write's, which the commits of table
    services repeat. Both are empty until written; in what is to be written next they are those of the commit that it builds on.

    `facts`: of a commit of the stream. `rows` that it wrote or deleted, `files` and `bytes` that it wrote, as Hudi counted them.
    """

    buckets: int
    sources: dict[str, Reached]
    instant: str = ""
    id: str = ""
    facts: Facts | None = None
    rows: int = 0
    files: int = 0
    bytes: int = 0

    @property
    def metadata(self) -> dict[str, str]:
        sources = json.dumps({name: asdict(each) for name, each in sorted(self.sources.items())})
        values = {"buckets": str(self.buckets), "sources": sources, "id": self.id}
        return {_PREFIX + name: value for name, value in values.items()}

    def moved(self, source: str, offset: int | None = None, schema: int | None = None) -> "Commit":
        """The next commit, which reaches further with one source table."""
        before = self.sources[source]
        after = replace(before, offset=before.offset if offset is None else offset, schema=before.schema if schema is None else schema)
        return replace(self, sources=self.sources | {source: after})


def lake_table(settings: Settings, name: str, primary_key: tuple[str, ...]) -> LakeTable:
    """The lake's side of source table `name`. Raises SettingsError when the table is not in the settings or has no key."""
    entry = settings.table(name)
    if entry is None:
        raise SettingsError("A table is not in the settings.", todo="Add it to pipeline.toml, or leave it out of `tables`.", table=name)
    key = entry.key or primary_key
    if not key and entry.kind != "append":
        todo = 'Give its entry in pipeline.toml a key = [columns] that is unique, or kind = "append" to keep every change.'
        raise SettingsError("A table has no primary key.", todo=todo, table=name)
    shared, (database, table) = entry.into is not None, settings.lake_table(name).split(".", 1)
    return LakeTable(
        f"{database}.{table}",
        f"{settings.lake.path.rstrip('/')}/{database}/{table}",
        (SCHEMA, TABLE, *key) if shared and key else key,
        entry.partition,
        entry.type,
        entry.buckets,
        key != primary_key,
        entry.kind,
        entry.soft_delete,
        shared,
    )


def buckets_for(rows: int, partitions: int) -> int:
    """Buckets per partition for a table of so many rows: fixed from then on, so that it leaves room to grow.

    >>> buckets_for(25, 1), buckets_for(6_000_000, 84), buckets_for(30_000_000, 1)
    (1, 1, 30)
    """
    return max(1, -(-rows // max(1, partitions) // ROWS_PER_BUCKET))


def load(rows: DataFrame, table: LakeTable, commit: Commit, facts: Facts | None = None) -> Commit:
    """Make the table of exactly these rows, by one commit: columns of the table, and those that lakerelay adds (lakerelay.columns).

    A table that stands already is replaced as a whole; its readers see the old rows until the commit.
    """
    standing = newest_commit(rows.sparkSession, table)
    # No row of before stays, so the columns may be any.
    columns = {"hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true", "hoodie.avro.schema.validate": "false"}
    if standing:
        return _write(rows, table, commit, facts, standing, "insert_overwrite_table", "append", columns)
    # By local time, commits would go backward where clocks are put back.
    return _write(rows, table, commit, facts, standing, "bulk_insert", "overwrite", columns | {"hoodie.table.timeline.timezone": "UTC"})


def upsert(rows: DataFrame, table: LakeTable, commit: Commit, facts: Facts | None = None) -> Commit:
    """Upsert and delete by key; a row older by `_seq` than the one that stands is ignored. `rows` as for `load`, one per key and partition."""
    return _write(rows, table, commit, facts, newest_commit(rows.sparkSession, table), "upsert", "append")


def columns(spark: SparkSession, table: LakeTable) -> T.StructType:
    """The columns of a source row; of a shared table `_schema` and `_table` too."""
    return T.StructType([field for field in read(spark, table).schema if not field.name.startswith("_hoodie_") and field.name not in ADDED])


def read(spark: SparkSession, table: LakeTable) -> DataFrame:
    return spark.read.format("hudi").load(table.path)


def newest_commit(spark: SparkSession, table: LakeTable) -> Commit | None:
    """The newest completed commit that lakerelay wrote, None when there is no table. Raises LakeError for a table that another program made."""
    return next(commits(spark, table), None)


def commits(spark: SparkSession, table: LakeTable) -> Iterator[Commit]:
    """The completed commits that lakerelay wrote and Hudi has not archived, newest first. Raises LakeError when there are only others."""
    jvm: Any = spark._jvm
    properties, files = session.file_system(spark, f"{table.path}/.hoodie/hoodie.properties")
    if not files.exists(properties):
        return
    storage = jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(files.getConf())
    timeline = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder().setConf(storage).setBasePath(table.path).build().getActiveTimeline()
    instants = timeline.getCommitsTimeline().filterCompletedInstants().getReverseOrderedInstants().iterator()
    others, ours = 0, 0
    while instants.hasNext():
        instant = instants.next()
        metadata = timeline.readCommitMetadata(instant)
        values = {key.removeprefix(_PREFIX): metadata.getMetadata(key) for key in (*_KEYS, _FACTS)}
        if values["sources"] is None:
            others += 1
            continue
        ours += 1
        sources = {name: Reached(**reached) for name, reached in json.loads(values["sources"]).items()}
        facts = Facts(**json.loads(values["facts"])) if values["facts"] else None
        yield Commit(int(values["buckets"]), sources, instant.requestedTime(), values["id"] or "", facts, *_counted(metadata))
    if others and not ours:
        raise LakeError(
            "A Hudi table was not written by lakerelay, or its newest commits were written by another program.",
            todo="Move it away, or load the table again into another lake path.",
            table=table.name,
            path=table.path,
        )


def _counted(metadata: Any) -> tuple[int, int, int]:
    """Rows, files and bytes of a commit. A MOR table's upsert counts inserted rows as updated: it appends to their bucket, and reads nothing."""
    rows = metadata.fetchTotalInsertRecordsWritten() + metadata.fetchTotalUpdateRecordsWritten() + metadata.getTotalRecordsDeleted()
    return rows, metadata.fetchTotalFilesInsert() + metadata.fetchTotalFilesUpdated(), metadata.fetchTotalBytesWritten()


def _write(
    rows: DataFrame,
    table: LakeTable,
    commit: Commit,
    facts: Facts | None,
    standing: Commit | None,
    operation: str,
    mode: str,
    more: Mapping[str, str] | None = None,
) -> Commit:
    if commit.id:
        _require_newest(table, standing, commit)
    if standing:
        _require_clock(table, standing)
    commit = replace(commit, id=uuid.uuid4().hex)
    options = _options(table, commit.buckets) | commit.metadata | {"hoodie.datasource.write.operation": operation} | dict(more or {})
    options |= {_FACTS: json.dumps(asdict(facts))} if facts else {}
    if table.record_key != (CHANGE,) and not all(isinstance(rows.schema[column].dataType, T.NumericType | T.BooleanType) for column in table.record_key):
        texts = F.to_json(F.array(*(_as_text(rows, column) for column in table.record_key)))
        # Hudi takes what is before a colon for a field's name, and looks for it for ever where a comma is before the colon.
        rows = rows.withColumn(KEY, F.replace(texts, F.lit(":"), F.lit("\\u003a")))
        options |= {"hoodie.datasource.write.recordkey.field": KEY}
    rows.write.format("hudi").options(**options).mode(mode).save(table.path)
    written = newest_commit(rows.sparkSession, table)
    if written is None or written.id != commit.id:
        raise LakeError(
            "A commit does not stand in the lake as it was written.",
            safe="The table holds what it held before, or the same changes under another commit.",
            todo="See that no other program writes this table, then start again.",
            table=table.name,
            expected=commit.metadata,
            found=written and written.metadata,
        )
    failpoint.passed(f"committed {table.name}")
    return written


def _require_newest(table: LakeTable, standing: Commit | None, commit: Commit) -> None:
    """Raise CommitConflictError when the newest commit is not the one that `commit` builds on."""
    if standing is None or standing.id != commit.id:
        raise CommitConflictError(
            "Another program has written to a table of the lake.",
            safe="Nothing was written on top of it.",
            todo="See that no other stream writes this table, then start again: it goes on from what the newest commit says.",
            table=table.name,
            expected=commit.instant,
            found=standing and standing.instant,
        )


def _require_clock(table: LakeTable, standing: Commit) -> None:
    """Raise LakeError when this machine's clock is behind the newest commit: Hudi orders commits by the clocks of those who write them."""
    ahead = (datetime.strptime(standing.instant, "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) - _now()).total_seconds()
    if ahead > _SKEW:
        raise LakeError(
            "This machine's clock is behind the newest commit of a table.",
            safe="Nothing was written; changes stay in Kafka.",
            todo="Set the clock, then start again.",
            table=table.name,
            commit=standing.instant,
            seconds=round(ahead),
        )
    time.sleep(max(0.0, ahead))


def _now() -> datetime:
    return datetime.now(UTC)


def _as_text(rows: DataFrame, column: str) -> Column:
    binary = isinstance(rows.schema[column].dataType, T.BinaryType)
    return F.hex(f"`{column}`") if binary else F.col(f"`{column}`").cast("string")


def _options(table: LakeTable, buckets: int) -> dict[str, str]:
    """Hudi's options for every write. Sources: Hudi 1.2 configuration reference; measurements in ARCHITECTURE.md."""
    options = {
        "hoodie.table.name": table.name.replace(".", "_").replace("-", "_"),
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if table.type == "mor" else "COPY_ON_WRITE",
        "hoodie.datasource.write.recordkey.field": ",".join(table.record_key),
        "hoodie.datasource.write.partitionpath.field": PARTITION if table.partition else "",
        # Rows of one key are ordered by their place in the binlog, whichever commit brings them.
        "hoodie.table.ordering.fields": SEQ,
        "hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.combine.before.upsert": "false",  # merge.upserts leaves one row per key
        "hoodie.merge.data.validation.enabled": "true",  # a rewritten file that has fewer rows than it must have fails the commit
        # A row's file follows from its key: no look-up, and nothing to keep beside the table.
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": str(buckets),
        "hoodie.parquet.bloom.filter.enabled": "false",
        "hoodie.metadata.enable": "false",
        "hoodie.write.markers.type": "DIRECT",
        "hoodie.embed.timeline.server": "false",
        "hoodie.parquet.compression.codec": "snappy",
        # What a commit says of offsets is said again by table services' commits, so that the newest always has it.
        "hoodie.datasource.write.commitmeta.key.prefix": _PREFIX,
        "hoodie.write.rolling.metadata.keys": ",".join(_KEYS),
        # Compaction runs in the stream's own driver, between two batches: there is never a second writer.
        "hoodie.compact.inline": str(table.type == "mor").lower(),
        "hoodie.compact.inline.trigger.strategy": "NUM_OR_TIME",
        "hoodie.compact.inline.max.delta.commits": "20",
        "hoodie.compact.inline.max.delta.seconds": "3600",
        "hoodie.datasource.compaction.async.enable": "false",
        "hoodie.table.services.incremental.enabled": "false",  # it looks for plans that are archived already, and prints a trace
    }
    parallelism = {f"hoodie.{step}.shuffle.parallelism": "4" for step in ("upsert", "bulkinsert", "delete")}
    return options | parallelism
