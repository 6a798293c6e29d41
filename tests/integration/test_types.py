"""Every MySQL type, by the relay and by the stream: what a reader of the lake gets."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.config import Settings
from tests.integration.pipeline import Pipeline


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


DIGITS = "12345678901234567890123456789012345.123456789012345678901234567891"
# MySQL type → (SQL literal, what the lake holds)
CASES: dict[str, list[tuple[str, Any]]] = {
    "TINYINT": [("-128", -128), ("127", 127)],
    "TINYINT UNSIGNED": [("255", 255)],
    "TINYINT(1)": [("TRUE", 1), ("-7", -7)],
    "SMALLINT": [("-32768", -32768)],
    "SMALLINT UNSIGNED": [("65535", 65535)],
    "MEDIUMINT": [("-8388608", -8388608)],
    "MEDIUMINT UNSIGNED": [("16777215", 16777215)],
    "INT": [("-2147483648", -2147483648), ("2147483647", 2147483647)],
    "INT UNSIGNED": [("4294967295", 4294967295)],
    "INT(8) ZEROFILL": [("42", 42)],
    "BIGINT": [("-9223372036854775808", -9223372036854775808)],
    "BIGINT UNSIGNED": [("18446744073709551615", Decimal(2**64 - 1)), ("9223372036854775808", Decimal(2**63)), ("0", Decimal(0))],
    "DECIMAL(15, 2)": [("157640.87", Decimal("157640.87")), ("-0.01", Decimal("-0.01"))],
    "DECIMAL(38, 10)": [("1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789"))],
    "DECIMAL(65, 30)": [(DIGITS, DIGITS), ("-0.000000000000000000000000000001", "-0.000000000000000000000000000001"), ("7", "7." + "0" * 30)],
    "DECIMAL(10, 3) UNSIGNED": [("1234567.891", Decimal("1234567.891"))],
    "FLOAT": [("1.1", 1.10000002384185791015625), ("16777217", 16777216.0), ("-3.4028234e38", -3.4028234663852886e38), ("123456.789", 123456.7890625)],
    "DOUBLE": [("0.1", 0.1), ("1.7976931348623157e308", 1.7976931348623157e308), ("-2.2250738585072014e-308", -2.2250738585072014e-308)],
    "BIT(1)": [("b'1'", True), ("b'0'", False)],
    "BIT(9)": [("b'100000001'", 257)],
    "BIT(64)": [("b'1" + "0" * 62 + "1'", Decimal(2**63 + 1)), ("b'0'", Decimal(0))],
    "DATE": [("'1000-01-01'", date(1000, 1, 1)), ("'9999-12-31'", date(9999, 12, 31)), ("'1970-01-01'", date(1970, 1, 1))],
    "DATETIME": [("'1000-01-01 00:00:00'", at(1000, 1, 1)), ("'2024-02-29 23:59:59'", at(2024, 2, 29, 23, 59, 59)), ("'1970-01-01 00:00:00'", at(1970, 1, 1))],
    "DATETIME(3)": [("'9999-12-31 23:59:59.999'", at(9999, 12, 31, 23, 59, 59, 999000))],
    "DATETIME(6)": [
        ("'2024-03-31 02:30:00.123456'", at(2024, 3, 31, 2, 30, 0, 123456)),
        ("'1969-12-31 23:59:59.999999'", at(1969, 12, 31, 23, 59, 59, 999999)),
    ],
    "TIMESTAMP NULL": [("'2024-03-31 02:30:00'", at(2024, 3, 31, 2, 30)), ("'1970-01-01 00:00:01'", at(1970, 1, 1, 0, 0, 1))],
    "TIMESTAMP(6) NULL": [("'2038-01-19 03:14:07.999999'", at(2038, 1, 19, 3, 14, 7, 999999))],
    "TIME": [("'-838:59:59'", -3020399000000), ("'838:59:59'", 3020399000000), ("'00:00:00'", 0)],
    "TIME(6)": [("'-00:00:00.000001'", -1), ("'25:00:00.5'", 90000500000)],
    "YEAR": [("1901", 1901), ("0000", 0), ("2155", 2155), ("2000", 2000)],
    "CHAR(5)": [("'a b'", "a b"), ("''", "")],
    "VARCHAR(50)": [("'grün 🐟 日本 \\'\\\"\\\\ \\n'", "grün 🐟 日本 '\"\\ \n"), ("''", ""), ("' x '", " x ")],
    "VARCHAR(50) CHARACTER SET latin1": [("_utf8mb4'é§ÿ€'", "é§ÿ€")],
    "VARCHAR(50) CHARACTER SET gbk": [("_utf8mb4'中文字符'", "中文字符")],
    "VARCHAR(50) CHARACTER SET sjis": [("_utf8mb4'日本語'", "日本語")],
    "TEXT": [("REPEAT('ä', 20000)", "ä" * 20000)],
    "BINARY(4)": [("x'00FF'", b"\x00\xff\x00\x00"), ("x'01020304'", b"\x01\x02\x03\x04")],
    "VARBINARY(10)": [("x'00FF00'", b"\x00\xff\x00"), ("''", b"")],
    "BLOB": [("x'DEADBEEF00'", b"\xde\xad\xbe\xef\x00")],
    "ENUM('a', 'b,c', 'ü')": [("'b,c'", "b,c"), ("'ü'", "ü")],
    "SET('x', 'y', 'z')": [("'x,z'", "x,z"), ("''", "")],
    "JSON": [
        ('\'{"b": [1, 2, {"c": "a , b : {} \\\\\\\\ \\\\""}], "aa": null, "t": true}\'', '{"b":[1,2,{"c":"a , b : {} \\\\ \\""}],"t":true,"aa":null}'),
        ("'[1.1, 0.1, 12345678.5, 123456789.1, 1.5e-5, 100.0, -0.25]'", "[1.1,0.1,12345678.5,123456789.1,0.000015,100.0,-0.25]"),
        ("'[1e100, 1.2345678901234567e25, 18446744073709551615, -9223372036854775808]'", None),
        ("JSON_ARRAY(CAST(12345678901234567890.123456789 AS DECIMAL(40, 9)))", "[12345678901234567890.123456789]"),
        ("'\"plain\"'", '"plain"'),
    ],
    "INT DEFAULT 7": [("NULL", None)],
    "DATE NOT NULL": [("'1970-01-01'", date(1970, 1, 1)), ("'0000-00-00'", None), ("'2024-00-15'", None), ("'1000-01-01'", date(1000, 1, 1))],
    "DATE NOT NULL DEFAULT '2000-01-01'": [("'2024-02-29'", date(2024, 2, 29)), ("'0000-00-00'", None)],
    "DATETIME NOT NULL": [
        ("'1970-01-01'", at(1970, 1, 1)),
        ("'0000-00-00'", None),
        ("'2024-01-00'", None),
        ("'1000-01-01 10:11:12'", at(1000, 1, 1, 10, 11, 12)),
    ],
    "DATETIME(6) NOT NULL DEFAULT '2000-01-01'": [("'1582-10-04 23:59:59.999999'", at(1582, 10, 4, 23, 59, 59, 999999)), ("'0000-00-00'", None)],
    "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP": [("'2024-10-27 02:30:00'", at(2024, 10, 27, 2, 30)), ("'0000-00-00'", None)],
    "TIMESTAMP(3) NOT NULL DEFAULT '2030-12-31 23:59:59'": [("'2024-03-31 02:30:00.5'", at(2024, 3, 31, 2, 30, 0, 500000)), ("'0000-00-00'", None)],
    "DATETIME NULL": [("'0000-00-00'", None), ("'2024-03-31 02:30:00'", at(2024, 3, 31, 2, 30))],
    "POINT": [("ST_GeomFromText('POINT(1 2)')", ("0101000000000000000000F03F0000000000000040", 0))],
    "GEOMETRY": [("ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)", (f"010200000002000000{'0' * 32}{'000000000000F03F' * 2}", 4326))],
}


@pytest.fixture(scope="module")
def rows(make_settings: Callable[..., Settings], spark: SparkSession) -> dict[str, dict[int, dict[str, Any]]]:
    """Source of the row (relay, stream) → number of the literal → column → value in the lake."""
    pipeline = Pipeline(make_settings, spark, "types", {"t": {}})
    count = max(map(len, CASES.values()))
    names = {kind: f"c{number}" for number, kind in enumerate(CASES)}
    pipeline.run("SET sql_mode = 'ALLOW_INVALID_DATES'", f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{name} {kind}' for kind, name in names.items())})")

    def insert(base: int) -> None:
        for number in range(count):
            literals = [cases[number % len(cases)][0] for cases in CASES.values()]
            pipeline.run("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES ({base + number}, {', '.join(literals)})")
        nothing = ["'0000-00-00'" if "NOT NULL" in kind else "NULL" for kind in CASES]
        pipeline.run("SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES ({base + count}, {', '.join(nothing)})")

    insert(0)
    pipeline.full_load()
    with pipeline.streaming():
        insert(1000)
        pipeline.wait()
    found = {row["id"]: {kind: row[name] for kind, name in names.items()} for row in pipeline.lake("t").collect()}
    assert sorted(found) == [base + number for base in (0, 1000) for number in range(count + 1)]
    return {way: {number: found[base + number] for number in range(count + 1)} for way, base in (("relay", 0), ("stream", 1000))}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("way", ["relay", "stream"])
def test_a_value_arrives_as_it_is(rows: dict[str, dict[int, dict[str, Any]]], way: str, kind: str) -> None:
    for number, (_, expected) in enumerate(CASES[kind]):
        found = rows[way][number][kind]
        if isinstance(found, datetime):
            found = found.astimezone(UTC)
        if kind in ("POINT", "GEOMETRY"):
            found = (bytes(found["wkb"]).hex().upper(), found["srid"])
        if (kind, expected) != ("JSON", None):
            assert found == expected
    assert list(rows[way].values())[-1][kind] is None


@pytest.mark.parametrize("kind", CASES)
def test_relay_and_stream_agree(rows: dict[str, dict[int, dict[str, Any]]], kind: str) -> None:
    assert [row[kind] for row in rows["relay"].values()] == [row[kind] for row in rows["stream"].values()]
