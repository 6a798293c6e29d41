"""The kinds of tables: patch, append, soft delete, several source tables in one of the lake, tables that are created while streaming."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakerelay.config import Settings
from lakerelay.lake.verify import verify_tables
from tests.integration.pipeline import Pipeline

ROWS = "id INT PRIMARY KEY, v VARCHAR(20), n INT, p VARCHAR(9)"
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "patched": (ROWS, {"kind": "patch"}),
    "patched_p": (ROWS, {"kind": "patch", "partition": "p"}),
    "soft": (ROWS, {"soft_delete": True}),
    "soft_p": (ROWS, {"soft_delete": True, "partition": "p"}),
    "emptied": (ROWS, {"soft_delete": True}),
    "again": (ROWS, {"soft_delete": True}),
    "log": ("id INT, v VARCHAR(20)", {"kind": "append", "partition": "date_format(_committed_at, 'yyyy-MM-dd')"}),
    "audit": (ROWS, {"kind": "append"}),
    "wider": ("id INT PRIMARY KEY, n INT", {"kind": "append"}),
}
INITIAL = "(1, 'a', 1, 'x'), (2, 'b', 2, 'x'), (3, 'c', 3, 'y'), (4, 'd', 4, 'y')"


@pytest.fixture(scope="module")
def kinds(make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    """Copy-on-write and merge-on-read by turns."""
    types = {name: {"type": "cow" if number % 2 else "mor"} for number, name in enumerate(TABLES)}
    pipeline = Pipeline(make_settings, spark, "kinds", {name: types[name] | of for name, (_, of) in TABLES.items()})
    for name, (columns, _) in TABLES.items():
        pipeline.run(f"CREATE TABLE {name} ({columns})")
        if columns == ROWS:
            pipeline.run(f"INSERT INTO {name} VALUES {INITIAL}")
    pipeline.run("INSERT INTO log VALUES (1, 'a'), (1, 'a'), (2, NULL)", "INSERT INTO wider VALUES (1, 7)")
    pipeline.full_load()
    with pipeline.streaming():
        yield pipeline


def rows(pipeline: Pipeline, table: str, *columns: str, **key: Any) -> list[tuple[Any, ...]]:
    found = pipeline.lake(table).select(*columns).collect()
    return sorted((tuple(row) for row in found), key=str)


@pytest.mark.parametrize("table", ["patched", "patched_p"])
def test_a_null_does_not_overwrite_in_a_patched_table(kinds: Pipeline, table: str) -> None:
    """Nor within a batch, nor when the row moves to another partition; a row that was deleted begins anew."""
    kinds.run(f"UPDATE {table} SET v = NULL, n = 10 WHERE id = 1", f"UPDATE {table} SET n = NULL WHERE id = 1")
    kinds.run(f"UPDATE {table} SET v = 'B' WHERE id = 2")
    kinds.run(f"DELETE FROM {table} WHERE id = 3", f"INSERT INTO {table} VALUES (3, NULL, 30, 'x')", f"DELETE FROM {table} WHERE id = 4")
    kinds.wait()
    assert rows(kinds, table, "id", "v", "n", "p") == [(1, "a", 10, "x"), (2, "B", 2, "x"), (3, None, 30, "x")]
    kinds.run(f"UPDATE {table} SET v = NULL, p = 'z' WHERE id = 2", f"INSERT INTO {table} VALUES (5, NULL, 5, 'x')")
    kinds.wait()
    assert rows(kinds, table, "id", "v", "n", "p") == [(1, "a", 10, "x"), (2, "B", 2, "z"), (3, None, 30, "x"), (5, None, 5, "x")]


@pytest.mark.parametrize("table", ["soft", "soft_p"])
def test_a_deleted_row_stays_marked(kinds: Pipeline, table: str) -> None:
    """Inserted again, in another partition or not, there is one row."""
    kinds.run(f"DELETE FROM {table} WHERE id IN (1, 2)", f"UPDATE {table} SET id = 30 WHERE id = 3", f"UPDATE {table} SET p = 'z' WHERE id = 4")
    kinds.wait()
    marked = [(1, "a", "x", True), (2, "b", "x", True), (3, "c", "y", True), (30, "c", "y", False), (4, "d", "z", False)]
    assert rows(kinds, table, "id", "v", "p", "_deleted") == marked
    kinds.run(f"INSERT INTO {table} VALUES (1, 'A', 1, 'q')", f"DELETE FROM {table} WHERE id = 4")
    kinds.wait()
    marked = [(1, "A", "q", False), (2, "b", "x", True), (3, "c", "y", True), (30, "c", "y", False), (4, "d", "z", True)]
    assert rows(kinds, table, "id", "v", "p", "_deleted") == marked


def test_rows_that_a_truncate_removes_are_marked(kinds: Pipeline) -> None:
    kinds.run("TRUNCATE TABLE emptied", "INSERT INTO emptied VALUES (2, 'new', 2, 'x')")
    kinds.wait()
    assert rows(kinds, "emptied", "id", "v", "_deleted") == [(1, "a", True), (2, "new", False), (3, "c", True), (4, "d", True)]


def test_a_load_again_keeps_what_is_marked(kinds: Pipeline) -> None:
    kinds.run("DELETE FROM again WHERE id = 1")
    kinds.wait()
    kinds.run("DELETE FROM again WHERE id = 2", "UPDATE again SET v = 'D' WHERE id = 4")
    kinds.full_load("again", replace=True)
    kinds.run("INSERT INTO again VALUES (1, 'A', 1, 'x')")
    kinds.wait()
    assert rows(kinds, "again", "id", "v", "_deleted") == [(1, "A", False), (2, "b", True), (3, "c", False), (4, "D", False)]


def test_a_table_without_a_key_is_a_changelog(kinds: Pipeline) -> None:
    """Every row of the load and every change once, in the binlog's order, a TRUNCATE among them; the key is never repeated."""
    kinds.run("INSERT INTO log VALUES (1, 'a')", "UPDATE log SET v = 'b' WHERE id = 1", "DELETE FROM log WHERE id = 2", "TRUNCATE TABLE log")
    kinds.run("INSERT INTO log VALUES (9, 'after')")
    kinds.wait()
    found = kinds.lake("log").orderBy("_seq", F.desc("_op"), "_change").select("_op", "id", "v", "_before").collect()
    changed = [("u", 1, "b", {"id": 1, "v": "a"})] * 3
    expected = [
        *[("r", 1, "a", None)] * 2,
        ("r", 2, None, None),
        ("c", 1, "a", None),
        *changed,
        ("d", 2, None, None),
        ("t", None, None, None),
        ("c", 9, "after", None),
    ]
    assert [(op, id_, v, before and json.loads(before)) for op, id_, v, before in found] == expected
    lake = kinds.lake("log")
    assert lake.select("_change").distinct().count() == len(expected)
    assert lake.where("_committed_at > current_timestamp() - interval 1 hour and _committed_at <= current_timestamp()").count() == len(expected)
    assert lake.where("_partition = date_format(_committed_at, 'yyyy-MM-dd')").count() == len(expected)


def test_a_log_with_a_key_keeps_every_change(kinds: Pipeline) -> None:
    kinds.run(
        "UPDATE audit SET n = 2 WHERE id = 1", "UPDATE audit SET n = 3 WHERE id = 1", "DELETE FROM audit WHERE id = 1", "UPDATE audit SET id = 20 WHERE id = 2"
    )
    kinds.wait()
    found = kinds.lake("audit").where("id in (1, 2, 20)").orderBy("_seq", "_change").select("_op", "id", "n").collect()
    assert [tuple(row) for row in found] == [("r", 1, 1), ("r", 2, 2), ("u", 1, 2), ("u", 1, 3), ("d", 1, 3), ("d", 2, 2), ("c", 20, 2)]


def test_a_log_keeps_the_columns_of_each_time(kinds: Pipeline) -> None:
    """A wider type is the column's; a renamed and a dropped column stay; a new one is NULL in older rows, whatever its default."""
    kinds.run("ALTER TABLE wider MODIFY n BIGINT", "INSERT INTO wider VALUES (2, 8)", "ALTER TABLE wider CHANGE n amount BIGINT, ADD COLUMN x INT DEFAULT 5")
    kinds.run("INSERT INTO wider VALUES (3, 9, 6)", "DROP TABLE wider", "CREATE TABLE wider (id INT PRIMARY KEY, y INT)", "INSERT INTO wider VALUES (1, 1)")
    kinds.wait()
    found = kinds.lake("wider").orderBy("_seq", "_change").select("_op", "id", "n", "amount", "x", "y").collect()
    assert [tuple(row) for row in found] == [
        ("r", 1, 7, None, None, None),
        ("c", 2, 8, None, None, None),
        ("c", 3, None, 9, 6, None),
        ("c", 1, None, None, None, 1),
    ]


def test_a_comparison_heeds_the_kind(kinds: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    """Marked rows do not count; a changelog and a patched table hold other rows than MySQL, and are left out."""
    tables = [f"{kinds.name}.{name}" for name in ("soft", "soft_p", "emptied", "again", "patched", "log")]
    kinds.wait()
    with caplog.at_level(logging.INFO):
        verify_tables(kinds.spark, kinds.settings, tables)
    verdicts = {name: record.verdict for name, record in kinds.state().verified.items()}
    assert verdicts == dict.fromkeys(tables[:4], "equal")
    assert "not compared" in caplog.text


# Several databases with the same tables, into one of the lake.
def shard(pipeline: Pipeline, number: int, rows: str) -> str:
    database = f"{pipeline.name}_shop_{number}"
    pipeline.run(
        f"CREATE DATABASE {database}", f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO {database}.orders VALUES {rows}"
    )
    return f"{database}.orders"


@pytest.fixture(scope="module")
def shards(make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    shared = {"pattern": r"shards_\d+_shop_\d+\.orders", "into": "shop.orders"}
    grown = {"pattern": r"shards_\d+\.grown_.*", "type": "cow"}
    log = {"pattern": r"shards_\d+\.log_.*", "kind": "append"}
    pipeline = Pipeline(make_settings, spark, "shards", {"plain": {}}, patterns=[shared, grown, log])
    pipeline.run("CREATE TABLE plain (id INT PRIMARY KEY)")
    for number in (1, 2):
        shard(pipeline, number, f"(1, 'one of {number}'), (2, 'two of {number}')")
    pipeline.full_load()
    with pipeline.streaming():
        yield pipeline


def of_shards(pipeline: Pipeline) -> set[tuple[Any, ...]]:
    orders = pipeline.spark.read.format("hudi").load(f"{pipeline.settings.lake.path}/shop/orders")
    return {tuple(row) for row in orders.selectExpr("substring_index(_schema, '_', -1)", "_table", "id", "v").collect()}


def test_shards_are_one_table(shards: Pipeline) -> None:
    """Equal keys of two shards are two rows; TRUNCATE, ALTER and a load of one leave the others alone; a shard that is created comes by itself."""
    one, two = (f"{shards.name}_shop_{number}.orders" for number in (1, 2))
    start = {("1", "orders", 1, "one of 1"), ("1", "orders", 2, "two of 1"), ("2", "orders", 1, "one of 2"), ("2", "orders", 2, "two of 2")}
    assert of_shards(shards) == start
    shards.run(f"UPDATE {one} SET v = 'changed' WHERE id = 1", f"DELETE FROM {two} WHERE id = 1")
    shards.wait()
    assert of_shards(shards) == {("1", "orders", 1, "changed"), ("1", "orders", 2, "two of 1"), ("2", "orders", 2, "two of 2")}
    shards.run(f"TRUNCATE TABLE {one}", f"INSERT INTO {one} VALUES (7, 'after')", f"INSERT INTO {two} VALUES (8, 'eight')")
    shards.wait()
    assert of_shards(shards) == {("1", "orders", 7, "after"), ("2", "orders", 2, "two of 2"), ("2", "orders", 8, "eight")}
    shards.run(f"ALTER TABLE {two} ADD COLUMN n INT NOT NULL DEFAULT 5", f"INSERT INTO {two} VALUES (9, 'nine', 9)")
    three = shard(shards, 3, "(1, 'one of 3')")
    shards.run(f"INSERT INTO {three} VALUES (2, 'two of 3')")
    shards.wait(also=[three])
    assert of_shards(shards) == {
        ("1", "orders", 7, "after"),
        ("2", "orders", 2, "two of 2"),
        ("2", "orders", 8, "eight"),
        ("2", "orders", 9, "nine"),
        ("3", "orders", 1, "one of 3"),
        ("3", "orders", 2, "two of 3"),
    }
    orders = shards.spark.read.format("hudi").load(f"{shards.settings.lake.path}/shop/orders")
    assert {(row["id"], row["n"]) for row in orders.collect()} == {(7, None), (2, 5), (8, 5), (9, 9), (1, None), (2, None)}


def test_a_shard_is_loaded_again_alone(shards: Pipeline) -> None:
    two = f"{shards.name}_shop_2.orders"
    before = {row for row in of_shards(shards) if row[0] != "2"}
    shards.run(f"DELETE FROM {two}", f"INSERT INTO {two} (id, v) VALUES (1, 'again')")
    shards.full_load(two, replace=True)
    shards.run(f"INSERT INTO {two} (id, v) VALUES (2, 'later')")
    shards.wait()
    assert of_shards(shards) == before | {("2", "orders", 1, "again"), ("2", "orders", 2, "later")}


def test_a_shard_is_compared_alone(shards: Pipeline) -> None:
    two = f"{shards.name}_shop_2.orders"
    verify_tables(shards.spark, shards.settings, [two])


def test_a_table_that_is_created_is_taken_up_from_its_first_row(shards: Pipeline) -> None:
    """Without a full load, its rows of the same batch included; dropped and created again before that, only the newer one's."""
    shards.run("CREATE TABLE grown_a (id INT PRIMARY KEY, v VARCHAR(20), d DATE)", "INSERT INTO grown_a VALUES (1, 'one', '2024-02-29')")
    shards.run("CREATE TABLE grown_b (id INT PRIMARY KEY, old INT)", "INSERT INTO grown_b VALUES (1, 1), (2, 2)", "DROP TABLE grown_b")
    shards.run("CREATE TABLE grown_b (id VARCHAR(9) PRIMARY KEY)", "INSERT INTO grown_b VALUES ('new')", "UPDATE grown_a SET v = 'changed'")
    shards.run("CREATE TABLE log_a (line TEXT)", "INSERT INTO log_a VALUES ('first'), ('first')", "CREATE TABLE grown_c (no_key INT)")
    shards.run("CREATE TABLE other (id INT PRIMARY KEY)", "CREATE TABLE grown_d LIKE grown_a", "INSERT INTO grown_d SELECT * FROM grown_a")
    shards.wait(stopped=["grown_c"], also=[f"{shards.name}.{table}" for table in ("grown_a", "grown_b", "grown_d", "log_a")])
    assert rows(shards, "grown_a", "id", "v") == [(1, "changed")]
    assert rows(shards, "grown_b", "id") == [("new",)]
    assert rows(shards, "grown_d", "id", "v") == [(1, "changed")]
    assert rows(shards, "log_a", "_op", "line") == [("c", "first"), ("c", "first")]
    records = shards.state().tables
    assert f"{shards.name}.other" not in records
    assert "has no primary key" in records[f"{shards.name}.grown_c"].error
