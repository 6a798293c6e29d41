"""One row per key: the newest change of a batch wins."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakerelay.lake.schema import DELETED, SEQ

PARTITION = "_partition"  # the value of the table's partition expression, text
_ORDERED = ("_row", "_offset", SEQ, DELETED)


def latest_per_key(changes: DataFrame, key: Sequence[str], partition: str | None, key_may_change: bool = False) -> DataFrame:
    """`decode.changes` → the rows to upsert, one per key and partition: the table's columns, `_seq`, `_hoodie_is_deleted`, and `_partition` if there is one.

    A key's newest change is the last by (`_seq`, row in the event, Kafka offset). An update that moves a row to another partition also deletes it
    where it was: the bucket index looks for a row within one partition only. `key_may_change`: an update may also give a row another key, as it
    may where the key is not the primary key, whose change comes as a delete and an insert.

    | _seq | op | before      | after       |   | rows, partitioned by p           |
    |------|----|-------------|-------------|---|----------------------------------|
    | 5    | c  |             | k=1 p=a v=1 |   | k=1 p=a v=1 _seq=6 deleted       |
    | 6    | u  | k=1 p=a v=1 | k=1 p=b v=2 |   | k=1 p=b v=2 _seq=6               |
    """
    order = [F.col("row").alias("_row"), F.col("offset").alias("_offset")]
    deleted = F.col("op") == "d"
    arriving = changes.select(*order, SEQ, "before", deleted.alias(DELETED), F.coalesce("after", "before").alias("image"))
    arriving = arriving.select("image.*", *_ORDERED, F.lit(False).alias("_leaves"), F.col("before").alias("_before"))
    if partition is None and not key_may_change:
        return _newest(arriving.drop("_before"), key)
    arriving = partitioned(arriving, partition)
    columns = [*key, PARTITION] if partition else key
    place = F.struct(*(F.col(f"`{column}`") for column in columns))
    moved = arriving.where(f"_before is not null and not {DELETED}")
    leaving = partitioned(moved.select("_before.*", *_ORDERED, F.lit(True).alias("_leaves"), place.alias("_now")), partition)
    leaving = leaving.where(~place.eqNullSafe(F.col("_now"))).withColumn(DELETED, F.lit(True))
    return _newest(arriving.drop("_before").unionByName(leaving.drop("_now")), columns)


def brought_up(rows: DataFrame | None, changes: DataFrame | None, key: Sequence[str], partition: str | None, key_may_change: bool = False) -> DataFrame:
    """A load's rows as they are behind `changes`: the newest change of a key stands for its row. `changes` as for `latest_per_key`.

    No `rows`: the table was emptied before the changes. No `changes`: the rows are left as they are.

    The rows were read at any moments between the first change and the last: a row whose key has no change is as it was at all of them, and of the
    others the newest image is the truth, whether the reader saw it or not.
    """
    if changes is None:
        assert rows is not None
        return rows
    newest = partitioned(latest_per_key(changes, key, None, key_may_change), partition)
    there = newest.where(~F.col(DELETED))
    if rows is None:
        return there
    return rows.join(newest.select(*(F.col(f"`{column}`") for column in key)), list(key), "left_anti").unionByName(there)


def partitioned(rows: DataFrame, partition: str | None) -> DataFrame:
    """With `_partition`, where the table has a partition expression."""
    return rows.withColumn(PARTITION, F.expr(partition).cast("string")) if partition else rows


def _newest(candidates: DataFrame, key: Sequence[str]) -> DataFrame:
    newest_first = (F.desc(SEQ), F.desc_nulls_last("_row"), F.desc("_offset"), F.asc("_leaves"))
    window = Window.partitionBy(*(F.col(f"`{column}`") for column in key)).orderBy(*newest_first)
    ranked = candidates.withColumn("_rank", F.row_number().over(window))
    return ranked.where("_rank = 1").drop("_rank", "_row", "_offset", "_leaves")
