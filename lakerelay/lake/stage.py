"""A scanned relay's rows: from its topics into typed Parquet beside the lake, so that the load of a table reads them all at once."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from lakerelay.capture.binlog import Position
from lakerelay.capture.progress import RelayRecord
from lakerelay.columns import SOFT_DELETED
from lakerelay.config import Settings
from lakerelay.errors import RelayError
from lakerelay.lake import decode, merge, session, topic
from lakerelay.lake.schema import TableSchema
from lakerelay.lake.store import LakeTable

RECORD = "value binary, offset bigint"


def folder(settings: Settings, load: str, relay: str = "", table: str = "") -> str:
    """Where rows are staged: of a load, of one of its relays, of one table of that relay."""
    return "/".join(part for part in (settings.lake.path.rstrip("/"), ".staging", load, relay, table) if part)


def stage(spark: SparkSession, settings: Settings, relay: RelayRecord, source: str, table: LakeTable, schema: TableSchema) -> None:
    """Write the rows of `source` in a scanned relay: its columns, and those that lakerelay adds in the lake.

    Raises RelayError when the topic does not hold as many rows as Debezium says it scanned.
    """
    expected, counted = relay.rows[source], Observation()
    records = topic.records(spark, settings, relay.topics[source]) if expected else spark.createDataFrame([], RECORD)
    rows = typed(records, schema, source, table, window(relay)[0].seq, relay.id, relay.started_at)
    path = folder(settings, relay.load, relay.id, source)
    rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").parquet(path)
    if (found := counted.get["rows"]) != expected:
        remove(spark, path)
        raise RelayError(
            "A relay's topic does not hold the rows that were scanned.",
            safe="Nothing of this table was written to the lake.",
            todo="Run full_load for this table with replace set.",
            relay=relay.id,
            table=source,
            scanned=expected,
            found=found,
        )


def typed(records: DataFrame, schema: TableSchema, source: str, table: LakeTable, seq: int, relay: str = "", read_at: float = 0.0) -> DataFrame:
    """A relay's records of `source` (value, offset) as rows of `table`."""
    rows = decode.rows(records, schema, seq).withColumns(table.constants(source))
    rows = merge.with_history(rows, relay, read_at) if table.history else rows
    rows = rows.withColumn(SOFT_DELETED, F.lit(False)) if table.soft_delete else rows
    return merge.partitioned(rows.drop("offset"), table.partition)


def is_staged(spark: SparkSession, settings: Settings, relay: RelayRecord, table: str) -> bool:
    path, files = session.file_system(spark, f"{folder(settings, relay.load, relay.id, table)}/_SUCCESS")
    return bool(files.exists(path))


def staged(spark: SparkSession, settings: Settings, relays: Sequence[RelayRecord], table: str) -> DataFrame:
    """The staged rows of a table, of relays that read it under one schema."""
    return spark.read.parquet(*(folder(settings, relay.load, relay.id, table) for relay in relays))


def remove(spark: SparkSession, path: str) -> None:
    where, files = session.file_system(spark, path)
    files.delete(where, True)


def window(relay: RelayRecord) -> tuple[Position, Position]:
    """Between which two positions each row of a scanned relay was read."""
    if relay.low is None or relay.high is None:
        raise RelayError("A relay was recorded as scanned without its positions.", todo="Run full_load for its tables with replace set.", relay=relay.id)
    return relay.low, relay.high
