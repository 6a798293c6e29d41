"""Debezium's JSON as it comes from Kafka Connect, and the typed rows made of it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakerelay.capture.binlog import Position
from lakerelay.errors import DecodeError
from lakerelay.lake import decode
from lakerelay.lake.schema import SourceColumn, TableSchema, schemas


def table(*columns: SourceColumn) -> TableSchema:
    return TableSchema("shop.t", columns, (columns[0].name,))


def rows(spark: SparkSession, schema: TableSchema, *values: dict[str, Any]) -> list[tuple[Any, ...]]:
    records = spark.createDataFrame([(bytearray(json.dumps(value).encode()),) for value in values], "value binary")
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
        (SourceColumn("c", "BIT", 1), True, True),
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
    records = spark.createDataFrame([(bytearray(b'{"c": 1234567890123456789012345678.0123456789}'),)], "value binary")
    assert decode.rows(records, schema, 0).first()[0] == Decimal("1234567890123456789012345678.0123456789")


def test_a_value_that_does_not_fit_fails(spark: SparkSession) -> None:
    """It must never become NULL silently."""
    with pytest.raises(Py4JJavaError, match="CANNOT_PARSE_JSON_FIELD"):
        rows(spark, table(SourceColumn("c", "INT")), {"c": "five"})


def test_a_type_without_a_mapping_is_named() -> None:
    with pytest.raises(DecodeError, match=r"table='shop.t', column='c', type='VECTOR'"):
        _ = table(SourceColumn("c", "VECTOR")).wire


def test_a_change_has_both_images_and_its_place_in_the_binlog(spark: SparkSession) -> None:
    event = {"op": "u", "before": {"k": 1}, "after": {"k": 2}, "source": {"file": "binlog.000002", "pos": 348, "row": 3}}
    gone = {"op": "d", "before": {"k": 1}, "after": None, "source": {"file": "binlog.1000000", "pos": 4, "row": 0}}
    records = spark.createDataFrame([(n, bytearray(json.dumps(each).encode())) for n, each in enumerate([event, gone])], "offset bigint, value binary")
    found = [row.asDict(recursive=True) for row in decode.changes(records, table(SourceColumn("k", "INT"))).orderBy("offset").collect()]
    assert found == [
        {"op": "u", "_seq": Position("binlog.000002", 348).seq, "row": 3, "offset": 0, "before": {"k": 1}, "after": {"k": 2}},
        {"op": "d", "_seq": Position("binlog.1000000", 4).seq, "row": 0, "offset": 1, "before": {"k": 1}, "after": None},
    ]


def test_a_truncate_stops_the_job(spark: SparkSession) -> None:
    """It cannot be applied as a change of rows, and must not be passed over."""
    event = {"op": "t", "before": None, "after": None, "source": {"file": "binlog.000002", "pos": 348, "row": 0}}
    records = spark.createDataFrame([(0, bytearray(json.dumps(event).encode()))], "offset bigint, value binary")
    with pytest.raises(Py4JJavaError, match=r"shop\.t was emptied by TRUNCATE"):
        decode.changes(records, table(SourceColumn("k", "INT"))).collect()


def test_schemas_are_read_from_schema_changes() -> None:
    """CREATE, then ALTER: two schemas with the position from which each is valid; columns in the table's order."""

    def event(pos: int, kind: str, *columns: dict[str, Any]) -> bytes:
        change = {"type": kind, "id": '"shop"."odd.name"', "table": {"primaryKeyColumnNames": ["k"], "columns": list(columns)}}
        return json.dumps({"source": {"file": "binlog.000001", "pos": pos}, "tableChanges": [change]}).encode()

    k = {"name": "k", "typeName": "INTEGER UNSIGNED", "length": None, "scale": None, "position": 1}
    v = {"name": "v", "typeName": "NUMERIC", "length": 12, "scale": 2, "position": 2}
    found = schemas([event(4, "CREATE", k), event(900, "ALTER", v, k)])
    first = TableSchema("shop.odd.name", (SourceColumn("k", "INT UNSIGNED"),), ("k",), Position("binlog.000001", 4).seq)
    second = TableSchema("shop.odd.name", (SourceColumn("k", "INT UNSIGNED"), SourceColumn("v", "DECIMAL", 12, 2)), ("k",), Position("binlog.000001", 900).seq)
    assert found == {"shop.odd.name": [first, second]}
