"""Cutting a large table into ranges of its first key column."""

from datetime import date
from decimal import Decimal

from lakerelay.capture.binlog import MySQL, quoted, quoted_column
from lakerelay.capture.progress import KeyRange
from lakerelay.capture.source import SourceTable

# Types whose order in an index is the order of a comparison with a literal; not enum (index order, compared as text), not float (no exact literal).
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_ORDERED = _INTEGERS | {"decimal", "date", "datetime", "timestamp", "char", "varchar", "binary", "varbinary"}

# `column` and `table` are quoted names, `lower` is a literal.
_FIRST = "SELECT {column} FROM {table} ORDER BY {column} LIMIT 1"
_AHEAD = "SELECT {column}, {column} > {lower} FROM {table} WHERE {column} >= {lower} ORDER BY {column} LIMIT 1 OFFSET {rows}"
_ABOVE = "SELECT {column} FROM {table} WHERE {column} > {lower} ORDER BY {column} LIMIT 1"
_COUNT = "SELECT COUNT(*) FROM {table} WHERE {column} = {lower}"
_COUNT_REST = "SELECT COUNT(*) FROM {table} WHERE {column} >= {lower}"


def can_split(table: SourceTable) -> bool:
    return bool(table.key) and table.column(table.key[0]).type in _ORDERED


def split(mysql: MySQL, table: SourceTable, rows: int) -> list[tuple[KeyRange, int]]:
    """Ranges of about `rows` rows each, with about how many they have; together they cover every possible key exactly once.

    Walks the key's index once. The bounds are keys that exist, so skew does no harm; rows of one key value stay together.
    The first range is open below and the last above: a row inserted later falls into exactly one of them.
    Bounds are compared by MySQL alone, under the column's collation.
    """
    names = {"column": quoted_column(table.key[0]), "table": quoted(table.name)}
    first = _value(mysql, _FIRST.format(**names))
    if first is None:
        return [(KeyRange(table.key[0], None, None), 0)]
    bounds, counts, lower = [], [], literal(first)
    while (found := _next(mysql, names, lower, rows)) is not None:
        lower, count = found
        bounds.append(lower)
        counts.append(count)
    counts.append(_count(mysql, _COUNT_REST.format(**names, lower=lower)))
    if bounds and counts[-1] < rows // 4:  # a relay of its own is not worth its start
        bounds.pop()
        counts[-2:] = [counts[-2] + counts[-1]]
    edges = [None, *bounds, None]
    return [(KeyRange(table.key[0], low, high), count) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]


def _next(mysql: MySQL, names: dict[str, str], lower: str, rows: int) -> tuple[str, int] | None:
    """The key some `rows` rows after `lower`, and the rows up to it; None at the end of the table."""
    row = _row(mysql, _AHEAD.format(**names, lower=lower, rows=rows))
    if row is None:
        return None
    if row[1]:
        return literal(row[0]), rows
    # One key value fills more than a whole range: the next bound is the next value.
    above = _value(mysql, _ABOVE.format(**names, lower=lower))
    return None if above is None else (literal(above), _count(mysql, _COUNT.format(**names, lower=lower)))


def condition(part: KeyRange) -> str:
    """Whether a row is in the range, as SQL.

    >>> condition(KeyRange("id", "1", "5")), condition(KeyRange("id", None, None))
    ('`id` >= 1 AND `id` < 5', 'TRUE')
    """
    column = quoted_column(part.column)
    bounds = [f"{column} >= {part.lower}"] if part.lower is not None else []  # literals that `split` made
    bounds += [f"{column} < {part.upper}"] if part.upper is not None else []
    return " AND ".join(bounds) or "TRUE"


def literal(value: object) -> str:
    """A key's value as an SQL literal that means the same under any sql_mode.

    >>> literal(7), literal("DE-10"), literal("O'Hara"), literal(b"\\x01")
    ('7', "'DE-10'", "_utf8mb4 x'4F2748617261'", "x'01'")
    """
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return f"x'{value.hex().upper()}'"
    text = str(value)
    if isinstance(value, date) or (text.isascii() and text.replace("-", "").replace("_", "").isalnum()):
        return f"'{text}'"
    return f"_utf8mb4 x'{text.encode().hex().upper()}'"


def _count(mysql: MySQL, query: str) -> int:
    return int(str(_value(mysql, query)))


def _value(mysql: MySQL, query: str) -> object | None:
    row = _row(mysql, query)
    return None if row is None else row[0]


def _row(mysql: MySQL, query: str) -> tuple[object, ...] | None:
    with mysql.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()
