"""Debezium's JSON → typed columns."""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture.binlog import Position
from lakerelay.columns import COMMITTED_AT, DELETED, SEQ
from lakerelay.lake import evolve
from lakerelay.lake.schema import TableSchema

_MALFORMED = "MALFORMED_EVENT"  # begins the message about a record that is JSON and no event
_STRICT = {"mode": "FAILFAST"}  # a value that does not fit fails the job instead of turning into NULL
_SOURCE = T.StructType(
    [
        T.StructField("file", T.StringType()),
        T.StructField("pos", T.LongType()),
        T.StructField("ts_ms", T.LongType()),
    ]
)


def rows(records: DataFrame, schema: TableSchema, seq: int) -> DataFrame:
    """A relay's records (value: binary, the row alone; offset) → the columns of `schema`, `_seq`, `_hoodie_is_deleted`, offset BIGINT."""
    parsed = records.select(F.from_json(F.col("value").cast("string"), schema.wire, _STRICT).alias("row"), "offset")
    columns = [column.alias(name) for name, column in schema.values("row").items()]
    return parsed.select(*columns, F.lit(seq).cast("bigint").alias(SEQ), F.lit(False).alias(DELETED), "offset")


def changes(
    records: DataFrame,
    schemas: Sequence[TableSchema],
    lake: T.StructType,
    span: tuple[int, int] | None = None,
    constants: Mapping[str, Column] | None = None,
    history: bool = False,
) -> DataFrame:
    """The stream's records (value: binary, offset, epoch: BIGINT) → op STRING, `_seq` BIGINT, offset BIGINT, `_committed_at` TIMESTAMP, before and
    after: structs like `lake`.

    Each record is decoded by the schema that was valid where it stands in the binlog, and brought to the last of `schemas`, unless it is `history`. `span`:
    the first and the last `_seq` of the records, where they are known; then only schemas between them are looked at. `constants`: columns of `lake` with
    one value for all of these records. TRUNCATE (op t) has neither image, as `history` an empty one.
    """
    valid = [number for number, _ in enumerate(schemas) if span is None or _is_valid(schemas, number, *span)]
    given = constants or {}
    if len(valid) == 1:
        return _changes(records, schemas[valid[0] :], lake, given, history)
    parts = []
    by_place = placed(records)
    for number in valid:
        # Other records are not parsed, whichever of its filters Spark looks at first.
        mine = by_place.withColumn("value", F.when(is_under(F.col(SEQ), schemas, number), F.col("value"))).where(F.col("value").isNotNull())
        parts.append(_changes(mine, schemas[number:], lake, given, history))
    return reduce(DataFrame.unionByName, parts)


def placed(records: DataFrame) -> DataFrame:
    """The stream's records (value, epoch) with their `_seq`, their rows unparsed; fails for one that has none."""
    return records.withColumn(SEQ, _required(place_or_null()))


def place_or_null() -> Column:
    """`_seq` of a record, NULL where it has none."""
    text = F.col("value").cast("string")
    return _packed(F.get_json_object(text, "$.source.file"), F.get_json_object(text, "$.source.pos").cast("bigint"))


def with_epoch(records: DataFrame, epochs: Sequence[Mapping[str, int]]) -> DataFrame:
    """Records (topic, offset) with `epoch` BIGINT: see `PositionRecord.epochs`."""
    maps = [F.create_map(*(F.lit(each) for item in first.items() for each in item)) for first in epochs]
    begun = [F.col("offset") >= F.coalesce(first[F.col("topic")], F.lit(0)) for first in maps]
    return records.withColumn("epoch", reduce(add, (each.cast("bigint") for each in begun), F.lit(0).cast("bigint")))


def is_malformed(error: Exception) -> bool:
    """Whether Spark failed because a record cannot be decoded."""
    return any(word in str(error) for word in (_MALFORMED, "MALFORMED_RECORD_IN_PARSING", "CANNOT_PARSE_JSON_FIELD"))


def fits(schema: TableSchema) -> Column:
    """Whether `changes` can decode a record under this schema."""
    envelope = T.StructType([*_envelope(schema), T.StructField("_corrupt", T.StringType())])
    event = F.from_json(F.col("value").cast("string"), envelope, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"})
    return event.isNotNull() & event["_corrupt"].isNull() & event["op"].isNotNull()


def is_truncate() -> Column:
    """Whether a record of the stream is a TRUNCATE; within a text of a row the quotes would be escaped."""
    return F.instr(F.col("value").cast("string"), '"op":"t"') > 0


def is_under(place: Column, schemas: Sequence[TableSchema], number: int) -> Column:
    """Whether a record at this place has that one of `schemas`; the first is valid before itself too."""
    after = place > schemas[number].seq if number else F.lit(True)
    before = place <= schemas[number + 1].seq if number + 1 < len(schemas) else F.lit(True)
    return after & before


def _is_valid(schemas: Sequence[TableSchema], number: int, first: int, last: int) -> bool:
    """Whether a record between two places in the binlog may have this schema; the first is valid before itself too."""
    begins = number == 0 or schemas[number].seq < last
    return begins and (number + 1 == len(schemas) or schemas[number + 1].seq >= first)


def _changes(records: DataFrame, schemas: Sequence[TableSchema], lake: T.StructType, constants: Mapping[str, Column], history: bool) -> DataFrame:
    parsed = records.select("offset", "epoch", F.from_json(F.col("value").cast("string"), _envelope(schemas[0]), _STRICT).alias("event"))

    def image(name: str) -> Column:
        values = schemas[0].values(f"event.{name}") | dict(constants)
        columns = F.struct(*evolve.columns(values, schemas, lake, history))
        there = F.col(f"event.{name}").isNotNull()
        # A TRUNCATE is a row too in a table of changes, with the constants alone.
        return F.when(there | (F.col("event.op") == "t") if history and name == "after" else there, columns).alias(name)

    return parsed.select(
        F.col("event.op").alias("op"),
        _required(_packed(F.col("event.source.file"), F.col("event.source.pos"))).alias(SEQ),
        "offset",
        F.timestamp_millis("event.source.ts_ms").alias(COMMITTED_AT),
        image("before"),
        image("after"),
    )


def _envelope(schema: TableSchema) -> T.StructType:
    return T.StructType(
        [
            T.StructField("before", schema.wire),
            T.StructField("after", schema.wire),
            T.StructField("source", _SOURCE),
            T.StructField("op", T.StringType()),
        ]
    )


def _packed(file: Column, pos: Column) -> Column:
    """Binlog file STRING and position BIGINT of a record with an epoch → one BIGINT in binlog order, as `Position.seq` packs it; NULL without them.

    | epoch | file            | pos | seq               |
    |-------|-----------------|-----|-------------------|
    | 0     | binlog.000002   | 348 | 8589934940        |
    | 0     | binlog.1000000  | 4   | 4294967296000004  |
    | 1     | binlog.000001   | 4   | 72057598332895236 |
    """
    return F.shiftleft("epoch", 56) + F.shiftleft(F.substring_index(file, ".", -1).cast("bigint"), 32) + pos


def _required(packed: Column) -> Column:
    return F.coalesce(packed, F.raise_error(F.lit(f"[{_MALFORMED}] A record has no place in the binlog.")).cast("bigint"))


def place(value: bytes, epoch: int) -> int:
    """`_seq` of one of the stream's records. Raises ValueError when it has none."""
    try:
        source = json.loads(value)["source"]
        return Position(source["file"], source["pos"], epoch=epoch).seq
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"[{_MALFORMED}] A record has no place in the binlog.") from error
