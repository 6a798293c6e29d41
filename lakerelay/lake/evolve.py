"""A table's columns before and after a schema change: what becomes of the rows that are there.

MySQL changes them without a word in the binlog, so the lake does the same by itself where it knows how:

| change                                        | rows that are there                                                  |
|-----------------------------------------------|----------------------------------------------------------------------|
| ADD COLUMN, nullable, no default              | NULL                                                                 |
| ADD COLUMN with a literal as default          | the default, by rewriting the table                                  |
| ADD COLUMN, NOT NULL, no default              | MySQL's own default, 0 or an empty text, by rewriting the table      |
| ADD COLUMN AS (…), ADD COLUMN … DEFAULT (…)   | stops the table                                                      |
| DROP COLUMN                                   | keep what they had; NULL in rows written from then on                |
| RENAME COLUMN, CHANGE                         | the old column's values, by rewriting the table                      |
| another place, ENUM and SET members, charset  | as they are                                                          |
| NULL to NOT NULL and back                     | as they are: a column of the lake may always be NULL                 |
| a type with room for every old value          | the same values in the new type, by rewriting the table              |
| a shorter one that is the same in the lake    | as they are: MySQL refuses the change while a value does not fit     |
| any other type, fewer fractional digits       | stops the table                                                      |
| another primary key                           | stops the table                                                      |

In a table of kind append a row is `history`: it keeps the columns of its time, and only a wider type rewrites it.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.errors import SchemaChangeError
from lakerelay.lake.schema import SourceColumn, TableSchema

_FRACTIONS = ("DATETIME", "TIMESTAMP", "TIME")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")


def columns(values: Mapping[str, Column], schemas: Sequence[TableSchema], lake: T.StructType, history: bool = False) -> list[Column]:
    """The lake's columns of a row that has `values` under the first of `schemas`; the others came after it."""
    for old, new in pairwise([] if history else schemas):
        values = evolved(values, old, new)
    return [values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in lake]


def lake_columns(schemas: Sequence[TableSchema], lake: T.StructType | None = None) -> T.StructType:
    """What the lake's columns `lake` (those of the first schema by default) have become under the last of `schemas`: more, or wider, never fewer."""
    fields = {field.name: field.dataType for field in lake or _own(schemas[0])}
    for schema in schemas:
        for field in _own(schema):
            fields[field.name] = wider(schema, field.name, fields.get(field.name, field.dataType), field.dataType)
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def _own(schema: TableSchema) -> T.StructType:
    return T.StructType([T.StructField(column.name, column.lake_type) for column in schema.columns])


def evolved(values: Mapping[str, Column], old: TableSchema, new: TableSchema) -> dict[str, Column]:
    """The columns of a row under `new`, by name, out of its columns under `old`; what else `values` has stays. Raises SchemaChangeError."""
    if old.key != new.key:
        raise _stopped(old, "its primary key changed", before=old.key, now=new.key)
    result = {name: value for name, value in values.items() if name not in {before for before, _ in new.renamed_from(old)}}
    origins = {now: before for before, now in new.renamed_from(old)}
    for column in new.columns:
        before = old.column(origins.get(column.name, column.name))
        if before is None:
            result[column.name] = _added(new, column)
        else:
            _check(old, before, column)
            result[column.name] = values[before.name].cast(wider(old, before.name, before.lake_type, column.lake_type))
    return result


def rewrites(old: TableSchema, new: TableSchema, lake: T.StructType, history: bool = False) -> bool:
    """Whether rows that are in the lake, with columns `lake`, differ under `new`: else the next commit alone brings the new columns."""
    if new.renamed_from(old) and not history:
        return True
    present = {field.name: field.dataType for field in lake}
    for column in new.columns:
        if old.column(column.name) is None and not history:
            if column.name in present or not _is_null(column):
                return True
        elif wider(old, column.name, present.get(column.name, column.lake_type), column.lake_type) != present.get(column.name, column.lake_type):
            return True
    return False


def wider(table: TableSchema, name: str, before: T.DataType, now: T.DataType) -> T.DataType:
    """The lake type of a column from now on: it holds every value of both. Raises SchemaChangeError when neither does."""
    if _fits(before, now):
        return now
    if isinstance(before, T.NumericType) and _fits(now, before):
        return before
    raise _stopped(table, "the type of a column changed", column=name, before=before.simpleString(), now=now.simpleString())


def _fits(small: T.DataType, large: T.DataType) -> bool:
    match small, large:
        case _ if small == large:
            return True
        case (T.IntegerType(), T.LongType()) | (T.FloatType(), T.DoubleType()):
            return True
        case T.IntegerType() | T.LongType(), T.DecimalType():
            return large.precision - large.scale >= (10 if isinstance(small, T.IntegerType) else 19)
        case T.DecimalType(), T.DecimalType():
            return large.scale >= small.scale and large.precision - large.scale >= small.precision - small.scale
        case T.IntegerType() | T.LongType() | T.DecimalType(), T.StringType():
            return True
        case _:
            return False


def _check(table: TableSchema, before: SourceColumn, now: SourceColumn) -> None:
    """Changes of values that the lake's types do not show."""
    if before.type != now.type and "BINARY" in (before.type, now.type):
        raise _stopped(table, "the type of a column changed", column=now.name, before=before.type, now=now.type)
    if now.type in _FRACTIONS and (before.length or 0) > (now.length or 0):
        raise _stopped(table, "a column lost fractional digits", column=now.name, before=before.length, now=now.length)


def _is_null(column: SourceColumn) -> bool:
    return column.nullable and column.default is None and not column.generated


def _added(table: TableSchema, column: SourceColumn) -> Column:
    """What MySQL gives the new column in rows that are there."""
    kind = column.lake_type
    if _is_null(column):
        return F.lit(None).cast(kind)
    default = column.default
    if column.generated or isinstance(kind, T.BinaryType | T.BooleanType | T.StructType | T.ArrayType):
        raise _stopped(table, "a column was added whose value in old rows is not known here", column=column.name, type=column.type, default=default)
    number = isinstance(kind, T.NumericType)
    if default is None:
        if number or (isinstance(kind, T.StringType) and column.type != "ENUM" and column.type != "JSON"):
            return F.lit("0" if number else "").cast(kind)
        raise _stopped(table, "a column was added whose value in old rows is not known here", column=column.name, type=column.type)
    if isinstance(kind, T.StringType) and column.type != "JSON" and "\\" not in default:
        return F.lit(default.replace("''", "'")).cast(kind)  # as it stands in the statement, between its quotes
    if number and _NUMBER.fullmatch(default):
        return F.lit(default).cast(kind)
    # Debezium writes 1970 for CURRENT_TIMESTAMP.
    if isinstance(kind, T.DateType | T.TimestampType) and default[:1].isdigit() and not default.startswith(("0000", "1970-01-01")):
        return F.lit(default).cast(kind)
    raise _stopped(table, "a column was added with a default that is not known here", column=column.name, type=column.type, default=default)


def _stopped(table: TableSchema, why: str, **facts: object) -> SchemaChangeError:
    return SchemaChangeError(
        f"A table was altered, and {why}.",
        safe="The table stands in the lake as it was before; its changes stay in Kafka. Other tables go on.",
        todo="Run full_load for it with replace set.",
        table=table.table,
        **facts,
    )
