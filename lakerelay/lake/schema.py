"""The typed contract: Debezium's schema-change events → what a table's columns are on the wire and in the lake."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture.binlog import Position
from lakerelay.errors import DecodeError

SEQ = "_seq"  # the binlog position as one number; Hudi's ordering field
DELETED = "_hoodie_is_deleted"  # Hudi's own name for a row to be removed


@dataclass(frozen=True)
class SourceColumn:
    """A column as MySQL declares it: `type` in upper case without length, such as BIGINT UNSIGNED."""

    name: str
    type: str
    length: int | None = None
    scale: int | None = None


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order, and its primary key; valid from `seq` on."""

    table: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    seq: int = 0

    @property
    def wire(self) -> T.StructType:
        """One row as Debezium's JSON holds it."""
        return T.StructType([T.StructField(column.name, _mapping(self.table, column).wire) for column in self.columns])

    def lake_columns(self, row: str) -> list[Column]:
        """The columns of the wire struct named `row`, as the lake holds them."""
        return [_mapping(self.table, column).convert(F.col(f"{row}.`{column.name}`")).alias(column.name) for column in self.columns]


@dataclass(frozen=True)
class Mapping:
    """How one MySQL type travels: `wire` is the type in JSON, `convert` turns it into the lake's."""

    wire: T.DataType
    convert: Callable[[Column], Column] = lambda column: column


def _decimal(column: SourceColumn) -> Mapping:
    return Mapping(T.DecimalType(column.length or 10, column.scale or 0))


def _datetime(column: SourceColumn) -> Mapping:
    """Milliseconds up to three fractional digits, else microseconds; written as if the clock were UTC."""
    return Mapping(T.LongType(), F.timestamp_millis if (column.length or 0) <= 3 else F.timestamp_micros)


_INT, _LONG, _TEXT, _BYTES = Mapping(T.IntegerType()), Mapping(T.LongType()), Mapping(T.StringType()), Mapping(T.BinaryType())
_SHAPE = Mapping(T.StructType([T.StructField("srid", T.IntegerType()), T.StructField("wkb", T.BinaryType())]))

# Source: Debezium's MySQL connector, "How Debezium MySQL connectors map data types", with the settings in connect/*.json.
_MAPPINGS: dict[str, Mapping | Callable[[SourceColumn], Mapping]] = {
    **dict.fromkeys(["TINYINT", "TINYINT UNSIGNED", "SMALLINT", "SMALLINT UNSIGNED", "MEDIUMINT", "MEDIUMINT UNSIGNED", "INT", "YEAR"], _INT),
    **dict.fromkeys(["INT UNSIGNED", "BIGINT"], _LONG),
    "BIGINT UNSIGNED": Mapping(T.DecimalType(20, 0)),
    **dict.fromkeys(["DECIMAL", "DECIMAL UNSIGNED"], _decimal),
    **dict.fromkeys(["FLOAT", "FLOAT UNSIGNED"], Mapping(T.FloatType())),
    **dict.fromkeys(["DOUBLE", "DOUBLE UNSIGNED"], Mapping(T.DoubleType())),
    "BIT": lambda column: Mapping(T.BooleanType()) if (column.length or 1) == 1 else _BYTES,
    "DATE": Mapping(T.IntegerType(), F.date_from_unix_date),
    "TIME": _LONG,  # microseconds
    "DATETIME": _datetime,
    "TIMESTAMP": Mapping(T.StringType(), lambda column: column.cast("timestamp")),
    **dict.fromkeys(["CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "JSON"], _TEXT),
    **dict.fromkeys(["BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"], _BYTES),
    **dict.fromkeys(["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON", "GEOMETRYCOLLECTION"], _SHAPE),
}
_ALIASES = {
    "INTEGER": "INT",
    "BOOL": "TINYINT",
    "BOOLEAN": "TINYINT",
    "NUMERIC": "DECIMAL",
    "DEC": "DECIMAL",
    "FIXED": "DECIMAL",
    "REAL": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE",
    "CHARACTER": "CHAR",
    "NCHAR": "CHAR",
    "NVARCHAR": "VARCHAR",
    "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
}


def _mapping(table: str, column: SourceColumn) -> Mapping:
    if column.type.startswith("DECIMAL") and (column.length or 10) > 38:
        raise _unsupported(table, column, "Spark's decimals have 38 digits")
    found = _MAPPINGS.get(column.type)
    if found is None:
        raise _unsupported(table, column, "no mapping to a lake type")
    return found if isinstance(found, Mapping) else found(column)


def _unsupported(table: str, column: SourceColumn, why: str) -> DecodeError:
    return DecodeError(
        f"A column's type cannot be brought into the lake: {why}.",
        safe="Nothing of this table was written.",
        todo="Take the table out of the settings, or change the column.",
        table=table,
        column=column.name,
        type=column.type,
        length=column.length,
    )


def _plain_type(name: str) -> str:
    base = name.upper().removesuffix(" ZEROFILL").removesuffix(" SIGNED")
    stem = base.removesuffix(" UNSIGNED")
    unsigned = " UNSIGNED" if "UNSIGNED" in base or "ZEROFILL" in name.upper() else ""  # ZEROFILL implies it
    return _ALIASES.get(stem, stem) + unsigned


def schemas(values: Iterable[bytes]) -> dict[str, list[TableSchema]]:
    """Table → its schemas in the order in which they came to be, from the values of a schema-change topic.

    Each value: {"source": {"file", "pos"}, "tableChanges": [{"type": CREATE | ALTER | DROP, "table": {"columns": […], "primaryKeyColumnNames": […]}}]}
    """
    found: dict[str, list[TableSchema]] = {}
    for value in values:
        event = json.loads(value)
        source = event["source"]
        seq = Position(source["file"], source["pos"]).seq if source.get("file") else 0
        for change in event.get("tableChanges") or ():
            if change["type"] != "DROP":
                schema = _table_schema(change, seq)
                found.setdefault(schema.table, []).append(schema)
    return found


def _table_schema(change: dict[str, Any], seq: int) -> TableSchema:
    table = change["table"]
    columns = sorted(table["columns"], key=lambda column: int(column["position"]))
    return TableSchema(
        table=".".join(part.strip('"') for part in change["id"].split('"."')),
        columns=tuple(SourceColumn(column["name"], _plain_type(column["typeName"]), column["length"], column["scale"]) for column in columns),
        key=tuple(table["primaryKeyColumnNames"]),
        seq=seq,
    )
