"""Changes → the rows that a commit writes: one row per key, the newest change wins; or every change, in a table of kind append."""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.columns import BEFORE, CHANGE, COMMITTED_AT, DELETED, HISTORY, OP, PARTITION, SEQ, SOFT_DELETED
from lakerelay.lake.store import LakeTable

LEAVES = "_leaves"  # whether a change took a row away from here, to another partition or key
_ORDERED = ("_offset", SEQ, DELETED, OP)


def arrivals(changes: DataFrame, table: LakeTable) -> DataFrame:
    """`decode.changes` → a row for each place that each change leaves or arrives at: the table's columns, `_seq`, `_op`, `_leaves` BOOLEAN and more."""
    if table.history:
        return history(changes).withColumn(LEAVES, F.lit(False))
    return _arrivals(changes, table.key, None if table.reads_standing else table.partition, table.key_may_change)


def upserts(arrivals: DataFrame, table: LakeTable, standing: DataFrame | None) -> DataFrame:
    """`arrivals` → the rows to upsert: the table's columns, and those that lakerelay adds. `standing`: the table, if it has rows."""
    if table.history:
        return partitioned(arrivals.drop(LEAVES), table.partition)
    if table.reads_standing:
        return _over(arrivals, table, standing)
    return _marked(_newest(arrivals, table.key, table.partition), table)


def latest_per_key(changes: DataFrame, key: Sequence[str], partition: str | None, key_may_change: bool = False) -> DataFrame:
    """`decode.changes` → one row per key and partition: the table's columns, `_seq`, `_hoodie_is_deleted`, and `_partition` if there is one.

    A key's newest change is the last by (`_seq`, Kafka offset): the rows of an event have one `_seq`, and so have all events of a compressed transaction.
    An update that moves a row to another partition also deletes it where it was: the bucket index looks for a row within one partition only.
    `key_may_change`: an update may also give a row another key, as it may where the key is not the primary key, whose change comes as a delete and an
    insert.

    | _seq | op | before      | after       |   | rows, partitioned by p           |
    |------|----|-------------|-------------|---|----------------------------------|
    | 5    | c  |             | k=1 p=a v=1 |   | k=1 p=a v=1 _seq=6 deleted       |
    | 6    | u  | k=1 p=a v=1 | k=1 p=b v=2 |   | k=1 p=b v=2 _seq=6               |
    """
    return _newest(_arrivals(changes, key, partition, key_may_change), key, partition)


def brought_up(rows: DataFrame | None, newest: DataFrame, table: LakeTable) -> DataFrame:
    """A load's rows as they are behind changes of which `newest` has one row per key, made by `upserts` or `loaded`. No `rows`: all were removed before.

    The rows were read at any moments between the first change and the last: a row whose key has no change is as it was at all of them, and of the
    others the newest image is the truth, whether the reader saw it or not.
    """
    there = newest.where(~F.col(DELETED))
    if rows is None:
        return there
    return _joined(rows, newest, table.key, "left_anti").unionByName(there)


def loaded(changes: DataFrame, table: LakeTable) -> DataFrame:
    """The newest change of each key as a load has it: like a row that a relay read. A row of a table of kind append then says so."""
    if table.history:
        order = Window.partitionBy(*(F.coalesce(f"after.`{column}`", f"before.`{column}`") for column in table.key)).orderBy(F.desc(SEQ), F.desc("offset"))
        newest = changes.where("op != 't'").withColumn("_rank", F.row_number().over(order)).where("_rank = 1")
        rows = history(newest).withColumn(DELETED, F.col(OP) == "d").withColumn(OP, F.lit("r")).withColumn(BEFORE, F.lit(None).cast("string"))
        return partitioned(rows, table.partition)
    return _marked(partitioned(latest_per_key(changes, table.key, None, table.key_may_change), table.partition), table)


def history(changes: DataFrame) -> DataFrame:
    """Every change a row: the row as it is after it, of a delete as it was before; what happened, where and when. One of a TRUNCATE has no columns."""
    return changes.select(
        F.coalesce("after", "before").alias("image"),
        SEQ,
        F.lit(False).alias(DELETED),
        F.col("op").alias(OP),
        F.when(F.col("op") == "u", F.to_json("before", {"ignoreNullFields": "false"})).alias(BEFORE),
        COMMITTED_AT,
        F.concat_ws("-", SEQ, _as_digits("offset")).alias(CHANGE),
    ).select("image.*", SEQ, DELETED, *HISTORY)


def with_history(rows: DataFrame, relay: str, read_at: float) -> DataFrame:
    """A relay's rows (with their offset) as rows of a table of kind append."""
    added = {
        OP: F.lit("r"),
        BEFORE: F.lit(None).cast("string"),
        COMMITTED_AT: F.timestamp_seconds(F.lit(read_at)),
        CHANGE: F.concat_ws("-", F.lit(relay), _as_digits("offset")),
    }
    return rows.withColumns(added)


def _as_digits(number: str) -> Column:
    """A text whose order is the number's."""
    return F.lpad(F.col(number).cast("string"), 15, "0")


def with_gone(rows: DataFrame, standing: DataFrame, table: LakeTable) -> DataFrame:
    """`rows`, and those of `standing` that are no longer among them, as deleted."""
    gone = _joined(standing, rows, table.record_key, "left_anti").withColumn(DELETED, F.lit(not table.soft_delete))
    gone = gone.withColumn(SOFT_DELETED, F.lit(True)) if table.soft_delete else gone
    return rows.unionByName(shaped(gone, rows.schema))


def shaped(rows: DataFrame, columns: T.StructType) -> DataFrame:
    """Exactly these columns: those that are missing are NULL."""
    names = set(rows.columns)
    return rows.select(*((F.col(f"`{f.name}`") if f.name in names else F.lit(None)).cast(f.dataType).alias(f.name) for f in columns))


def partitioned(rows: DataFrame, partition: str | None) -> DataFrame:
    """With `_partition`, where the table has a partition expression."""
    return rows.withColumn(PARTITION, F.expr(partition).cast("string")) if partition else rows


def _arrivals(changes: DataFrame, key: Sequence[str], partition: str | None, key_may_change: bool) -> DataFrame:
    deleted, image = F.col("op") == "d", F.coalesce("after", "before")
    arriving = changes.select(F.col("offset").alias("_offset"), SEQ, deleted.alias(DELETED), F.col("op").alias(OP), "before", image.alias("image"))
    arriving = arriving.select("image.*", *_ORDERED, F.lit(False).alias(LEAVES), F.col("before").alias("_before"))
    if partition is None and not key_may_change:
        return arriving.drop("_before")
    arriving = partitioned(arriving, partition)
    place = F.struct(*(F.col(f"`{column}`") for column in ([*key, PARTITION] if partition else key)))
    moved = arriving.where(f"_before is not null and not {DELETED}")
    leaving = partitioned(moved.select("_before.*", *_ORDERED, F.lit(True).alias(LEAVES), place.alias("_now")), partition)
    leaving = leaving.where(~place.eqNullSafe(F.col("_now"))).withColumn(DELETED, F.lit(True))
    return arriving.drop("_before").unionByName(leaving.drop("_now"))


def _joined(rows: DataFrame, others: DataFrame, key: Sequence[str], how: str, *more: str) -> DataFrame:
    """`rows` joined with the columns `more` of `others`, by a key in which NULL, a zero date, is a value."""
    named = others.select(*(F.col(f"`{name}`").alias(f"_other_{number}") for number, name in enumerate(key)), *more)
    same = reduce(and_, (F.col(f"`{name}`").eqNullSafe(F.col(f"_other_{number}")) for number, name in enumerate(key)))
    return rows.join(named, same, how).drop(*(f"_other_{number}" for number, _ in enumerate(key)))


def _newest(arrivals: DataFrame, key: Sequence[str], partition: str | None) -> DataFrame:
    place = [*key, PARTITION] if partition else key
    newest_first = (F.desc(SEQ), F.desc("_offset"), F.asc(LEAVES))
    window = Window.partitionBy(*(F.col(f"`{column}`") for column in place)).orderBy(*newest_first)
    ranked = arrivals.withColumn("_rank", F.row_number().over(window))
    return ranked.where("_rank = 1").drop("_rank", "_offset", OP, LEAVES)


def _marked(rows: DataFrame, table: LakeTable) -> DataFrame:
    """Deletions as marks, where the table keeps deleted rows."""
    return rows.withColumns({SOFT_DELETED: F.col(DELETED), DELETED: F.lit(False)}) if table.soft_delete else rows


def _over(arrivals: DataFrame, table: LakeTable, standing: DataFrame | None) -> DataFrame:
    """Rows that depend on those that stand: of a patch the values that a change does not give, and where a row is that it replaces.

    A change gives a value unless it is NULL. A row that was deleted and inserted again gets nothing from before.
    """
    rows = _patched(arrivals, table.key) if table.kind == "patch" else _newest(arrivals, table.key, None).withColumn("_fresh", F.lit(True))
    names = [name for name in rows.columns if name not in (SEQ, DELETED, "_fresh")]
    if standing is None:
        return _marked(partitioned(rows.drop("_fresh"), table.partition), table)
    there = _joined(standing, F.broadcast(rows), table.key, "left_semi")
    there = there.select(*(F.col(f"`{name}`") for name in table.key), F.struct(*(F.col(f"`{name}`") for name in there.columns)).alias("_there"))
    joined = _joined(rows, there, table.key, "left", "_there")
    counts = ~F.col("_fresh") & (~F.col("_there")[SOFT_DELETED] if table.soft_delete else F.lit(True))

    def value(name: str) -> Column:
        column = F.col(f"`{name}`")
        patched = table.kind == "patch" and name not in table.key and name in standing.columns
        return F.when(counts, F.coalesce(column, F.col("_there")[name])).otherwise(column).alias(name) if patched else column

    merged = partitioned(joined.select(*map(value, names), SEQ, DELETED, "_there"), table.partition)
    result = _marked(merged.drop("_there"), table)
    if not table.partition:
        return result
    moved = merged.where(F.col("_there").isNotNull() & ~F.col("_there")[PARTITION].eqNullSafe(F.col(PARTITION)))
    left = moved.withColumns({PARTITION: F.col("_there")[PARTITION], DELETED: F.lit(True)}).drop("_there")
    return result.unionByName(left.withColumn(SOFT_DELETED, F.lit(True)) if table.soft_delete else left)


def _patched(arrivals: DataFrame, key: Sequence[str]) -> DataFrame:
    """One row per key: of each column the newest value since the key was deleted, before the newest change; `_fresh`: whether it was."""
    keys = [F.col(f"`{column}`") for column in key]
    of_key = Window.partitionBy(*keys)
    ordered = arrivals.withColumn("_order", F.struct(SEQ, "_offset", (~F.col(LEAVES)).alias("arrives")))
    ordered = ordered.withColumn("_last", F.max("_order").over(of_key))
    ordered = ordered.withColumn("_deleted_at", F.max(F.when(F.col(DELETED) & (F.col("_order") < F.col("_last")), F.col("_order"))).over(of_key))
    alive = F.col("_deleted_at").isNull() | (F.col("_order") > F.col("_deleted_at"))
    values = [name for name in arrivals.columns if name not in (*key, *_ORDERED, LEAVES)]
    newest = [F.max_by(f"`{name}`", F.when(alive & F.col(f"`{name}`").isNotNull(), F.col("_order"))).alias(name) for name in values]
    facts = [F.max_by(name, "_order").alias(name) for name in (SEQ, DELETED)]
    return ordered.groupBy(*keys).agg(*newest, *facts, F.max(F.col("_deleted_at").isNotNull()).alias("_fresh"))
