"""A table as it was at one position: the rows that its relays read, and the changes that were captured meanwhile."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import or_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture import topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.progress import RelayRecord, TableRecord
from lakerelay.columns import ADDED, DELETED, PARTITION, SCHEMA, SEQ, TABLE
from lakerelay.config import Settings
from lakerelay.errors import LakeError, RelayError, SourceError
from lakerelay.lake import decode, evolve, merge, stage, store
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import Commit, LakeTable, Reached
from lakerelay.lake.topic import read_schemas, records


@dataclass(frozen=True)
class Whole:
    """`rows` as `store.load` takes them; `offset`: of the capture topic with the id `topic`, behind the changes that they hold."""

    rows: DataFrame
    offset: int
    topic: str
    count: int
    partitions: int


def window(relays: Sequence[RelayRecord]) -> tuple[Position, Position]:
    """The lowest low and the highest high."""
    windows = [stage.window(relay) for relay in relays]
    return min(low for low, _ in windows), max(high for _, high in windows)


def schema(settings: Settings, record: TableRecord, relays: Sequence[RelayRecord]) -> TableSchema:
    """The table's schema at the highest high."""
    # The capture's own, by which the stream decodes: of a BOOL that came by a statement it makes a boolean, a relay a number.
    return (_valid_within(settings, record.table, relays) or [_read_under(settings, record.table, relays[-1])])[-1]


def write(
    spark: SparkSession,
    settings: Settings,
    records: Sequence[TableRecord],
    relays: Mapping[str, Sequence[RelayRecord]],
    schemas: Mapping[str, TableSchema],
    table: LakeTable,
    standing: Commit | None,
) -> Commit:
    """Load these source tables into the lake table that they share, or the one into its own, by one commit; the old rows are replaced.

    Of a shared table that stands (`standing`: its newest commit) the other sources' rows stay.
    """
    with ExitStack() as stack:
        wholes = {
            record.table: stack.enter_context(_assembled(spark, settings, record, relays[record.table], schemas[record.table], table)) for record in records
        }
        buckets = table.buckets or store.buckets_for(sum(whole.count for whole in wholes.values()), max(whole.partitions for whole in wholes.values()))
        sources = {
            record.table: Reached(
                record.load, window(relays[record.table])[1].seq, schemas[record.table].seq, wholes[record.table].offset, wholes[record.table].topic
            )
            for record in records
        }
        return _commit(spark, table, [whole.rows for whole in wholes.values()], schemas, sources, buckets, standing)


def write_empty(spark: SparkSession, source: str, schema: TableSchema, table: LakeTable, reached: Reached) -> Commit:
    """Bring in a source table that has had no row yet, by one commit. Raises LakeError when the lake has a table in its place."""
    standing = store.newest_commit(spark, table)
    if standing is not None and standing.sources.get(source) == reached:
        return standing  # an interrupted run has made it
    if standing is not None and (source in standing.sources or not table.shared):
        raise LakeError(
            "A table was created in MySQL, but one stands in its place in the lake.",
            safe="That one is left as it is.",
            todo="Run full_load for it with replace set.",
            table=source,
            path=table.path,
        )
    rows = stage.typed(spark.createDataFrame([], stage.RECORD), schema, source, table, reached.cut)
    return _commit(spark, table, [rows], {source: schema}, {source: reached}, table.buckets or 1, standing)


def _commit(
    spark: SparkSession,
    table: LakeTable,
    parts: Sequence[DataFrame],
    schemas: Mapping[str, TableSchema],
    sources: Mapping[str, Reached],
    buckets: int,
    standing: Commit | None,
) -> Commit:
    if standing is None or not table.shared:
        rows = _together(parts, schemas.values())
        if table.soft_delete and standing is not None:
            rows = merge.with_gone(rows, store.read(spark, table), table)
        return store.load(rows, table, Commit(buckets, dict(sources)))
    there, commit = store.read(spark, table), replace(standing, sources=standing.sources | dict(sources))
    columns, mine = store.columns(spark, table), reduce(or_, map(table.is_of, sources))
    rows = _together(parts, schemas.values(), columns)
    replaced = merge.with_gone(rows, there.where(mine), table)
    if all(rows.schema[field.name].dataType == field.dataType for field in columns):
        return store.upsert(replaced, table, commit)
    others = merge.shaped(there.where(~mine), rows.schema)
    return store.load(replaced.where(~F.col(DELETED)).unionByName(others), table, commit)


def _together(parts: Sequence[DataFrame], schemas: Iterable[TableSchema], lake: T.StructType | None = None) -> DataFrame:
    """Rows of several source tables, with columns that hold all of theirs and `lake`'s."""
    if len(parts) == 1 and lake is None:
        return parts[0]
    for schema in schemas:
        lake = evolve.lake_columns([schema], lake)
    assert lake is not None
    more = [field for field in parts[0].schema if field.name not in lake.names and field.name in (SCHEMA, TABLE, *ADDED)]
    return reduce(DataFrame.unionByName, (merge.shaped(part, T.StructType([*lake, *more])) for part in parts))


@contextmanager
def _assembled(
    spark: SparkSession, settings: Settings, record: TableRecord, relays: Sequence[RelayRecord], newest: TableSchema, table: LakeTable
) -> Iterator[Whole]:
    """The table behind all changes up to the highest high, with the columns of `newest`, its schema there.

    Raises RelayError when staged rows are missing, SchemaChangeError.
    """
    low, high = window(relays)
    lake = T.StructType([*evolve.lake_columns([newest]), *(T.StructField(name, T.StringType()) for name in table.constants(record.table))])
    schemas = _valid_within(settings, record.table, relays)
    rows = _rows(spark, settings, record.table, table, relays, _since(low, schemas), lake)
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
    topic = topics.data(topics.capture_prefix(settings), record.table)
    captured = decode.placed(records(spark, settings, topic, record.offset)).where(F.col(SEQ) <= high.seq).persist()
    identity, _ = topics.described(settings, [topic])[topic]
    try:
        within = F.col(SEQ) > low.seq
        last, missing, emptied = captured.agg(F.max("offset"), F.count_if(within), F.max(F.when(within & decode.is_truncate(), F.col("offset")))).collect()[0]
        schemas = schemas or [newest]
        made_anew = max((each.seq for each in schemas[1:] if each.emptied), default=0)
        schemas = [each for each in schemas if each.seq >= made_anew]
        base = None if made_anew or emptied is not None else rows
        if missing or base is None:
            later = captured.where(within & (F.col(SEQ) > made_anew) & (F.col("offset") > (-1 if emptied is None else emptied)))
            changes = decode.changes(later, schemas, lake, constants=table.constants(record.table))
            rows = merge.brought_up(base, merge.loaded(changes, table), table)
        yield Whole(rows, record.offset if last is None else last + 1, identity, found, partitions)
    finally:
        captured.unpersist()


def _rows(
    spark: SparkSession,
    settings: Settings,
    source: str,
    table: LakeTable,
    relays: Sequence[RelayRecord],
    altered: Sequence[TableSchema],
    lake: T.StructType,
) -> DataFrame:
    """What the relays read, each under the schema of its time, with the columns `lake`; `altered`: the schemas that the table got meanwhile."""
    if not altered:
        return stage.staged(spark, settings, relays, source)
    parts = []
    reads = [(relay, _read_under(settings, source, relay)) for relay in relays]
    for _, group in groupby(reads, key=lambda each: _shape(each[1])):
        same, (read, *_) = zip(*group, strict=True)
        since = next((number for number, each in reversed(list(enumerate(altered))) if _shape(each) == _shape(read)), None)
        chain = [read, *altered] if since is None else altered[since:]
        rows = stage.staged(spark, settings, same, source)
        values = {name: F.col(f"`{name}`") for name in rows.columns if name not in ADDED}
        parts.append(rows.select(*evolve.columns(values, chain, lake), *(name for name in ADDED if name in rows.columns and name != PARTITION)))
    return merge.partitioned(reduce(DataFrame.unionByName, parts), table.partition)


def _since(low: Position, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    return [each for each in schemas if each.seq > low.seq]


def _valid_within(settings: Settings, table: str, relays: Sequence[RelayRecord]) -> list[TableSchema]:
    """The schema that the table had at the lowest low, and those that it got since."""
    low, high = window(relays)
    known = [each for each in read_schemas(settings, topics.capture_prefix(settings)).get(table, []) if each.seq <= high.seq]
    before = [each for each in known if each.seq <= low.seq]
    within = known[len(before) :]
    if any(each.captured_anew for each in within):
        raise SourceError(
            "Capture lost its position and began anew while the table was read: changes in between are missing.",
            safe="Nothing of this table was written to the lake.",
            todo="Run full_load for this table with replace set.",
            table=table,
            low=str(low),
            high=str(high),
        )
    return before[-1:] + within


def _read_under(settings: Settings, table: str, relay: RelayRecord) -> TableSchema:
    return read_schemas(settings, relay.schema_topic, stage.window(relay)[0].epoch)[table][-1]


def _shape(schema: TableSchema) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.lake_type.simpleString()) for column in schema.columns)
