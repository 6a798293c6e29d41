"""The typed contract: Debezium's schema-change events → what a table's columns are on the wire and in the lake."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture.binlog import Position
from lakerelay.capture.source import ZERO_DATE, ZERO_DATETIME
from lakerelay.errors import DecodeError
from lakerelay.lake import json_text

_SPARK_DIGITS = 38


@dataclass(frozen=True)
class SourceColumn:
    """A column as MySQL declares it: `type` in upper case without length, such as BIGINT UNSIGNED; `default` as text, None when there is none."""

    name: str
    type: str
    length: int | None = None
    scale: int | None = None
    nullable: bool = True
    default: str | None = None
    generated: bool = False  # its value, or its default, is an expression

    @property
    def lake_type(self) -> T.DataType:
        mapping = _mapping("", self)
        return mapping.lake or mapping.wire


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order, and its primary key; valid from `seq` on. `renames`: (before, now) columns that the statement renamed.

    `created`: by a CREATE TABLE that was captured, so every row that it ever had is captured too; `emptied`: made anew, so no row from before is left.
    `captured_anew`: read from the server when the connector began, not from the binlog: what happened to the table before is not known.
    """

    table: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    seq: int = 0
    renames: tuple[tuple[str, str], ...] = ()
    created: bool = False
    emptied: bool = False
    captured_anew: bool = False

    def to_json(self) -> str:
        return _schema_json().dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "TableSchema":
        return _schema_json().validate_json(text)

    def column(self, name: str) -> SourceColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def renamed_from(self, old: "TableSchema") -> list[tuple[str, str]]:
        """(before, now) of columns that `old` has and that are called otherwise here."""
        return [(before, now) for before, now in self.renames if old.column(before) and not old.column(now) and self.column(now) and not self.column(before)]

    @property
    def wire(self) -> T.StructType:
        """One row as Debezium's JSON holds it."""
        return T.StructType([T.StructField(column.name, _mapping(self.table, column).wire) for column in self.columns])

    def values(self, row: str) -> dict[str, Column]:
        """Name → the column of the wire struct named `row`, as the lake holds it."""
        return {column.name: _mapping(self.table, column).convert(F.col(f"{row}.`{column.name}`")) for column in self.columns}


@cache
def _schema_json() -> TypeAdapter[TableSchema]:
    return TypeAdapter(TableSchema)


@dataclass(frozen=True)
class Mapping:
    """How one MySQL type travels: `wire` is the type in JSON, `convert` turns it into the lake's, `lake`, which is the same by default."""

    wire: T.DataType
    convert: Callable[[Column], Column] = lambda column: column
    lake: T.DataType | None = None


def _decimal(column: SourceColumn) -> Mapping:
    """Beyond the 38 digits of Spark's decimals its text."""
    digits = column.length or 10
    return Mapping(T.DecimalType(digits, column.scale or 0)) if digits <= _SPARK_DIGITS else _TEXT


def _bit(column: SourceColumn) -> Mapping:
    """BIT(1) as a boolean; more bits, which come with the lowest byte first, as the number that they make."""
    length = column.length or 1
    if length == 1:
        return Mapping(T.BooleanType())
    lake = T.LongType() if length < 64 else T.DecimalType(20, 0)

    def number(column: Column) -> Column:
        highest_first = F.array_join(F.reverse(F.regexp_extract_all(F.hex(column), F.lit("(..)"), F.lit(1))), "")
        return F.conv(highest_first, 16, 10).cast(lake)

    return Mapping(T.BinaryType(), number, lake)


def _binary(column: SourceColumn) -> Mapping:
    """The binlog leaves out zero bytes at the end, which belong to the value."""
    length = column.length or 1
    return Mapping(T.BinaryType(), lambda column: F.rpad(column, length, b"\0"))  # type: ignore[arg-type]


def _datetime(column: SourceColumn) -> Mapping:
    """Milliseconds up to three fractional digits, else microseconds; written as if the clock were UTC."""
    convert = F.timestamp_millis if (column.length or 0) <= 3 else F.timestamp_micros
    return Mapping(T.LongType(), lambda value: F.nullif(convert(value), F.lit(ZERO_DATETIME).cast("timestamp")), T.TimestampType())


def _timestamp(value: Column) -> Column:
    """Debezium makes the epoch of a zero one; the first real one is a second later."""
    return F.nullif(value.cast("timestamp"), F.lit("1970-01-01").cast("timestamp"))


def _float(column: SourceColumn) -> Mapping:
    """FLOAT(25) is a DOUBLE, FLOAT(25, 2) is not."""
    return Mapping(T.DoubleType() if column.scale is None and (column.length or 0) > 24 else T.FloatType())


def _shape(value: Column) -> Column:
    """MySQL's spatial reference 0 comes as none."""
    return F.when(value.isNotNull(), F.struct(F.coalesce(value["srid"], F.lit(0)).alias("srid"), value["wkb"].alias("wkb")))


_INT, _LONG, _TEXT, _BYTES = Mapping(T.IntegerType()), Mapping(T.LongType()), Mapping(T.StringType()), Mapping(T.BinaryType())
_SHAPE = Mapping(T.StructType([T.StructField("srid", T.IntegerType()), T.StructField("wkb", T.BinaryType())]), _shape)

# Source: Debezium's MySQL connector, "How Debezium MySQL connectors map data types", with the settings in connect/*.json.
_MAPPINGS: dict[str, Mapping | Callable[[SourceColumn], Mapping]] = {
    **dict.fromkeys(["TINYINT", "TINYINT UNSIGNED", "SMALLINT", "SMALLINT UNSIGNED", "MEDIUMINT", "MEDIUMINT UNSIGNED", "INT"], _INT),
    # As a statement that is streamed names it; in a table that is read it is a TINYINT, and a number.
    **dict.fromkeys(["BOOL", "BOOLEAN"], Mapping(T.BooleanType(), lambda value: value.cast("int"), T.IntegerType())),
    "YEAR": Mapping(T.IntegerType(), lambda value: F.when(value == 1900, 0).otherwise(value)),  # the binlog counts from 1900, and 0 is no year since then
    **dict.fromkeys(["INT UNSIGNED", "BIGINT"], _LONG),
    "BIGINT UNSIGNED": Mapping(T.DecimalType(20, 0)),
    **dict.fromkeys(["DECIMAL", "DECIMAL UNSIGNED"], _decimal),
    **dict.fromkeys(["FLOAT", "FLOAT UNSIGNED"], _float),
    **dict.fromkeys(["DOUBLE", "DOUBLE UNSIGNED"], Mapping(T.DoubleType())),
    "BIT": _bit,
    "DATE": Mapping(T.IntegerType(), lambda value: F.nullif(F.date_from_unix_date(value), F.lit(ZERO_DATE).cast("date")), T.DateType()),
    "TIME": _LONG,  # microseconds
    "DATETIME": _datetime,
    "TIMESTAMP": Mapping(T.StringType(), _timestamp, T.TimestampType()),
    **dict.fromkeys(["CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "SET"], _TEXT),
    # Debezium tells the binlog's members by a list in which commas are escaped.
    "ENUM": Mapping(T.StringType(), lambda value: F.replace(value, F.lit("\\,"), F.lit(","))),
    "JSON": Mapping(T.StringType(), json_text.canonical),
    "BINARY": _binary,
    "VECTOR": Mapping(T.ArrayType(T.FloatType())),
    **dict.fromkeys(["VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"], _BYTES),
    **dict.fromkeys(["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON", "GEOMETRYCOLLECTION"], _SHAPE),
}
# As statements may name them; a table that is read has MySQL's own names.
_ALIASES = {
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT4": "INT",
    "INTEGER": "INT",
    "INT8": "BIGINT",
    "NUMERIC": "DECIMAL",
    "DEC": "DECIMAL",
    "FIXED": "DECIMAL",
    "FLOAT8": "DOUBLE",
    "REAL": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE",
    "CHARACTER": "CHAR",
    "NCHAR": "CHAR",
    "NATIONAL CHAR": "CHAR",
    "NATIONAL CHARACTER": "CHAR",
    "NVARCHAR": "VARCHAR",
    "NATIONAL VARCHAR": "VARCHAR",
    "NCHAR VARCHAR": "VARCHAR",
    "NCHAR VARYING": "VARCHAR",
    "NATIONAL CHAR VARYING": "VARCHAR",
    "NATIONAL CHARACTER VARYING": "VARCHAR",
    "CHAR VARYING": "VARCHAR",
    "CHARACTER VARYING": "VARCHAR",
    "LONG": "MEDIUMTEXT",
    "LONG VARCHAR": "MEDIUMTEXT",
    "LONG VARBINARY": "MEDIUMBLOB",
    "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
}


def _mapping(table: str, column: SourceColumn) -> Mapping:
    if not column.name.isidentifier():
        raise _unsupported(table, column, "Hudi's names have letters, digits and _ alone, and no digit first")
    found = _MAPPINGS.get(column.type)
    if found is None:
        raise _unsupported(table, column, "no mapping to a lake type")
    return found if isinstance(found, Mapping) else found(column)


def _unsupported(table: str, column: SourceColumn, why: str) -> DecodeError:
    return DecodeError(
        f"A column cannot be brought into the lake: {why}.",
        safe="Nothing of this table was written.",
        todo="Change the column, or take the table out of the settings.",
        table=table,
        column=column.name,
        type=column.type,
        length=column.length,
    )


def _plain_type(name: str) -> str:
    base = name.upper().removesuffix(" ZEROFILL").removesuffix(" SIGNED")
    stem = base.removesuffix(" UNSIGNED").removesuffix(" BINARY")  # VARCHAR(9) BINARY is compared by its bytes
    unsigned = " UNSIGNED" if "UNSIGNED" in base or "ZEROFILL" in name.upper() else ""  # ZEROFILL implies it
    return _ALIASES.get(stem, stem) + unsigned


def schemas(values: Iterable[tuple[int, bytes]]) -> dict[str, list[TableSchema]]:
    """Table → its schemas in the order in which they came to be, from the records of a schema-change topic, each with its epoch.

    Each record: {"source": {"file", "pos"}, "ddl", "tableChanges": [{"type": CREATE | ALTER | DROP, "table": {"columns": […], "primaryKeyColumnNames": […]}}]}
    """
    found: dict[str, list[TableSchema]] = {}
    dropped: set[str] = set()
    for epoch, value in values:
        event = json.loads(value)
        source = event["source"]
        seq = Position(source["file"], source["pos"], epoch=epoch).seq if source.get("file") else 0
        for change in event.get("tableChanges") or ():
            name = _table_name(change)
            if change["type"] == "DROP":
                dropped.add(name)
                continue
            anew = source.get("snapshot") not in (None, "false")
            created = change["type"] == "CREATE" and not anew
            schema = _table_schema(change, seq, event.get("ddl") or "")
            schema = replace(schema, created=created, emptied=created and name in dropped, captured_anew=anew)
            dropped.discard(name)
            found.setdefault(name, []).append(schema)
    return found


def _table_name(change: dict[str, Any]) -> str:
    """Out of "database"."table", in which a quote within a name is doubled."""
    return ".".join(part.replace('""', '"') for part in _QUOTED.findall(change["id"]))


def _table_schema(change: dict[str, Any], seq: int, ddl: str) -> TableSchema:
    table = change["table"]
    columns = sorted(table["columns"], key=lambda column: int(column["position"]))
    # Debezium 3.6.1 tells neither of generated columns nor of expressions as default: any column that the statement may have given one counts.
    computed = change["type"] == "ALTER" and _COMPUTED.search(_TEXT_LITERAL.sub("", ddl)) is not None
    return TableSchema(
        table=_table_name(change),
        columns=tuple(_column(column, computed) for column in columns),
        key=tuple(table["primaryKeyColumnNames"]),
        seq=seq,
        renames=tuple((_unquoted(before), _unquoted(now)) for before, now in _RENAME.findall(ddl)),
    )


def _column(column: dict[str, Any], computed: bool) -> SourceColumn:
    default = column.get("defaultValueExpression")
    return SourceColumn(
        column["name"],
        _plain_type(column["typeName"]),
        column["length"],
        column["scale"],
        nullable=column.get("optional", True),
        default=default,
        generated=column.get("generated", False) or (computed and default is None),
    )


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
# n INT AS (…), n INT DEFAULT (…)
_COMPUTED = re.compile(r"\b(?:AS|DEFAULT)\s*\(", re.IGNORECASE)
_TEXT_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
# CHANGE [COLUMN] a b …, RENAME COLUMN a TO b
_NAME = r"(`(?:[^`]|``)+`|[\w$]+)"
_RENAME = re.compile(rf"\b(?:CHANGE(?:\s+COLUMN)?|RENAME\s+COLUMN)\s+{_NAME}\s+(?:TO\s+)?{_NAME}", re.IGNORECASE)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
