"""A table as it was at one position: the rows that its relays read, and the changes that were captured meanwhile."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture import topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.progress import RelayRecord, TableRecord
from lakerelay.config import Settings
from lakerelay.errors import RelayError
from lakerelay.lake import decode, evolve, merge, stage, store
from lakerelay.lake.merge import PARTITION
from lakerelay.lake.schema import DELETED, SEQ, TableSchema
from lakerelay.lake.topic import read_schemas, records


@dataclass(frozen=True)
class Whole:
    """`rows` as `store.load` takes them; `offset`: of the capture topic, behind the changes that they hold."""

    rows: DataFrame
    offset: int
    buckets: int


def window(relays: Sequence[RelayRecord]) -> tuple[Position, Position]:
    """The lowest low and the highest high."""
    windows = [stage.window(relay) for relay in relays]
    return min(low for low, _ in windows), max(high for _, high in windows)


def schema(settings: Settings, record: TableRecord, relays: Sequence[RelayRecord]) -> TableSchema:
    """The table's schema at the highest high."""
    low, _ = window(relays)
    return (_since(low, _valid_within(settings, record.table, relays)) or [_read_under(settings, record.table, relays[-1])])[-1]


@contextmanager
def assembled(
    spark: SparkSession, settings: Settings, record: TableRecord, relays: Sequence[RelayRecord], newest: TableSchema, table: store.LakeTable
) -> Iterator[Whole]:
    """The table behind all changes up to the highest high, with the columns of `newest`, its schema there.

    Raises RelayError when staged rows are missing, SchemaChangeError.
    """
    low, high = window(relays)
    lake = evolve.lake_columns([newest])
    schemas = _valid_within(settings, record.table, relays)
    rows = _rows(spark, settings, table, relays, _since(low, schemas), lake)
    found, expected = rows.count(), sum(relay.rows[record.table] for relay in relays)
    if found != expected:
        raise RelayError(
            "Staged rows are not the rows that were scanned.",
            safe="Nothing of this table was written to the lake.",
            todo="Run full_load for this table with replace set.",
            table=record.table,
            scanned=expected,
            staged=found,
        )
    partitions = rows.select(PARTITION).distinct().count() if table.partition else 1
    buckets = table.buckets or store.buckets_for(found, partitions)
    topic = topics.data(topics.capture_prefix(settings), record.table)
    captured = decode.placed(records(spark, settings, topic, record.offset)).where(F.col(SEQ) <= high.seq).persist()
    try:
        within = F.col(SEQ) > low.seq
        last, missing, emptied = captured.agg(F.max("offset"), F.count_if(within), F.max(F.when(within & decode.is_truncate(), F.col("offset")))).collect()[0]
        schemas = schemas or [newest]
        made_anew = max((each.seq for each in schemas[1:] if each.emptied), default=0)
        schemas = [each for each in schemas if each.seq >= made_anew]
        later = captured.where(within & (F.col(SEQ) > made_anew) & (F.col("offset") > (-1 if emptied is None else emptied)))
        base = None if made_anew or emptied is not None else rows
        changes = decode.changes(later, schemas, lake) if missing or base is None else None
        whole = merge.brought_up(base, changes, table.key, table.partition, table.key_may_change)
        yield Whole(whole, record.offset if last is None else last + 1, buckets)
    finally:
        captured.unpersist()


def _rows(
    spark: SparkSession, settings: Settings, table: store.LakeTable, relays: Sequence[RelayRecord], altered: Sequence[TableSchema], lake: T.StructType
) -> DataFrame:
    """What the relays read, each under the schema of its time, with the columns `lake`; `altered`: the schemas that the table got meanwhile."""
    if not altered:
        return stage.staged(spark, settings, relays, table.name)
    parts = []
    reads = [(relay, _read_under(settings, table.name, relay)) for relay in relays]
    for _, group in groupby(reads, key=lambda each: _shape(each[1])):
        same, (read, *_) = zip(*group, strict=True)
        since = next((number for number, each in reversed(list(enumerate(altered))) if _shape(each) == _shape(read)), None)
        chain = [read, *altered] if since is None else altered[since:]
        rows = stage.staged(spark, settings, same, table.name)
        parts.append(rows.select(*evolve.columns({name: F.col(f"`{name}`") for name, _ in _shape(read)}, chain, lake), SEQ, DELETED))
    return merge.partitioned(reduce(DataFrame.unionByName, parts), table.partition)


def _since(low: Position, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    return [each for each in schemas if each.seq > low.seq]


def _valid_within(settings: Settings, table: str, relays: Sequence[RelayRecord]) -> list[TableSchema]:
    """The schema that the table had at the lowest low, and those that it got since."""
    low, high = window(relays)
    known = [each for each in read_schemas(settings, topics.capture_prefix(settings)).get(table, []) if each.seq <= high.seq]
    before = [each for each in known if each.seq <= low.seq]
    return before[-1:] + known[len(before) :]


def _read_under(settings: Settings, table: str, relay: RelayRecord) -> TableSchema:
    return read_schemas(settings, relay.schema_topic)[table][-1]


def _shape(schema: TableSchema) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.lake_type.simpleString()) for column in schema.columns)
