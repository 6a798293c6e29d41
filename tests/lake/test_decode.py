"""Debezium's JSON as it comes from Kafka Connect, and the typed rows made of it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakerelay.capture.binlog import Position
from lakerelay.errors import DecodeError
from lakerelay.lake import decode, evolve
from lakerelay.lake.schema import SourceColumn, TableSchema, schemas


def table(*columns: SourceColumn) -> TableSchema:
    return TableSchema("shop.t", columns, (columns[0].name,))


K = table(SourceColumn("k", "INT"))
LAKE_K = evolve.lake_columns([K])


def rows(spark: SparkSession, schema: TableSchema, *values: dict[str, Any]) -> list[tuple[Any, ...]]:
    records = spark.createDataFrame([(bytearray(json.dumps(value).encode()), n) for n, value in enumerate(values)], "value binary, offset bigint")
    return [tuple(row) for row in decode.rows(records, schema, 7).collect()]


@pytest.mark.parametrize(
    ("column", "wire", "expected"),
    [
        (SourceColumn("c", "INT"), -5, -5),
        (SourceColumn("c", "INT UNSIGNED"), 4294967295, 4294967295),
        (SourceColumn("c", "BIGINT UNSIGNED"), 18446744073709551615, Decimal(18446744073709551615)),
        (SourceColumn("c", "DATE"), 9568, date(1996, 3, 13)),
        (SourceColumn("c", "DATETIME", 3), 1700000000123, datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)),
        (SourceColumn("c", "DATETIME", 6), 1700000000123456, datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)),
        (SourceColumn("c", "TIMESTAMP", 3), "2023-11-14T22:13:20.123Z", datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)),
        (SourceColumn("c", "VARCHAR", 20), "grün 🐟", "grün 🐟"),
        (SourceColumn("c", "BLOB"), "AAH/", b"\x00\x01\xff"),
        (SourceColumn("c", "BINARY", 4), "AQI=", b"\x01\x02\x00\x00"),
        (SourceColumn("c", "BIT", 1), True, True),
        (SourceColumn("c", "BIT", 9), "AQE=", 257),
        (SourceColumn("c", "BIT", 64), "AAAAAAAAAIA=", Decimal(2**63)),
        (SourceColumn("c", "DECIMAL", 12, 2), "-157640.87", Decimal("-157640.87")),
        (SourceColumn("c", "DECIMAL", 65, 30), "7.000000000000000000000000000001", "7.000000000000000000000000000001"),
        (SourceColumn("c", "JSON"), '{"a": [1.5e-5, "x : y"]}', '{"a":[0.000015,"x : y"]}'),
        (SourceColumn("c", "VECTOR"), [1.5, -2.0], [1.5, -2.0]),
        (SourceColumn("c", "DOUBLE"), 0.1, 0.1),
    ],
)
def test_a_value_arrives_as_it_is_in_mysql(spark: SparkSession, column: SourceColumn, wire: Any, expected: Any) -> None:
    found = rows(spark, table(column), {"c": wire}, {"c": None})
    value = found[0][0].astimezone(UTC) if isinstance(expected, datetime) else found[0][0]
    assert value == expected
    assert found[1][0] is None


def test_a_decimal_keeps_every_digit(spark: SparkSession) -> None:
    """157640.87 must not become 157640.875, nor 30 digits a double."""
    schema = table(SourceColumn("c", "DECIMAL", 38, 10))
    assert rows(spark, schema, {"c": "1234567890123456789012345678.0123456789"})[0][0] == Decimal("1234567890123456789012345678.0123456789")


def test_a_value_that_does_not_fit_fails(spark: SparkSession) -> None:
    """It must never become NULL silently."""
    with pytest.raises(Py4JJavaError, match="CANNOT_PARSE_JSON_FIELD"):
        rows(spark, table(SourceColumn("c", "INT")), {"c": "five"})


def test_a_type_without_a_mapping_is_named() -> None:
    with pytest.raises(DecodeError, match=r"table='shop.t', column='c', type='HYPERCUBE'"):
        _ = table(SourceColumn("c", "HYPERCUBE")).wire


def test_a_name_that_hudi_does_not_allow_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"letters, digits and _ alone.*column='a b'"):
        _ = table(SourceColumn("a b", "INT")).wire


def test_a_change_has_both_images_and_its_place_in_the_binlog(spark: SparkSession) -> None:
    event = {"op": "u", "before": {"k": 1}, "after": {"k": 2}, "source": {"file": "binlog.000002", "pos": 348, "ts_ms": 1700000000123}}
    gone = {"op": "d", "before": {"k": 1}, "after": None, "source": {"file": "binlog.1000000", "pos": 4}}
    records = spark.createDataFrame([(n, bytearray(json.dumps(each).encode())) for n, each in enumerate([event, gone])], "offset bigint, value binary")
    records = decode.with_epoch(records.withColumn("topic", F.lit("t")), [{"t": 1}])
    found = [row.asDict(recursive=True) for row in decode.changes(records, [K], LAKE_K).orderBy("offset").collect()]
    at = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    for each in found:
        each["_committed_at"] = each["_committed_at"] and each["_committed_at"].astimezone(UTC)
    assert found == [
        {"op": "u", "_seq": Position("binlog.000002", 348).seq, "offset": 0, "before": {"k": 1}, "after": {"k": 2}} | {"_committed_at": at},
        {"op": "d", "_seq": Position("binlog.1000000", 4, epoch=1).seq, "offset": 1, "before": {"k": 1}, "after": None} | {"_committed_at": None},
    ]


def test_a_truncate_is_told_by_its_operation(spark: SparkSession) -> None:
    """Not by a row whose text looks like it."""
    source = {"file": "binlog.000002", "pos": 348}
    text = {"op": "c", "before": None, "after": {"k": '"op":"t"'}, "source": source}
    truncate = {"before": None, "after": None, "source": source, "op": "t"}
    values = [(n, bytearray(json.dumps(event, separators=(",", ":")).encode())) for n, event in enumerate([text, truncate])]
    records = spark.createDataFrame(values, "offset bigint, value binary")
    assert [row["offset"] for row in records.where(decode.is_truncate()).collect()] == [1]


@pytest.mark.parametrize("span", [None, (1, 10_000)])
def test_each_event_is_decoded_by_the_schema_of_its_place(spark: SparkSession, span: tuple[int, int] | None) -> None:
    """k INT; k becomes BIGINT and v is added with a default; v is renamed to w and is a text. Wire types differ, so a wrong schema would fail."""
    schemas = [
        TableSchema("shop.t", (SourceColumn("k", "INT"),), ("k",), 0),
        TableSchema("shop.t", (SourceColumn("k", "BIGINT"), SourceColumn("v", "INT", default="5")), ("k",), 100),
        TableSchema("shop.t", (SourceColumn("w", "VARCHAR", 9), SourceColumn("k", "BIGINT")), ("k",), 200, renames=(("v", "w"),)),
    ]
    rows = [(50, {"k": 1}), (150, {"k": 2, "v": 7}), (250, {"k": 2**40, "w": "seven"})]
    events = [{"op": "c", "before": None, "after": row, "source": {"file": "binlog.000000", "pos": pos}} for pos, row in rows]
    records = spark.createDataFrame([(n, bytearray(json.dumps(event).encode())) for n, event in enumerate(events)], "offset bigint, value binary")
    lake = evolve.lake_columns(schemas)
    records = decode.with_epoch(records, [])
    found = decode.changes(records, schemas, lake, span).orderBy("offset").select("after.k", "after.w").collect()
    assert [tuple(row) for row in found] == [(1, "5"), (2, "7"), (2**40, "seven")]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD COLUMN v INT AS (k * 2) STORED", True),
        ("ALTER TABLE t ADD v INT generated always as(k * 2)", True),
        ("ALTER TABLE t ADD COLUMN v DECIMAL(9, 2) DEFAULT (1 + 1)", True),
        ("ALTER TABLE t ADD COLUMN v INT COMMENT 'it\\'s default (1)', ADD INDEX ((CAST(k AS SIGNED)))", False),
        ("ALTER TABLE t ADD COLUMN v INT COMMENT \"as ('1')\"", False),
    ],
)
def test_a_column_that_a_statement_computes_is_known(statement: str, expected: bool) -> None:
    """Debezium does not tell."""
    columns = [{"name": name, "typeName": "INT", "length": None, "scale": None, "position": n} for n, name in enumerate("kv")]
    change = {"type": "ALTER", "id": '"shop"."t"', "table": {"primaryKeyColumnNames": ["k"], "columns": columns}}
    event = {"source": {"file": "binlog.000001", "pos": 4}, "ddl": statement, "tableChanges": [change]}
    column = schemas([(0, json.dumps(event).encode())])["shop.t"][0].column("v")
    assert column is not None
    assert column.generated is expected


def test_schemas_are_read_from_schema_changes() -> None:
    """CREATE, then ALTER: two schemas with the position from which each is valid; columns in the table's order."""

    def event(pos: int, kind: str, *columns: dict[str, Any], snapshot: str = "false") -> bytes:
        change = {"type": kind, "id": '"shop"."odd""name"', "table": {"primaryKeyColumnNames": ["k"], "columns": list(columns)}}
        return json.dumps({"source": {"file": "binlog.000001", "pos": pos, "snapshot": snapshot}, "tableChanges": [change]}).encode()

    k = {"name": "k", "typeName": "INTEGER UNSIGNED", "length": None, "scale": None, "position": 1}
    v = {"name": "v", "typeName": "NUMERIC", "length": 12, "scale": 2, "position": 2}
    found = schemas([(0, event(4, "CREATE", k, snapshot="true")), (1, event(900, "ALTER", v, k))])
    first = TableSchema('shop.odd"name', (SourceColumn("k", "INT UNSIGNED"),), ("k",), Position("binlog.000001", 4).seq, captured_anew=True)
    later = Position("binlog.000001", 900, epoch=1).seq
    second = TableSchema('shop.odd"name', (SourceColumn("k", "INT UNSIGNED"), SourceColumn("v", "DECIMAL", 12, 2)), ("k",), later)
    assert found == {'shop.odd"name': [first, second]}
    assert [schema.created for schema in schemas([(0, event(4, "CREATE", k))])['shop.odd"name']] == [True]
