"""Hudi tables as they are written and read back."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakerelay.errors import CommitConflictError, LakeError
from lakerelay.lake import store
from lakerelay.lake.store import Commit, LakeTable, Reached


def rows(spark: SparkSession, table: LakeTable, *values: tuple[Any, ...]) -> DataFrame:
    """(a, b, p, v, _seq, deleted) …"""
    found = spark.createDataFrame(list(values), "a int, b int, p string, v string, _seq bigint, _hoodie_is_deleted boolean")
    return found.withColumn("_partition", F.col("p")) if table.partition else found


def at(load: str, cut: int, schema: int, offset: int, instant: str = "") -> Commit:
    return Commit(1, {"shop.t": Reached(load, cut, schema, offset)}, instant)


def content(spark: SparkSession, table: LakeTable) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in store.read(spark, table).select("a", "b", "p", "v", "_seq").collect()}


@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("partition", [None, "p"])
def test_the_history_of_a_table(spark: SparkSession, tmp_path: Path, kind: str, partition: str | None) -> None:
    """Load; insert, update, delete; an older change and an older delete; a second load; a change after it."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a", "b"), partition, kind)
    assert store.newest_commit(spark, table) is None

    first = rows(spark, table, (1, 1, "x", "one", 10, False), (1, 2, "y", "two", 10, False), (2, 1, "x", "three", 10, False))
    loaded = store.load(first, table, at("L1", 10, 0, 5))
    assert store.newest_commit(spark, table) == loaded
    assert loaded.sources == at("L1", 10, 0, 5).sources

    changes = rows(spark, table, (1, 1, "x", "ONE", 20, False), (1, 2, "y", "two", 20, True), (3, 3, "z", "new", 20, False))
    store.upsert(changes, table, at("L1", 10, 0, 8))
    assert content(spark, table) == {(1, 1, "x", "ONE", 20), (2, 1, "x", "three", 10), (3, 3, "z", "new", 20)}

    late = rows(spark, table, (1, 1, "x", "late", 15, False), (3, 3, "z", "new", 15, True))
    store.upsert(late, table, at("L1", 10, 0, 9))
    assert content(spark, table) == {(1, 1, "x", "ONE", 20), (2, 1, "x", "three", 10), (3, 3, "z", "new", 20)}

    store.load(rows(spark, table, (1, 1, "x", "again", 30, False)), table, at("L2", 30, 0, 9))
    assert content(spark, table) == {(1, 1, "x", "again", 30)}
    store.upsert(rows(spark, table, (1, 1, "x", "more", 40, False), (4, 4, "x", "four", 40, False)), table, at("L2", 30, 0, 12))
    assert content(spark, table) == {(1, 1, "x", "more", 40), (4, 4, "x", "four", 40)}
    newest = store.newest_commit(spark, table)
    assert newest
    assert newest.sources == at("L2", 30, 0, 12).sources


@pytest.mark.fault("F-46", "committing", "another program has written to the table", "nothing is written on top of it; begun anew from what it says")
def test_nothing_is_written_on_top_of_a_commit_that_one_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    """As by a driver that slept while another took over."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a", "b"), None, "cow")
    known = store.load(rows(spark, table, (1, 1, "x", "one", 10, False)), table, at("L1", 10, 0, 5))
    store.upsert(rows(spark, table, (1, 1, "x", "two", 20, False)), table, known)

    with pytest.raises(CommitConflictError, match="Another program has written"):
        store.upsert(rows(spark, table, (1, 1, "x", "three", 30, False)), table, known)
    assert content(spark, table) == {(1, 1, "x", "two", 20)}


@pytest.mark.fault("F-44b", "committing", "the clock is an hour behind the newest commit", "nothing is written, with the reason")
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_a_clock_that_is_behind(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a", "b"), None, kind)
    known = store.load(rows(spark, table, (1, 1, "x", "one", 10, False)), table, at("L1", 10, 0, 5))
    assert abs(datetime.strptime(known.instant, "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=2)
    late = rows(spark, table, (1, 1, "x", "two", 20, False))
    with monkeypatch.context() as patch:
        patch.setattr(store, "_now", lambda: datetime.now(UTC) - timedelta(hours=1))
        for write in (store.upsert, store.load):
            with pytest.raises(LakeError, match="clock is behind"):
                write(late, table, known)
    assert content(spark, table) == {(1, 1, "x", "one", 10)}
    store.upsert(late, table, known)
    assert content(spark, table) == {(1, 1, "x", "two", 20)}


def test_offsets_outlive_compaction(spark: SparkSession, tmp_path: Path) -> None:
    """More commits than the compaction interval: the newest commit, whoever made it, still says where the table stands."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a", "b"), None, "mor")
    store.load(rows(spark, table, (1, 1, "x", "one", 10, False)), table, at("L1", 10, 0, 0))
    for n in range(1, 24):
        store.upsert(rows(spark, table, (1, 1, "x", f"v{n}", 10 + n, False)), table, at("L1", 10, 0, n))
    newest = store.newest_commit(spark, table)
    assert newest
    assert newest.sources["shop.t"].offset == 23
    assert content(spark, table) == {(1, 1, "x", "v23", 33)}
    assert list((tmp_path / "t" / ".hoodie" / "timeline").glob("*.commit")), "no compaction was made"


def test_a_table_of_somebody_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its offsets are unknown: guessing them would lose or repeat changes."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a",), None, "cow")
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "a",
        "hoodie.datasource.write.operation": "insert",
        "hoodie.metadata.enable": "false",
    }
    rows(spark, table, (1, 1, "x", "one", 10, False)).write.format("hudi").options(**options).mode("overwrite").save(table.path)
    with pytest.raises(LakeError, match="not written by lakerelay"):
        store.newest_commit(spark, table)


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_any_text_and_time_is_a_key(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Hudi alone refuses some, makes one of two, or looks for the end of one for ever."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a", "b", "t"), None, kind)
    keys = [("", ""), ("", None), (None, ""), ("__null__", "__empty__"), ("a,b:b", "c"), ("a", "b,b:c"), ("x:y,z", '"'), ("\\u003a", ":"), (":", "\\u003a")]
    columns = "a string, b string, t timestamp, v int, _seq bigint, _hoodie_is_deleted boolean"

    def versions(v: int) -> DataFrame:
        return spark.createDataFrame([(a, b, datetime(2024, 1, 1, 10, 30, tzinfo=UTC), v, v, False) for a, b in keys], columns)

    store.load(versions(1), table, at("L1", 0, 0, 1))
    store.upsert(versions(2), table, at("L1", 0, 0, 2))
    found = [(row["a"], row["b"], row["v"]) for row in store.read(spark, table).collect()]
    assert sorted(found, key=str) == sorted([(a, b, 2) for a, b in keys], key=str)


def small(spark: SparkSession, table: LakeTable, columns: str, *values: tuple[Any, ...]) -> DataFrame:
    """`columns` are the table's own, the first its key; `_seq` 10."""
    found = spark.createDataFrame(list(values), columns).withColumn("_seq", F.lit(10).cast("bigint")).withColumn("_hoodie_is_deleted", F.lit(False))
    return found.withColumn("_partition", F.col("p")) if table.partition else found


def own(spark: SparkSession, table: LakeTable) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in store.read(spark, table).select(*store.columns(spark, table).names).collect()}


@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("partition", [None, "p"])
def test_columns_come_and_widen(spark: SparkSession, tmp_path: Path, kind: str, partition: str | None) -> None:
    """An upsert with one column more; a rewrite with a wider type; an upsert into it; emptied; loaded again with fewer columns."""
    table = LakeTable("shop.t", str(tmp_path / "t"), ("a",), partition, kind)
    store.load(small(spark, table, "a int, p string, n int", (1, "x", 1), (2, "y", 2)), table, at("L1", 10, 0, 1))
    store.upsert(small(spark, table, "a int, p string, n int, v string", (2, "y", 3, "new")), table, at("L1", 10, 0, 2))
    assert own(spark, table) == {(1, "x", 1, None), (2, "y", 3, "new")}

    wide = "a int, p string, n bigint, v string, d decimal(10, 2)"
    store.load(small(spark, table, wide, (1, "x", 2**40, None, None), (2, "y", 3, "new", None)), table, at("L1", 10, 7, 2))
    store.upsert(small(spark, table, wide, (3, "x", 2**41, "more", None)), table, at("L1", 10, 7, 3))
    assert own(spark, table) == {(1, "x", 2**40, None, None), (2, "y", 3, "new", None), (3, "x", 2**41, "more", None)}

    emptied = store.load(small(spark, table, wide), table, at("L1", 10, 8, 4))
    assert own(spark, table) == set()
    assert store.newest_commit(spark, table) == emptied
    store.upsert(small(spark, table, wide, (4, "z", 4, "four", None)), table, at("L1", 10, 8, 5))
    assert own(spark, table) == {(4, "z", 4, "four", None)}

    store.load(small(spark, table, "a int, p string, n string", (1, "x", "text")), table, at("L2", 10, 9, 5))
    assert own(spark, table) == {(1, "x", "text")}
    store.upsert(small(spark, table, "a int, p string, n string", (5, "x", "five")), table, at("L2", 10, 9, 6))
    assert own(spark, table) == {(1, "x", "text"), (5, "x", "five")}
