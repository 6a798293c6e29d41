"""Records that cannot be decoded, kept as they are in a table beside each table of the lake, until a replay can read them."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakerelay.capture.progress import Progress
from lakerelay.columns import DELETED, SEQ
from lakerelay.config import Settings
from lakerelay.lake import decode, store
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import Commit, LakeTable

_PLACE = ("topic", "partition", "offset")


def table(settings: Settings, source: str) -> LakeTable:
    """Where the records of a source table are kept: topic STRING, partition INT, offset BIGINT, value BINARY (the record's), reason STRING,
    quarantined_at and applied_at TIMESTAMP (by a replay; NULL until then)."""
    database, name = source.split(".", 1)
    return LakeTable(source, f"{settings.lake.path.rstrip('/')}/.quarantine/{database}/{name}", _PLACE, None, "cow", 1)


def put(spark: SparkSession, settings: Settings, source: str, unreadable: DataFrame) -> None:
    """Keep these records (as `unreadable` gives them); those that are kept already are kept once."""
    rows = unreadable.select(*_PLACE, "value", "reason", F.current_timestamp().alias("quarantined_at"), F.lit(None).cast("timestamp").alias("applied_at"))
    _write(spark, settings, source, rows)


def waiting(spark: SparkSession, settings: Settings, source: str) -> DataFrame | None:
    """The records that no replay has applied, None when there never was one."""
    kept = table(settings, source)
    if not store.newest_commit(spark, kept):
        return None
    with Progress(settings) as progress:
        return decode.with_epoch(store.read(spark, kept).where("applied_at is null").drop(SEQ, DELETED), progress.read().epochs)


def mark_applied(spark: SparkSession, settings: Settings, source: str, records: DataFrame) -> None:
    rows = records.select(*_PLACE, "value", "reason", "quarantined_at", F.current_timestamp().alias("applied_at"))
    _write(spark, settings, source, rows)


def unreadable(records: DataFrame, schemas: Sequence[TableSchema]) -> DataFrame:
    """Those of a capture topic's records (topic, partition, offset, value) that `decode.changes` fails on, each with the `reason`."""
    placed = records.withColumn("_place", decode.place_or_null())
    bad = [placed.where("_place is null").withColumn("reason", F.lit("It is not an event with a place in the binlog."))]
    for number, schema in enumerate(schemas):
        mine = placed.where("_place is not null").where(decode.is_under(F.col("_place"), schemas, number))
        bad.append(mine.where(~decode.fits(schema)).withColumn("reason", F.lit(f"It does not fit the table's columns as of _seq {schema.seq}.")))
    return reduce(DataFrame.unionByName, bad).drop("_place")


def without(records: DataFrame, bad: DataFrame) -> DataFrame:
    """The records that are not among `bad` (both with topic and offset)."""
    marked = records.join(F.broadcast(bad.select("topic", "offset", F.lit(True).alias("_bad"))), ["topic", "offset"], "left")
    # The others' values are gone before any parser sees them, whichever filter Spark looks at first.
    return marked.withColumn("value", F.when(F.col("_bad").isNull(), F.col("value"))).where(F.col("value").isNotNull()).drop("_bad")


def _write(spark: SparkSession, settings: Settings, source: str, rows: DataFrame) -> None:
    kept = table(settings, source)
    # A record that was applied is newer than the same one waiting.
    rows = rows.withColumns({SEQ: F.col("applied_at").isNotNull().cast("bigint"), DELETED: F.lit(False)})
    if store.newest_commit(spark, kept):
        store.upsert(rows, kept, Commit(1, {}))
    else:
        store.load(rows, kept, Commit(1, {}))
