"""MySQL against the lake, value by value: each in the one form that docs/tables.md, "Canonical forms", gives for its MySQL type.

An oracle apart from the product: nothing of lakerelay's decoding is used here. MySQL is read as it prints its values (pymysql converts none of them),
the lake by Spark and, where it is copy-on-write, by hudi-rs too.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hudi import HudiTableBuilder
from pymysql.cursors import Cursor
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

Row = dict[str, Any]

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_SHAPES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection")
_SPARK_DIGITS = 38
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\s+|-?[0-9][-+.0-9eE]*|.', re.DOTALL)


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # DATA_TYPE: bigint, varchar, …
    digits: int

    @property
    def select(self) -> str:
        """The expression that MySQL prints exactly: a FLOAT or DOUBLE as the double that it is, bits as their number."""
        name = quoted(self.name)
        return f"{name} * 1e0" if self.type in ("float", "double") else f"{name} + 0" if self.type == "bit" else name


@dataclass(frozen=True)
class Table:
    """A table of MySQL with its rows in canonical form. `key`: column names; empty when its rows have none."""

    name: str  # database.table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: list[Row]


def quoted(*names: str) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def read_source(cursor: Cursor, database: str, table: str, key: Sequence[str] = ()) -> Table:
    """`cursor`: of a connection with conv={} and the time zone UTC. `key`: the primary key by default."""
    cursor.execute(
        "SELECT column_name, data_type, COALESCE(numeric_precision, 0) FROM information_schema.columns"
        f" WHERE table_schema = {_literal(database)} AND table_name = {_literal(table)} ORDER BY ordinal_position"
    )
    columns = tuple(Column(name, kind.lower(), int(digits)) for name, kind, digits in cursor.fetchall())
    cursor.execute(
        "SELECT column_name FROM information_schema.statistics"
        f" WHERE table_schema = {_literal(database)} AND table_name = {_literal(table)} AND index_name = 'PRIMARY' ORDER BY seq_in_index"
    )
    primary = tuple(name for (name,) in cursor.fetchall())
    cursor.execute(f"SELECT {', '.join(column.select for column in columns)} FROM {quoted(database, table)}")
    rows = [{column.name: _source_value(column, value) for column, value in zip(columns, row, strict=True)} for row in cursor.fetchall()]
    return Table(f"{database}.{table}", columns, tuple(key) or primary, rows)


def read_by_spark(spark: SparkSession, path: str, table: Table) -> list[Row]:
    """Raises KeyError for a column that the lake does not have."""
    frame = spark.read.format("hudi").load(path)
    types = {field.name: field.dataType for field in frame.schema.fields}
    selected = frame.select(*(_spark_form(types[column.name], F.col(quoted(column.name))).alias(column.name) for column in table.columns))
    return [{column.name: _lake_value(column, value) for column, value in zip(table.columns, row, strict=True)} for row in selected.collect()]


def read_by_hudi_rs(path: str, table: Table) -> list[Row]:
    """Raises KeyError for a column that the lake does not have."""
    batches = HudiTableBuilder.from_base_uri(path).build().read()
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return [{column.name: _lake_value(column, _arrow_form(row[column.name])) for column in table.columns} for row in rows]


def compare(spark: SparkSession, path: str, table: Table, kind: str) -> list[str]:
    """`table` of MySQL against the Hudi table at `path`, of `kind` cow or mor, as each reader gives it: a line for each difference."""
    readers: dict[str, Callable[[], list[Row]]] = {"Spark": lambda: read_by_spark(spark, path, table)}
    if kind == "cow":
        readers["hudi-rs"] = lambda: read_by_hudi_rs(path, table)
    return [line for reader, read in readers.items() for line in _compared(table, read, reader)]


def _compared(table: Table, read: Callable[[], list[Row]], reader: str) -> list[str]:
    try:
        return differences(table, read(), reader)
    except Exception as error:  # a difference too, and no reason to leave the other tables out
        return [f"{table.name}: not to be read by {reader}: {error!r:.500}"]


def differences(table: Table, lake: Iterable[Row], reader: str) -> list[str]:
    """A line for each key that only one side has, then for each value that differs; tables without a key are compared as bags of rows."""
    if not table.key:
        ours, theirs = (Counter(tuple(repr(value) for value in row.values()) for row in rows) for rows in (table.rows, lake))
        only = [(row, "MySQL", count) for row, count in (ours - theirs).items()] + [(row, reader, count) for row, count in (theirs - ours).items()]
        return [f"{table.name}: {count} rows only by {where}: {', '.join(row)}" for row, where, count in only]
    found = list(lake)
    source, target = ({tuple(row[name] for name in table.key): row for row in rows} for rows in (table.rows, found))
    lines = [f"{table.name} {_key(table, key)}: only by MySQL" for key in source if key not in target]
    lines += [f"{table.name} {_key(table, key)}: only by {reader}" for key in target if key not in source]
    if len(found) != len(target):
        lines.append(f"{table.name}: {len(found)} rows with {len(target)} keys by {reader}")
    for key, row in source.items():
        lines += [
            f"{table.name} {_key(table, key)} column {column.name} {column.type}: {row[column.name]!r} by MySQL, {target[key][column.name]!r} by {reader}"
            for column in table.columns
            if key in target and row[column.name] != target[key][column.name]
        ]
    return lines


def _key(table: Table, key: tuple[Any, ...]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(table.key, key, strict=True))


def _literal(text: str) -> str:
    return "_utf8mb4 x'" + text.encode().hex() + "'" if text else "''"


def _source_value(column: Column, value: Any) -> Any:
    """MySQL's print of a value → its canonical form."""
    if value is None:
        return None
    if column.type in _TEXTS:
        return value
    if column.type in _BYTES:
        return value.hex()
    if column.type in _SHAPES:
        return int.from_bytes(value[:4], "little"), value[4:].hex()  # MySQL keeps the spatial reference before the WKB
    if column.type == "vector":
        return [float(number) for number in memoryview(value).cast("f")]
    return _FROM_TEXT[column.type](column, value)


def _number(column: Column, value: str) -> str:
    if column.type == "decimal" and column.digits > _SPARK_DIGITS:
        return value
    return plain(Decimal(value))


def plain(number: Decimal) -> str:
    """Without an exponent, a sign of zero, and zeros at the end of the fraction.

    >>> plain(Decimal("1E+3")), plain(Decimal("-0.00")), plain(Decimal("-1.50"))
    ('1000', '0', '-1.5')
    """
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _date(_: Column, value: str) -> str | None:
    """A date or a datetime, with six fractional digits; None without a month or a day."""
    if value[5:7] == "00" or value[8:10] == "00":
        return None
    return value if len(value) == len("2024-01-01") else f"{value if '.' in value else value + '.':0<26}"


def _microseconds(_: Column, value: str) -> int:
    sign, hours, minutes, seconds = re.fullmatch(r"(-?)([0-9]+):([0-9]+):([0-9.]+)", value).groups()  # type: ignore[union-attr]
    return int(sign + "1") * int(((int(hours) * 60 + int(minutes)) * 60 + Decimal(seconds)) * 1_000_000)


def _json(_: Column, value: str) -> str:
    """Without blanks between tokens, numbers without exponent, whole ones up to 2^64 with all digits of the double; else the text that MySQL prints."""
    return "".join(_json_token(token) for token in _JSON_TOKEN.findall(value))


def _json_token(token: str) -> str:
    if token.isspace():
        return ""
    if token[0] not in "-0123456789" or "e" not in token.lower():
        return token
    double = float(token)
    return str(int(double)) if double.is_integer() and abs(double) < 2**64 else f"{Decimal(token):f}"


_FROM_TEXT: dict[str, Callable[[Column, str], Any]] = {
    **dict.fromkeys([*INTEGERS, "decimal"], _number),
    **dict.fromkeys(["float", "double"], lambda _, value: float(value)),
    **dict.fromkeys(["date", "datetime", "timestamp"], _date),
    "time": _microseconds,
    "json": _json,
}


def _spark_form(kind: T.DataType, column: SparkColumn) -> SparkColumn:
    """What Python cannot hold or would change on the way: dates and times as numbers since 1970."""
    if isinstance(kind, T.DateType):
        return column.cast("string")
    return F.unix_micros(column) if isinstance(kind, T.TimestampType) else column


def _arrow_form(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return f"{value:%Y-%m-%d}".rjust(10, "0") if isinstance(value, date) else value


def _lake_value(column: Column, value: Any) -> Any:
    """The lake's value → its canonical form: what the documented type holds, not made to fit MySQL's."""
    if value is None:
        return None
    if column.type in _BYTES:
        return bytes(value).hex()
    if column.type in _SHAPES:
        return value["srid"], bytes(value["wkb"]).hex()
    if column.type in ("datetime", "timestamp") and isinstance(value, int):
        return f"{_EPOCH + timedelta(microseconds=value):%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")
    if column.type in INTEGERS or (column.type == "decimal" and column.digits <= _SPARK_DIGITS):
        return plain(Decimal(value))
    return value
