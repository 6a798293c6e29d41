"""Debezium's JSON → typed columns."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.lake.schema import DELETED, SEQ, TableSchema

_STRICT = {"mode": "FAILFAST"}  # a value that does not fit fails the job instead of turning into NULL
_POSITION = T.StructType([T.StructField("file", T.StringType()), T.StructField("pos", T.LongType()), T.StructField("row", T.IntegerType())])


def rows(records: DataFrame, schema: TableSchema, seq: int) -> DataFrame:
    """A relay's records (value: binary, the row alone) → the table's columns, `_seq` BIGINT, `_hoodie_is_deleted` BOOLEAN."""
    parsed = records.select(F.from_json(F.col("value").cast("string"), schema.wire, _STRICT).alias("row"))
    return parsed.select(*schema.lake_columns("row"), F.lit(seq).cast("bigint").alias(SEQ), F.lit(False).alias(DELETED))


def changes(records: DataFrame, schema: TableSchema) -> DataFrame:
    """The stream's records (value: binary, offset: BIGINT) → op STRING, `_seq` BIGINT, row INT, offset BIGINT, before and after: structs of lake columns."""
    envelope = T.StructType(
        [
            T.StructField("before", schema.wire),
            T.StructField("after", schema.wire),
            T.StructField("source", _POSITION),
            T.StructField("op", T.StringType()),
        ]
    )
    parsed = records.select("offset", F.from_json(F.col("value").cast("string"), envelope, _STRICT).alias("event"))
    truncate = F.raise_error(F.lit(f"{schema.table} was emptied by TRUNCATE. Nothing of this batch was written to it. Run full_load for it with replace set."))
    return parsed.select(
        F.when(F.col("event.op") == "t", truncate.cast("string")).otherwise(F.col("event.op")).alias("op"),
        seq(F.col("event.source.file"), F.col("event.source.pos")).alias(SEQ),
        F.col("event.source.row").alias("row"),
        "offset",
        _image(schema, "before"),
        _image(schema, "after"),
    )


def seq(file: Column, pos: Column) -> Column:
    """Binlog file STRING and position BIGINT → one BIGINT in binlog order, as `Position.seq` packs it.

    | file            | pos | seq              |
    |-----------------|-----|------------------|
    | binlog.000002   | 348 | 8589934940       |
    | binlog.1000000  | 4   | 4294967296000004 |
    """
    return F.shiftleft(F.substring_index(file, ".", -1).cast("bigint"), 32) + pos


def _image(schema: TableSchema, name: str) -> Column:
    image = F.struct(*schema.lake_columns(f"event.{name}"))
    return F.when(F.col(f"event.{name}").isNotNull(), image).alias(name)
