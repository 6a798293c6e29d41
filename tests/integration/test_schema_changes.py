"""ALTER, TRUNCATE, DROP and CREATE while a table is loaded and streamed: the lake follows, or the table stops and says why; the others go on."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Settings
from lakerelay.lake import load
from tests.integration.pipeline import Pipeline

# Name → (columns, statements while streaming; each with a row changed before and after it)
FOLLOWED: dict[str, tuple[str, list[str]]] = {
    "add_last": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD COLUMN n INT"]),
    "add_first": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD COLUMN n INT FIRST"]),
    "add_middle": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD COLUMN n INT AFTER id, ADD COLUMN m TEXT AFTER n"]),
    "add_default": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD COLUMN n INT NOT NULL DEFAULT 5, ADD COLUMN s VARCHAR(9) DEFAULT 'it''s'"]),
    "add_not_null": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD COLUMN n INT NOT NULL, ADD COLUMN s VARCHAR(9) NOT NULL"]),
    "add_dates": (
        "id INT PRIMARY KEY, v VARCHAR(20)",
        ["ALTER TABLE {t} ADD COLUMN d DATE DEFAULT '2024-02-29', ADD COLUMN t DATETIME(3) NOT NULL DEFAULT '2024-01-01 10:00:00.5'"],
    ),
    "drop_column": ("id INT PRIMARY KEY, v VARCHAR(20), n INT", ["ALTER TABLE {t} DROP COLUMN n"]),
    "drop_and_add": ("id INT PRIMARY KEY, v VARCHAR(20), n INT", ["ALTER TABLE {t} DROP COLUMN n", "ALTER TABLE {t} ADD COLUMN n INT"]),
    "booleans": (  # which Debezium gives as booleans when they come by a statement, and as numbers when it reads the table
        "id INT PRIMARY KEY, v VARCHAR(20), n BOOL",
        ["ALTER TABLE {t} ADD COLUMN b BOOLEAN NOT NULL, ADD COLUMN c BOOL", "UPDATE {t} SET b = TRUE, n = FALSE WHERE id = 1"],
    ),
    "synonyms": (
        "id INT PRIMARY KEY, v VARCHAR(20), n INT",
        [
            "ALTER TABLE {t} ADD COLUMN (i1 INT1 UNSIGNED, i2 INT2, i3 INT3, i4 INT4, i8 INT8 UNSIGNED, m MIDDLEINT)",
            "UPDATE {t} SET i1 = 255, i2 = -2, i3 = 3, i4 = 4, i8 = 18446744073709551615, m = -8388608 WHERE id = 1",
            "ALTER TABLE {t} ADD COLUMN (f8 FLOAT8, f25 FLOAT(25), f24 FLOAT(24), dp DOUBLE PRECISION, de DEC(5, 2), fi FIXED(5, 2), nu NUMERIC(5, 2))",
            "UPDATE {t} SET f8 = 64.1, f25 = 64.1, f24 = 0.25, dp = 1.1, de = 1.25, fi = -1.5, nu = 999.99 WHERE id = 2",
            "ALTER TABLE {t} ADD COLUMN (l LONG, lv LONG VARCHAR, c1 CHARACTER(3), c2 CHARACTER VARYING(3), c3 CHAR VARYING(3), c4 NCHAR(3), c5 NVARCHAR(3))",
            "ALTER TABLE {t} ADD COLUMN (c6 NATIONAL CHAR(3), c7 NATIONAL VARCHAR(3), c8 NATIONAL CHARACTER VARYING(3), c9 VARCHAR(3) BINARY)",
            "UPDATE {t} SET l = 'l', lv = 'lv', c1 = 'c', c2 = 'c', c3 = 'c', c4 = 'ü', c5 = 'ü', c6 = 'ü', c7 = 'ü', c8 = 'ü', c9 = 'B' WHERE id = 3",
        ],
    ),
    "rename_column": ("id INT PRIMARY KEY, v VARCHAR(20), n INT", ["ALTER TABLE {t} CHANGE n amount INT"]),
    "rename_8": ("id INT PRIMARY KEY, v VARCHAR(20), n INT", ["ALTER TABLE {t} RENAME COLUMN n TO amount"]),
    "wider": ("id INT PRIMARY KEY, v VARCHAR(20), n INT, d DECIMAL(5, 2)", ["ALTER TABLE {t} MODIFY n BIGINT, MODIFY d DECIMAL(12, 4)"]),
    "to_text": ("id INT PRIMARY KEY, v VARCHAR(20), n INT", ["ALTER TABLE {t} MODIFY n VARCHAR(30)"]),
    "shorter": ("id INT PRIMARY KEY, v VARCHAR(20), n BIGINT", ["ALTER TABLE {t} MODIFY n INT, MODIFY v VARCHAR(12)"]),
    "nullable": ("id INT PRIMARY KEY, v VARCHAR(20), n INT NOT NULL", ["ALTER TABLE {t} MODIFY n INT NULL", "ALTER TABLE {t} MODIFY v VARCHAR(20) NOT NULL"]),
    "members": ("id INT PRIMARY KEY, v VARCHAR(20), e ENUM('a', 'b')", ["ALTER TABLE {t} MODIFY e ENUM('b', 'c', 'a')"]),
    "charset": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} CONVERT TO CHARACTER SET latin1"]),
    "truncated": ("id INT PRIMARY KEY, v VARCHAR(20)", ["TRUNCATE TABLE {t}"]),
    "made_anew": ("id INT PRIMARY KEY, v VARCHAR(20)", ["DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20), extra INT)"]),
    "indexed": ("id INT PRIMARY KEY, v VARCHAR(20)", ["ALTER TABLE {t} ADD INDEX (v)"]),
    "swapped": (  # as gh-ost and pt-online-schema-change do
        "id INT PRIMARY KEY, v VARCHAR(20)",
        [
            "CREATE TABLE {t}_new (id INT PRIMARY KEY, v VARCHAR(20), n INT)",
            "INSERT INTO {t}_new (id, v) SELECT id, v FROM {t}; RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        ],
    ),
    "many": (
        "id INT PRIMARY KEY, v VARCHAR(20), n INT",
        [
            "ALTER TABLE {t} ADD COLUMN x INT DEFAULT 1",
            "ALTER TABLE {t} CHANGE x y BIGINT DEFAULT 2",
            "ALTER TABLE {t} MODIFY y DECIMAL(30, 2) DEFAULT 3 FIRST",
        ],
    ),
}
STOPPED = {
    "other_type": ("id INT PRIMARY KEY, v VARCHAR(20), n VARCHAR(20)", "ALTER TABLE {t} MODIFY n INT", "the type of a column changed"),
    "fewer_digits": ("id INT PRIMARY KEY, v VARCHAR(20), n DECIMAL(10, 3)", "ALTER TABLE {t} MODIFY n DECIMAL(10, 1)", "the type of a column changed"),
    "other_key": ("id INT PRIMARY KEY, v VARCHAR(20) NOT NULL", "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "its primary key changed"),
    "told_to_stop": ("id INT PRIMARY KEY, v VARCHAR(20)", "ALTER TABLE {t} ADD COLUMN n INT", "its settings say to stop"),
    "expression": (
        "id INT PRIMARY KEY, v VARCHAR(20)",
        "ALTER TABLE {t} ADD COLUMN at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP",
        "default that is not known",
    ),
}


OPTIONS = {"told_to_stop": {"on_schema_change": "stop"}}


@pytest.fixture(scope="module", params=["cow", "mor"])
def altered(request: pytest.FixtureRequest, make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    """All tables loaded, then altered while they are streamed; the rows before, between and after the statements written at once, so that one batch
    holds changes of several schemas."""
    tables = {name: columns for name, (columns, _) in FOLLOWED.items()} | {name: columns for name, (columns, _, _) in STOPPED.items()}
    statements = {name: of for name, (_, of) in FOLLOWED.items()} | {name: [of] for name, (_, of, _) in STOPPED.items()}
    pipeline = Pipeline(make_settings, spark, f"altered_{request.param}", {name: {"type": request.param} | OPTIONS.get(name, {}) for name in tables})
    for name, columns in tables.items():
        pipeline.run(f"CREATE TABLE {name} ({columns})", *_rows(name, columns, 1))
    pipeline.full_load()
    with pipeline.streaming():
        for name in tables:
            pipeline.run(f"UPDATE {name} SET v = 'before' WHERE id = 2")
            for statement in statements[name]:
                pipeline.run(*statement.format(t=name).split("; "))
                if not statement.startswith("DROP TABLE"):
                    fresh = time.time_ns() % 10**9 + 100
                    insert = f"INSERT INTO {name} (id, v) VALUES ({fresh}, 'new {fresh}')"
                    pipeline.run("SET sql_mode = ''", insert, f"UPDATE {name} SET v = 'after' WHERE id = 3")
        _settle(pipeline)
        yield pipeline


def _rows(name: str, columns: str, first: int) -> list[str]:
    filled = [column.split()[0] for column in columns.split(", ") if column.split()[0] in ("n", "d", "e")]
    values = {"n": "7", "d": "1.25", "e": "'b'"}
    names, literals = ", ".join(["id", "v", *filled]), ", ".join(values[column] for column in filled)
    return [f"INSERT INTO {name} ({names}) VALUES ({number}, 'row {number}'{', ' * bool(filled)}{literals})" for number in range(first, first + 4)]


def _settle(pipeline: Pipeline) -> None:
    """Until all changes are applied, of the tables that go on."""
    deadline = time.monotonic() + 150
    while {table for table, record in pipeline.state().tables.items() if record.state == "stopped"} != {f"{pipeline.name}.{name}" for name in STOPPED}:
        assert time.monotonic() < deadline, {table: record.error for table, record in pipeline.state().tables.items() if record.state == "stopped"}
        time.sleep(0.5)
    pipeline.wait(stopped=STOPPED)


@pytest.mark.fault("F-29a", "streaming", "ALTER, TRUNCATE, DROP, CREATE, swap renames, rows changed before and after", "equal")
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_lake_follows(altered: Pipeline, name: str) -> None:
    described = altered.run(
        f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{altered.name}' AND table_name = '{name}' ORDER BY ordinal_position"
    )
    columns = [column for (column,) in described]
    source: dict[Any, Any] = {row[columns.index("id")]: row for row in altered.run(f"SELECT * FROM {name}")}
    lake = {row["id"]: tuple(row) for row in altered.lake(name).select(*columns).collect()}
    assert lake == source


@pytest.mark.fault("F-29b", "streaming", "an ALTER that cannot be followed", "that table stops and says why; the others go on")
@pytest.mark.parametrize("name", STOPPED)
def test_what_cannot_be_followed_stops_its_table_alone(altered: Pipeline, name: str) -> None:
    """The lake's table stays as it was before the statement."""
    error = altered.state().tables[f"{altered.name}.{name}"].error
    assert STOPPED[name][2] in error
    assert "Run full_load for it with replace set." in error
    assert {row["id"]: row["v"] for row in altered.lake(name).collect() if row["id"] < 100} in (
        {1: "row 1", 2: "row 2", 3: "row 3", 4: "row 4"},
        {1: "row 1", 2: "before", 3: "row 3", 4: "row 4"},
    )


@pytest.mark.fault("F-29c", "streaming", "a table that an ALTER stopped is loaded again", "equal")
def test_a_stopped_table_goes_on_when_it_is_loaded_again(altered: Pipeline) -> None:
    altered.full_load("other_type", "booleans", replace=True)
    altered.run("UPDATE other_type SET v = 'again' WHERE id = 1", "UPDATE booleans SET c = TRUE WHERE id = 2")
    altered.wait(stopped=set(STOPPED) - {"other_type"})
    # Hudi keeps a column that once was text as text.
    assert {row["id"]: (row["v"], row["n"]) for row in altered.lake("other_type").collect()} == {
        number: (v, n and str(n)) for number, v, n in altered.run("SELECT id, v, n FROM other_type")
    }
    assert {tuple(row) for row in altered.lake("booleans").select("id", "v", "n", "b", "c").collect()} == set(
        altered.run("SELECT id, v, n, b, c FROM booleans")
    )


def test_a_table_is_altered_between_the_scans_of_its_ranges(make_settings: Callable[..., Settings], spark: SparkSession) -> None:
    found = Pipeline(make_settings, spark, "altered_between", {"t": {}}, relay={"rows": 500})
    name = f"{found.name}.t"
    rows = ", ".join(f"({number}, 'row {number}')" for number in range(2000))
    found.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO t VALUES {rows}", "ANALYZE TABLE t")
    fix_position(found.settings)
    first, *others = plan_relays(found.settings, [name], run="one", replace=False)
    scan_relay(found.settings, first)
    found.run("ALTER TABLE t ADD COLUMN n INT DEFAULT 5", "UPDATE t SET n = id WHERE id % 3 = 0", "DELETE FROM t WHERE id % 100 = 0")
    for relay in others:
        scan_relay(found.settings, relay)
    assert others
    load.load_tables(spark, found.settings, [name])
    with found.streaming():
        found.run("ALTER TABLE t DROP COLUMN v", "UPDATE t SET n = -1 WHERE id = 1")
        found.wait()
    assert {(row["id"], row["n"]) for row in found.lake("t").collect()} == set(found.run("SELECT id, n FROM t"))


def test_a_table_that_is_renamed_away_stays_as_it_was(make_settings: Callable[..., Settings], spark: SparkSession) -> None:
    found = Pipeline(make_settings, spark, "renamed_away", {"t": {}, "other": {}})
    for table in ("t", "other"):
        found.run(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    found.full_load()
    with found.streaming():
        found.run("INSERT INTO t VALUES (2)", "RENAME TABLE t TO gone", "INSERT INTO gone VALUES (3)", "INSERT INTO other VALUES (2)")
        found.wait()
    assert {row["id"] for row in found.lake("t").collect()} == {1, 2}
    assert {row["id"] for row in found.lake("other").collect()} == {1, 2}
