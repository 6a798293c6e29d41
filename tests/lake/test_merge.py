"""Which of a key's changes is written."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.lake.merge import arrivals, brought_up, latest_per_key, loaded, upserts, with_gone
from lakerelay.lake.store import LakeTable

CHANGE = "op string, _seq bigint, offset bigint, before struct<k: int, p: string, v: int>, after struct<k: int, p: string, v: int>"


def merged(spark: SparkSession, partition: str | None, *changes: tuple[Any, ...], key_may_change: bool = False) -> set[tuple[Any, ...]]:
    rows = latest_per_key(spark.createDataFrame(list(changes), CHANGE), ["k"], partition, key_may_change)
    columns = ["k", "p", "v", "_seq", "_hoodie_is_deleted", *(["_partition"] if partition else [])]
    return {tuple(row) for row in rows.select(columns).collect()}


def test_the_newest_change_of_a_key_wins(spark: SparkSession) -> None:
    """INSERT k=1; UPDATE k=1 twice; INSERT k=2: one row per key, whatever the order in which they arrive."""
    changes = [
        ("u", 30, 3, (1, "a", 2), (1, "a", 3)),
        ("c", 10, 1, None, (1, "a", 1)),
        ("u", 20, 2, (1, "a", 1), (1, "a", 2)),
        ("c", 15, 9, None, (2, "b", 1)),
    ]
    assert merged(spark, None, *changes) == {(1, "a", 3, 30, False), (2, "b", 1, 15, False)}


def test_changes_of_one_place_are_in_the_order_of_their_offsets(spark: SparkSession) -> None:
    """The rows of an event have one position, and so have all events of a compressed transaction."""
    changes = [
        ("c", 10, 6, None, (1, "a", 2)),
        ("c", 10, 5, None, (1, "a", 1)),
        ("d", 20, 7, (2, "a", 1), None),
        ("c", 20, 8, None, (2, "a", 9)),
    ]
    assert merged(spark, None, *changes) == {(1, "a", 2, 10, False), (2, "a", 9, 20, False)}


def test_insert_delete_insert_of_a_key_leaves_the_last_row(spark: SparkSession) -> None:
    changes = [("c", 1, 1, None, (1, "a", 1)), ("d", 2, 2, (1, "a", 1), None), ("c", 3, 3, None, (1, "a", 2))]
    assert merged(spark, None, *changes) == {(1, "a", 2, 3, False)}


def test_a_delete_carries_the_old_row(spark: SparkSession) -> None:
    """The old image names the partition in which the row is removed."""
    assert merged(spark, "p", ("d", 2, 2, (1, "a", 1), None)) == {(1, "a", 1, 2, True, "a")}


def test_a_row_that_moves_is_deleted_where_it_was(spark: SparkSession) -> None:
    """UPDATE … SET p = 'b': written in b, deleted in a."""
    assert merged(spark, "p", ("u", 5, 1, (1, "a", 1), (1, "b", 2))) == {(1, "b", 2, 5, False, "b"), (1, "a", 1, 5, True, "a")}


def test_a_row_that_moves_away_and_back_stays(spark: SparkSession) -> None:
    """a → b → a within a batch: alive in a, deleted in b."""
    changes = [("u", 5, 1, (1, "a", 1), (1, "b", 2)), ("u", 6, 2, (1, "b", 2), (1, "a", 3))]
    assert merged(spark, "p", *changes) == {(1, "a", 3, 6, False, "a"), (1, "b", 2, 6, True, "b")}


def test_a_row_that_moves_and_is_deleted_is_gone_everywhere(spark: SparkSession) -> None:
    changes = [("u", 5, 1, (1, "a", 1), (1, "b", 2)), ("d", 6, 2, (1, "b", 2), None)]
    assert merged(spark, "p", *changes) == {(1, "a", 1, 5, True, "a"), (1, "b", 2, 6, True, "b")}


def test_an_update_within_a_partition_deletes_nothing(spark: SparkSession) -> None:
    assert merged(spark, "p", ("u", 5, 1, (1, "a", 1), (1, "a", 2))) == {(1, "a", 2, 5, False, "a")}


def test_a_null_partition_value_is_a_value(spark: SparkSession) -> None:
    """From NULL to 'a' is a move."""
    assert merged(spark, "p", ("u", 5, 1, (1, None, 1), (1, "a", 2))) == {(1, "a", 2, 5, False, "a"), (1, None, 1, 5, True, None)}


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_row_whose_declared_key_changes_is_deleted_under_the_old_one(spark: SparkSession, partition: str | None) -> None:
    """k = 3 becomes 4, then 2 becomes 3: the newer row stands under 3, none under 2."""
    changes = [("u", 5, 1, (3, "a", 1), (4, "a", 1)), ("u", 5, 2, (2, "a", 7), (3, "a", 7))]
    place = ("a",) if partition else ()
    expected = {(4, "a", 1, 5, False, *place), (3, "a", 7, 5, False, *place), (2, "a", 7, 5, True, *place)}
    assert merged(spark, partition, *changes, key_may_change=True) == expected


ROW = "k int, p string, v int, _seq bigint, _hoodie_is_deleted boolean, _partition string"


def test_a_load_is_brought_up_to_one_position(spark: SparkSession) -> None:
    """Key 1 has no change; 2 was updated, 3 deleted, 4 inserted, 5 moved, each seen by the scan or not."""
    changes = [
        ("u", 12, 1, (2, "a", 1), (2, "a", 2)),
        ("u", 18, 5, (2, "a", 2), (2, "a", 3)),
        ("d", 13, 2, (3, "a", 1), None),
        ("c", 14, 3, None, (4, "b", 1)),
        ("u", 15, 4, (5, "a", 1), (5, "b", 2)),
    ]
    whole = {(1, "a", 1, 10, False, "a"), (2, "a", 3, 18, False, "a"), (4, "b", 1, 14, False, "b"), (5, "b", 2, 15, False, "b")}
    before = [(1, "a", 1, 10, False, "a"), (2, "a", 1, 10, False, "a"), (3, "a", 1, 10, False, "a"), (5, "a", 1, 10, False, "a")]
    between = [(1, "a", 1, 10, False, "a"), (2, "a", 2, 10, False, "a"), (4, "b", 1, 10, False, "b"), (5, "b", 2, 10, False, "b")]
    for scanned in (before, between):
        table = LakeTable("shop.t", "/nowhere", ("k",), "p", "cow")
        rows = brought_up(spark.createDataFrame(scanned, ROW), loaded(spark.createDataFrame(changes, CHANGE), table), table)
        assert {tuple(row) for row in rows.select("k", "p", "v", "_seq", "_hoodie_is_deleted", "_partition").collect()} == whole


STANDING = "k int, p string, v int, _seq bigint, _hoodie_is_deleted boolean, _partition string, _deleted boolean"


def over(spark: SparkSession, table: LakeTable, standing: list[tuple[Any, ...]], *changes: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    """(k, p, v, deleted, partition), and with soft_delete the mark."""
    there = spark.createDataFrame(standing, STANDING)
    there = there if table.soft_delete else there.drop("_deleted")
    rows = upserts(arrivals(spark.createDataFrame(list(changes), CHANGE), table), table, there)
    return {tuple(row) for row in rows.select("k", "p", "v", "_hoodie_is_deleted", "_partition", *(["_deleted"] if table.soft_delete else [])).collect()}


def test_a_patch_keeps_what_a_change_leaves_null(spark: SparkSession) -> None:
    """Of several changes the last that gives a value; key 2 moves; 3 was deleted and comes again; 4 is deleted where it stands; 5 is new."""
    table = LakeTable("shop.t", "/nowhere", ("k",), "p", "cow", kind="patch")
    standing = [(k, "a", k, 10, False, "a", False) for k in (1, 2, 3, 4)]
    changes = [
        ("u", 11, 1, (1, "a", 1), (1, "a", 7)),
        ("u", 12, 2, (1, "a", 7), (1, None, None)),
        ("u", 13, 3, (2, "a", 2), (2, "b", None)),
        ("d", 14, 4, (3, "a", 3), None),
        ("c", 15, 5, None, (3, "a", None)),
        ("d", 16, 6, (4, None, None), None),
        ("c", 17, 7, None, (5, "a", None)),
    ]
    assert over(spark, table, standing, *changes) == {
        (1, "a", 7, False, "a"),
        (2, "b", 2, False, "b"),
        (2, "b", 2, True, "a"),
        (3, "a", None, False, "a"),
        (4, "a", 4, True, "a"),
        (5, "a", None, False, "a"),
    }


def test_a_marked_row_is_replaced_wherever_it_is(spark: SparkSession) -> None:
    """Key 1 is deleted; 2, marked in a, is inserted again in b."""
    table = LakeTable("shop.t", "/nowhere", ("k",), "p", "cow", soft_delete=True)
    standing = [(1, "a", 1, 10, False, "a", False), (2, "a", 2, 10, False, "a", True)]
    changes = [("d", 11, 1, (1, "a", 1), None), ("c", 12, 2, None, (2, "b", 3))]
    assert over(spark, table, standing, *changes) == {(1, "a", 1, False, "a", True), (2, "b", 3, False, "b", False), (2, "b", 3, True, "a", True)}


@pytest.mark.parametrize("soft", [False, True])
def test_rows_that_a_load_no_longer_finds_are_gone(spark: SparkSession, soft: bool) -> None:
    """A key may have a NULL, a zero date: it is found all the same."""
    table = LakeTable("shop.t", "/nowhere", ("k", "p"), None, "cow", soft_delete=soft)
    columns = "k int, p string, v int, _seq bigint, _hoodie_is_deleted boolean, _deleted boolean"
    rows = spark.createDataFrame([(1, None, 5, 20, False, False)], columns)
    standing = spark.createDataFrame([(1, None, 1, 10, False, False), (2, None, 2, 10, False, False)], columns)
    found = {(row["k"], row["v"], row["_hoodie_is_deleted"], row["_deleted"]) for row in with_gone(rows, standing, table).collect()}
    assert found == {(1, 5, False, False), (2, 2, not soft, soft)}
