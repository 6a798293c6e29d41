"""Random tables and random histories of statements on them, as hypothesis draws them."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

_NEIGHBOURS = 3
PHASES = ("before", "during", "streaming")  # the load


@dataclass(frozen=True)
class Kind:
    """A MySQL type, literals of it, the types that have room for all of its values, and a default that a new column of it may have."""

    sql: str
    literals: SearchStrategy[str]
    wider: tuple[str, ...] = ()
    default: str | None = None


@dataclass
class History:
    """`table` as CREATE TABLE makes it; `phases`: one each of PHASES, a list of transactions, which are lists of statements."""

    table: str
    settings: dict[str, Any]
    phases: list[list[list[str]]]

    def __str__(self) -> str:
        lines = [f"-- {self.settings}", f"{self.table};"]
        for name, phase in zip(PHASES, self.phases, strict=True):
            lines += [f"-- {name} the load", *(f"{'; '.join(transaction)};" for transaction in phase)]
        return "\n".join(lines)


def drawn(number: int, count: int) -> list[History]:
    """`count` histories, the same for the same `number` always: drawn apart, for hypothesis takes constants from whatever modules are loaded."""
    command = [sys.executable, "-m", __spec__.name, str(number), str(count)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return [History(**history) for history in json.loads(done.stdout)]


def _draw(number: int, count: int) -> list[History]:
    """hypothesis varies what it drew before: of so many neighbours one is taken."""
    found: list[History] = []

    @seed(number)
    @settings(max_examples=count * _NEIGHBOURS, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(histories())
    def take(history: History) -> None:
        found.append(history)

    take()
    return found[_NEIGHBOURS - 1 :: _NEIGHBOURS]


def _whole(low: int, high: int) -> SearchStrategy[str]:
    return (st.sampled_from([low, high, 0, 1]) | st.integers(low, high)).map(str)


def _decimal(digits: int, scale: int) -> SearchStrategy[str]:
    most = 10**digits - 1
    return (st.sampled_from([most, -most, 0, 1]) | st.integers(-most, most)).map(lambda number: _point(number, scale))


def _point(number: int, scale: int) -> str:
    digits = f"{abs(number):0{scale + 1}}"
    return f"{'-' * (number < 0)}{digits[:-scale]}.{digits[-scale:]}"


def _text(alphabet: SearchStrategy[str], most: int) -> SearchStrategy[str]:
    """As its bytes, so that no quote can change it."""
    return st.text(alphabet, max_size=most).map(lambda text: f"_utf8mb4 x'{text.encode().hex()}'")


def _bytes(most: int) -> SearchStrategy[str]:
    return st.binary(max_size=most).map(lambda value: f"x'{value.hex()}'")


def _moments(*more: str, first: int = 1000, last: int = 9999, digits: int = 6) -> SearchStrategy[str]:
    first_day, last_day = datetime(first, 1, 2), datetime(last, 12, 30)  # noqa: DTZ001 — MySQL's have no zone either
    drawn = st.datetimes(first_day, last_day).map(lambda moment: f"{moment:%Y-%m-%d %H:%M:%S.%f}"[: 20 + digits].rstrip("."))
    return (st.sampled_from(more) | drawn).map(lambda text: f"'{text}'")


def _times(digits: int) -> SearchStrategy[str]:
    most = 838 * 3600
    return st.integers(-most * 10**digits, most * 10**digits).map(lambda number: _time(number, digits))


def _time(number: int, digits: int) -> str:
    seconds, fraction = divmod(abs(number), 10**digits)
    point = f".{fraction:0{digits}}" if digits else ""
    return f"'{'-' * (number < 0)}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}'"


def _documents() -> SearchStrategy[str]:
    numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | st.text(_UNICODE, max_size=8)
    documents = st.recursive(leaves, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(_UNICODE, max_size=4), part, max_size=3), max_leaves=6)
    return documents.map(lambda document: f"_utf8mb4 x'{json.dumps(document).encode().hex()}'")


_UNICODE = st.characters(exclude_categories=("Cs",))
_LATIN = st.characters(codec="latin-1", exclude_categories=("Cc",))
_SHAPES = st.sampled_from(["POINT(1 2)", "LINESTRING(0 0, 1.5 -1)", "POLYGON((0 0, 1 1, 1 0, 0 0))", "MULTIPOINT(0 0, 2 2)"])
KINDS = (
    Kind("TINYINT", _whole(-128, 127), ("SMALLINT", "BIGINT"), "5"),
    Kind("TINYINT UNSIGNED", _whole(0, 255), ("SMALLINT UNSIGNED", "INT"), "255"),
    Kind("SMALLINT UNSIGNED", _whole(0, 65535), ("INT UNSIGNED",)),
    Kind("MEDIUMINT", _whole(-(2**23), 2**23 - 1), ("INT", "DECIMAL(14,2)")),
    Kind("INT", _whole(-(2**31), 2**31 - 1), ("BIGINT", "VARCHAR(30)"), "-7"),
    Kind("INT UNSIGNED", _whole(0, 2**32 - 1), ("BIGINT", "BIGINT UNSIGNED")),
    Kind("BIGINT", _whole(-(2**63), 2**63 - 1), ("DECIMAL(25,3)", "VARCHAR(40)")),
    Kind("BIGINT UNSIGNED", _whole(0, 2**64 - 1), ("DECIMAL(30,0)",), "18446744073709551615"),
    Kind("DECIMAL(10,3)", _decimal(10, 3), ("DECIMAL(14,5)", "VARCHAR(40)"), "1.5"),
    Kind("DECIMAL(38,10)", _decimal(38, 10)),
    Kind("DECIMAL(65,30)", _decimal(65, 30)),
    Kind("FLOAT", st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr), ("DOUBLE",), "0.5"),
    Kind("DOUBLE", st.floats(allow_nan=False, allow_infinity=False).map(repr), (), "0.25"),
    Kind("BIT(1)", st.sampled_from(["b'0'", "b'1'"])),
    Kind("BIT(9)", st.integers(0, 2**9 - 1).map(str), ("BIT(20)",)),
    Kind("BIT(64)", st.integers(0, 2**64 - 1).map(str)),
    Kind("YEAR", st.sampled_from(["0000", "1901", "2155", "2024", "1970"]), (), "2000"),
    Kind("DATE", _moments("0000-00-00", "2024-00-15", "1970-01-01", "9999-12-31"), (), "'2024-02-29'"),
    Kind("DATETIME", _moments("0000-00-00", "1970-01-01", digits=0), ("DATETIME(3)", "DATETIME(6)"), "'2000-01-01 10:11:12'"),
    Kind("DATETIME(6)", _moments("0000-00-00", "1582-10-04 23:59:59.999999"), (), "'2000-01-01 10:11:12.5'"),
    Kind("TIMESTAMP NULL", _moments("0000-00-00", "2024-03-31 02:30:00", first=1971, last=2037, digits=0), ("TIMESTAMP(6) NULL",)),
    Kind("TIMESTAMP(6) NULL", _moments("0000-00-00", first=1971, last=2037)),
    Kind("TIME", _times(0), ("TIME(6)",)),
    Kind("TIME(6)", _times(6)),
    Kind("CHAR(5)", _text(_UNICODE, 5), ("VARCHAR(20)",), "'it''s'"),
    Kind("VARCHAR(20)", _text(_UNICODE, 20), ("VARCHAR(60)", "TEXT"), "'ä'"),
    Kind("VARCHAR(20) CHARACTER SET latin1", _text(_LATIN, 20), ("VARCHAR(20) CHARACTER SET utf8mb4",)),
    Kind("VARCHAR(20) CHARACTER SET gbk", _text(st.characters(codec="gb2312", exclude_categories=("Cc",)), 20), ("TEXT CHARACTER SET gbk",)),
    Kind("MEDIUMTEXT", _text(_UNICODE, 300)),
    Kind("ENUM('a','b,c','ü')", st.sampled_from(["'a'", "'b,c'", "'ü'"]), ("ENUM('new','a','b,c','ü')",), "'b,c'"),
    Kind("SET('x','y','z')", st.sampled_from(["''", "'x'", "'x,z'", "'z,y,x'"]), ("SET('x','y','z','w')",)),
    Kind("JSON", _documents()),
    Kind("BINARY(4)", _bytes(4)),
    Kind("VARBINARY(10)", _bytes(10), ("VARBINARY(30)",)),
    Kind("BLOB", _bytes(300), ("LONGBLOB",)),
    Kind("GEOMETRY", _SHAPES.map(lambda shape: f"ST_GeomFromText('{shape}')")),
)
KEYS = {  # type → few values, so that statements meet the same rows
    "INT": ("1", "2", "3", "-4", "2147483647"),
    "BIGINT UNSIGNED": ("1", "2", "18446744073709551615"),
    "VARCHAR(20)": ("'a'", "'A'", "'b'", "'ü/'", "'x y'", "''"),
    "CHAR(8) CHARACTER SET latin1": ("'a'", "'é'", "'__null__'"),
    "DECIMAL(12,3)": ("1", "1.5", "-2.25"),
    "DATE": ("'2024-01-01'", "'1000-01-01'", "'1969-12-31'"),
    "DATETIME(6)": ("'2024-01-01 00:00:00.000001'", "'2024-01-01'"),
    "BINARY(3)": ("x'00FF'", "x'000102'", "x''"),
    "ENUM('p','q')": ("'p'", "'q'"),
}


@dataclass
class _State:
    """What the next statement may name. `keys`: name → its values; `columns`: name → (kind, nullable)."""

    keys: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[Kind, bool]] = field(default_factory=dict)
    made: int = 0

    def new_name(self) -> str:
        self.made += 1
        return f"c{self.made}"


@st.composite
def histories(draw: DrawFn) -> History:
    """The table is called {t} in its statements."""
    keys = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True))
    state = _State({f"k{number}": KEYS[kind] for number, kind in enumerate(keys)})
    definitions = [f"k{number} {kind} NOT NULL" for number, kind in enumerate(keys)]
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8)):
        name, nullable = state.new_name(), draw(st.booleans()) or kind.sql.endswith(" NULL")
        state.columns[name] = kind, nullable
        definitions.append(f"{name} {kind.sql}{'' if nullable else ' NOT NULL'}")
    table = f"CREATE TABLE {{t}} ({', '.join(definitions)}, PRIMARY KEY ({', '.join(state.keys)}))"
    phases = [draw(_phase(state, most)) for most in (6, 6, 12)]
    settings: dict[str, Any] = {"type": draw(st.sampled_from(["cow", "mor"]))}
    if draw(st.booleans()):
        settings["partition"] = f"pmod(hash(cast(`{draw(st.sampled_from(sorted(state.keys)))}` as string)), 2)"
    return History(table, settings, phases)


@st.composite
def _phase(draw: DrawFn, state: _State, most: int) -> list[list[str]]:
    """It ends with rows."""
    return [draw(_transaction(state)) for _ in range(draw(st.integers(most // 2, most)))] + [[draw(_insert(state, "REPLACE")) for _ in range(3)]]


@st.composite
def _transaction(draw: DrawFn, state: _State) -> list[str]:
    match draw(st.sampled_from(["rows"] * 16 + ["alter"] * 6 + ["truncate", "delete all"])):
        case "alter":
            return draw(_alter(state))
        case "truncate":
            return ["TRUNCATE TABLE {t}"]
        case "delete all":
            return ["DELETE FROM {t}"]
    statements = [draw(_change(state)) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        return statements[:1]
    if len(statements) > 2 and draw(st.booleans()):
        statements = [statements[0], "SAVEPOINT s", *statements[1:-1], "ROLLBACK TO s", statements[-1]]
    return ["BEGIN", *statements, draw(st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))]


@st.composite
def _change(draw: DrawFn, state: _State) -> str:
    verb = draw(st.sampled_from(["INSERT", "INSERT", "REPLACE", "ON DUPLICATE", "UPDATE", "UPDATE", "UPDATE ALL", "UPDATE KEY", "DELETE"]))
    key = draw(st.sampled_from(sorted(state.keys)))
    where = f"WHERE {key} = {draw(st.sampled_from(state.keys[key]))}"
    match verb:
        case "DELETE":
            return f"DELETE FROM {{t}} {where}"
        case "UPDATE KEY":
            return f"UPDATE {{t}} SET {key} = {draw(st.sampled_from(state.keys[key]))} {where}"
        case "UPDATE" | "UPDATE ALL" if state.columns:
            return f"UPDATE {{t}} SET {draw(_set(state))} {where if verb == 'UPDATE' else ''}"
    return draw(_insert(state, verb))


@st.composite
def _insert(draw: DrawFn, state: _State, verb: str) -> str:
    names = [*state.keys, *state.columns]
    rows = [f"({', '.join(draw(_value(state, name)) for name in names)})" for _ in range(draw(st.integers(1, 3)))]
    insert = f"{'REPLACE' if verb == 'REPLACE' else 'INSERT'} INTO {{t}} ({', '.join(names)}) VALUES {', '.join(rows)}"
    return f"{insert} ON DUPLICATE KEY UPDATE {draw(_set(state))}" if verb == "ON DUPLICATE" and state.columns else insert


@st.composite
def _set(draw: DrawFn, state: _State) -> str:
    names = draw(st.lists(st.sampled_from(sorted(state.columns)), min_size=1, max_size=3, unique=True))
    return ", ".join(f"{name} = {draw(_value(state, name))}" for name in names)


@st.composite
def _value(draw: DrawFn, state: _State, name: str) -> str:
    if name in state.keys:
        return draw(st.sampled_from(state.keys[name]))
    kind, nullable = state.columns[name]
    return draw(st.just("NULL") | kind.literals if nullable else kind.literals)


@st.composite
def _alter(draw: DrawFn, state: _State) -> list[str]:
    """One that docs/tables.md says is followed."""
    what = draw(st.sampled_from(["ADD", "ADD", "DROP", "RENAME", "CHANGE", "MODIFY", "MODIFY"] if state.columns else ["ADD"]))
    if what == "ADD":
        return [f"ALTER TABLE {{t}} ADD COLUMN {draw(_added(state))} {draw(_place(state))}"]
    name = draw(st.sampled_from(sorted(state.columns)))
    kind, nullable = state.columns.pop(name)
    if what in ("RENAME", "CHANGE") and not nullable and kind.sql.startswith("DATE"):
        what = "DROP"  # under another name it reads zero dates as 1970-01-01 until the next full load
    if what == "DROP":
        return [f"ALTER TABLE {{t}} DROP COLUMN {name}"]
    null = "" if nullable else " NOT NULL"
    now, sql = name, kind.sql
    if what != "MODIFY":
        now = state.new_name()
    elif kind.wider:
        sql = draw(st.sampled_from(kind.wider))
        kind = Kind(sql, kind.literals)
    state.columns[now] = kind, nullable
    if what == "RENAME":
        return [f"ALTER TABLE {{t}} RENAME COLUMN {name} TO {now}"]
    return [f"ALTER TABLE {{t}} CHANGE {name} {now} {sql}{null}" if what == "CHANGE" else f"ALTER TABLE {{t}} MODIFY {name} {sql}{null}"]


@st.composite
def _added(draw: DrawFn, state: _State) -> str:
    kind, name = draw(st.sampled_from(KINDS)), state.new_name()
    has_default = kind.default is not None and draw(st.booleans())
    nullable = kind.sql.startswith("DATE") or not (has_default and draw(st.booleans()))  # as above
    state.columns[name] = kind, nullable
    return f"{name} {kind.sql}{'' if nullable else ' NOT NULL'}{f' DEFAULT {kind.default}' * has_default}"


@st.composite
def _place(draw: DrawFn, state: _State) -> str:
    return draw(st.sampled_from(["", "", "FIRST", *(f"AFTER {name}" for name in state.keys)]))


if __name__ == "__main__":
    print(json.dumps([asdict(history) for history in _draw(*map(int, sys.argv[1:]))]))
