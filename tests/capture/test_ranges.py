"""Key ranges of a large table: every row in exactly one, whatever the keys are like."""

import uuid
from datetime import date, timedelta
from typing import Any

import pytest

from lakerelay.capture import binlog, bodies, ranges
from lakerelay.capture import source as tables
from lakerelay.capture.progress import KeyRange
from lakerelay.capture.source import Column, SourceTable
from tests.capture.conftest import Source, insert

ODD = ["a", "A", "á", "b", "B ", "O'Hara", 'say "hi"', "back\\slash", "100%", "日本", "ß", "ss", "z;--", ""]

KEYS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "ints": ("k INT, n INT", [(number, 0) for number in range(-500, 500)]),
    "gaps": ("k BIGINT UNSIGNED, n INT", [(number, 0) for number in [*range(900), *range(2**63, 2**63 + 100)]]),
    "skewed": ("k INT, n INT", [(7, number) for number in range(900)] + [(8, number) for number in range(50)] + [(2, number) for number in range(50)]),
    "one_value": ("k INT, n INT", [(7, number) for number in range(1000)]),
    "dates": ("k DATE, n INT", [(date(2024, 1, 1) + timedelta(days=number // 3), number) for number in range(1000)]),
    "decimals": ("k DECIMAL(20, 4), n INT", [(f"{number}.0001", 0) for number in range(1000)]),
    "text": ("k VARCHAR(20), n INT", [(text, number) for number in range(70) for text in ODD if text not in ("A", "á", "ss")]),
    "text_binary": ("k VARCHAR(20) COLLATE utf8mb4_bin, n INT", [(text, number) for number in range(70) for text in ODD]),
    "latin1": ("k VARCHAR(20) CHARACTER SET latin1, n INT", [(text, number) for number in range(200) for text in ("ä", "é", "x", "Ü", "zz")]),
    "uuids": ("k BINARY(16), n INT", [(uuid.UUID(int=number * 0x1234567890ABCDEF).bytes, 0) for number in range(1000)]),
    "empty": ("k INT, n INT", []),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_row_is_in_exactly_one_range(source: Source, kind: str) -> None:
    columns, rows = KEYS[kind]
    source.run(f"CREATE TABLE t ({columns}, PRIMARY KEY (k, n))")
    if rows:
        insert(source, "t", rows)
    with binlog.connect(source.settings()) as mysql:
        (table,) = tables.tables(mysql, source.settings())
        parts = ranges.split(mysql, table, 120)

    read = [source.run(bodies.select(table, part)) for part, _ in parts]
    assert sorted(row for part in read for row in part) == sorted(source.run("SELECT * FROM t"))
    assert (parts[0][0].lower, parts[-1][0].upper) == (None, None)
    if kind not in ("skewed", "one_value", "text", "text_binary", "latin1", "empty"):
        assert [len(part) for part in read[:-1]] == [120] * 8


def test_a_row_inserted_after_planning_is_in_one_range(source: Source) -> None:
    source.run("CREATE TABLE t (k INT PRIMARY KEY)")
    insert(source, "t", [(number,) for number in range(1000)])
    with binlog.connect(source.settings()) as mysql:
        (table,) = tables.tables(mysql, source.settings())
        parts = ranges.split(mysql, table, 300)
    source.run("INSERT INTO t VALUES (-2147483648), (2147483647), (5000)")

    assert sum(len(source.run(bodies.select(table, part))) for part, _ in parts) == 1003


def test_a_key_that_has_no_usable_order_is_not_split(source: Source) -> None:
    source.run("CREATE TABLE e (k ENUM('b', 'a') PRIMARY KEY)", "CREATE TABLE f (k FLOAT PRIMARY KEY)", "CREATE TABLE n (k INT)")
    with binlog.connect(source.settings()) as mysql:
        assert [ranges.can_split(table) for table in tables.tables(mysql, source.settings())] == [False, False, False]


def test_names_are_quoted() -> None:
    table = SourceTable("my db.odd`t", (Column("k`", "int", "int", False), Column("f", "float", "float", True)), ("k`",), 0, 0)
    assert bodies.select(table, KeyRange("k`", "1", None)) == "SELECT `k```, `f` + 0e0 AS `f` FROM `my db`.`odd``t` FORCE INDEX (PRIMARY) WHERE `k``` >= 1"
