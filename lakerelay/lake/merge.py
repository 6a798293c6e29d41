"""One row per key: the newest change of a batch wins."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakerelay.lake.schema import DELETED, SEQ

PARTITION = "_partition"  # the value of the table's partition expression, text
_ORDERED = ("_row", "_offset", SEQ, DELETED)


def latest_per_key(changes: DataFrame, key: Sequence[str], partition: str | None) -> DataFrame:
    """`decode.changes` → the rows to upsert, one per key and partition: the table's columns, `_seq`, `_hoodie_is_deleted`, and `_partition` if there is one.

    A key's newest change is the last by (`_seq`, row in the event, Kafka offset). An update that moves a row to another partition also deletes it
    where it was: the bucket index looks for a row within one partition only.

    | _seq | op | before      | after       |   | rows, partitioned by p           |
    |------|----|-------------|-------------|---|----------------------------------|
    | 5    | c  |             | k=1 p=a v=1 |   | k=1 p=a v=1 _seq=6 deleted       |
    | 6    | u  | k=1 p=a v=1 | k=1 p=b v=2 |   | k=1 p=b v=2 _seq=6               |
    """
    order = [F.col("row").alias("_row"), F.col("offset").alias("_offset")]
    deleted = F.col("op") == "d"
    arriving = changes.select(*order, SEQ, "before", deleted.alias(DELETED), F.coalesce("after", "before").alias("image"))
    arriving = arriving.select("image.*", *_ORDERED, F.lit(False).alias("_leaves"), F.col("before").alias("_before"))
    if partition is None:
        return _newest(arriving.drop("_before"), key)
    arriving = arriving.withColumn(PARTITION, F.expr(partition).cast("string"))
    moved = arriving.where(f"_before is not null and not {DELETED}")
    leaving = moved.select("_before.*", *_ORDERED, F.lit(True).alias("_leaves"), F.col(PARTITION).alias("_now"))
    leaving = leaving.withColumn(PARTITION, F.expr(partition).cast("string")).where(f"not ({PARTITION} <=> _now)").withColumn(DELETED, F.lit(True))
    return _newest(arriving.drop("_before").unionByName(leaving.drop("_now")), [*key, PARTITION])


def brought_up(rows: DataFrame | None, changes: DataFrame | None, key: Sequence[str], partition: str | None) -> DataFrame:
    """A load's rows as they are behind `changes`: the newest change of a key stands for its row. `changes` as for `latest_per_key`.

    No `rows`: the table was emptied before the changes. No `changes`: the rows are left as they are.

    The rows were read at any moments between the first change and the last: a row whose key has no change is as it was at all of them, and of the
    others the newest image is the truth, whether the reader saw it or not.
    """
    if changes is None:
        assert rows is not None
        return rows
    newest = latest_per_key(changes, key, None)
    if partition is not None:
        newest = newest.withColumn(PARTITION, F.expr(partition).cast("string"))
    there = newest.where(~F.col(DELETED))
    if rows is None:
        return there
    return rows.join(newest.select(*(F.col(f"`{column}`") for column in key)), list(key), "left_anti").unionByName(there)


def _newest(candidates: DataFrame, key: Sequence[str]) -> DataFrame:
    newest_first = (F.desc(SEQ), F.desc_nulls_last("_row"), F.desc("_offset"), F.asc("_leaves"))
    window = Window.partitionBy(*(F.col(f"`{column}`") for column in key)).orderBy(*newest_first)
    ranked = candidates.withColumn("_rank", F.row_number().over(window))
    return ranked.where("_rank = 1").drop("_rank", "_row", "_offset", "_leaves")
