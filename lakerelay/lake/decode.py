"""Debezium's JSON → typed columns."""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture.binlog import Position
from lakerelay.lake import evolve
from lakerelay.lake.schema import DELETED, SEQ, TableSchema

_STRICT = {"mode": "FAILFAST"}  # a value that does not fit fails the job instead of turning into NULL
_POSITION = T.StructType([T.StructField("file", T.StringType()), T.StructField("pos", T.LongType()), T.StructField("row", T.IntegerType())])


def rows(records: DataFrame, schema: TableSchema, seq: int) -> DataFrame:
    """A relay's records (value: binary, the row alone) → the columns of `schema`, `_seq` BIGINT, `_hoodie_is_deleted` BOOLEAN."""
    parsed = records.select(F.from_json(F.col("value").cast("string"), schema.wire, _STRICT).alias("row"))
    columns = [column.alias(name) for name, column in schema.values("row").items()]
    return parsed.select(*columns, F.lit(seq).cast("bigint").alias(SEQ), F.lit(False).alias(DELETED))


def changes(records: DataFrame, schemas: Sequence[TableSchema], lake: T.StructType, span: tuple[int, int] | None = None) -> DataFrame:
    """The stream's records (value: binary, offset: BIGINT) → op STRING, `_seq` BIGINT, row INT, offset BIGINT, before and after: structs like `lake`.

    Each record is decoded by the schema that was valid where it stands in the binlog, and brought to the last of `schemas`. `span`: the first and the
    last `_seq` of the records, where they are known; then only schemas between them are looked at. TRUNCATE (op t) has neither image.
    """
    valid = [number for number, _ in enumerate(schemas) if span is None or _is_valid(schemas, number, *span)]
    if len(valid) == 1:
        return _changes(records, schemas[valid[0] :], lake)
    parts = []
    by_place = placed(records)
    for number in valid:
        after = F.col(SEQ) > schemas[number].seq if number != valid[0] else F.lit(True)
        before = F.col(SEQ) <= schemas[number + 1].seq if number != valid[-1] else F.lit(True)
        # Other records are not parsed, whichever of its filters Spark looks at first.
        mine = by_place.withColumn("value", F.when(after & before, F.col("value"))).where(F.col("value").isNotNull())
        parts.append(_changes(mine, schemas[number:], lake))
    return reduce(DataFrame.unionByName, parts)


def placed(records: DataFrame) -> DataFrame:
    """The stream's records with their `_seq`, their rows unparsed."""
    text = F.col("value").cast("string")
    return records.withColumn(SEQ, seq(F.get_json_object(text, "$.source.file"), F.get_json_object(text, "$.source.pos").cast("bigint")))


def is_truncate() -> Column:
    """Whether a record of the stream is a TRUNCATE; within a text of a row the quotes would be escaped."""
    return F.instr(F.col("value").cast("string"), '"op":"t"') > 0


def _is_valid(schemas: Sequence[TableSchema], number: int, first: int, last: int) -> bool:
    """Whether a record between two places in the binlog may have this schema; the first is valid before itself too."""
    begins = number == 0 or schemas[number].seq < last
    return begins and (number + 1 == len(schemas) or schemas[number + 1].seq >= first)


def _changes(records: DataFrame, schemas: Sequence[TableSchema], lake: T.StructType) -> DataFrame:
    schema = schemas[0]
    envelope = T.StructType(
        [
            T.StructField("before", schema.wire),
            T.StructField("after", schema.wire),
            T.StructField("source", _POSITION),
            T.StructField("op", T.StringType()),
        ]
    )
    parsed = records.select("offset", F.from_json(F.col("value").cast("string"), envelope, _STRICT).alias("event"))
    return parsed.select(
        F.col("event.op").alias("op"),
        seq(F.col("event.source.file"), F.col("event.source.pos")).alias(SEQ),
        F.col("event.source.row").alias("row"),
        "offset",
        _image(schemas, lake, "before"),
        _image(schemas, lake, "after"),
    )


def seq(file: Column, pos: Column) -> Column:
    """Binlog file STRING and position BIGINT → one BIGINT in binlog order, as `Position.seq` packs it.

    | file            | pos | seq              |
    |-----------------|-----|------------------|
    | binlog.000002   | 348 | 8589934940       |
    | binlog.1000000  | 4   | 4294967296000004 |
    """
    return F.shiftleft(F.substring_index(file, ".", -1).cast("bigint"), 32) + pos


def place(value: bytes) -> int:
    """`_seq` of one of the stream's records."""
    source = json.loads(value)["source"]
    return Position(source["file"], source["pos"]).seq


def _image(schemas: Sequence[TableSchema], lake: T.StructType, name: str) -> Column:
    image = F.struct(*evolve.columns(schemas[0].values(f"event.{name}"), schemas, lake))
    return F.when(F.col(f"event.{name}").isNotNull(), image).alias(name)
