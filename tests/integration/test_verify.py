"""verify_tables on real servers: tables that are written to while they are compared are equal, and what really differs is found, and nothing else."""

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.capture.progress import VerifyRecord
from lakerelay.config import SETTINGS_VARIABLE, Settings
from lakerelay.errors import VerifyError
from lakerelay.lake import verify
from lakerelay.local import mysql
from tests.integration.pipeline import Pipeline

ROWS = 4_000
TYPES = {  # column → type, and its value in each row
    "id": ("BIGINT UNSIGNED PRIMARY KEY", "1", "18446744073709551615", "3"),
    "i": ("INT", "-5", "NULL", "0"),
    "d": ("DECIMAL(20, 5)", "1.5", "-0.00001", "0"),
    "dd": ("DECIMAL(65, 30)", "1.5", "-0.1", "0"),
    "f": ("FLOAT", "0.1", "-1e30", "1e-20"),
    "g": ("DOUBLE", "0.1", "1e300", "-1e-9"),
    "b1": ("BIT(1)", "1", "0", "NULL"),
    "b9": ("BIT(9)", "b'101'", "0", "NULL"),
    "b64": ("BIT(64)", "18446744073709551615", "0", "NULL"),
    "day": ("DATE", "'2024-02-29'", "'0000-00-00'", "'0099-12-31'"),
    "dt": ("DATETIME(6)", "'2024-02-29 23:59:59.123456'", "'2024-00-00'", "'0001-01-01'"),
    "ts": ("TIMESTAMP(3) NULL", "'2024-02-29 23:59:59.123'", "'1970-01-01 00:00:01'", "NULL"),
    "t": ("TIME(6)", "'-800:00:00.5'", "'838:59:59'", "0"),
    "y": ("YEAR", "2024", "0", "1901"),
    "c": ("CHAR(5)", "'x '", "''", "'😀'"),
    "v": ("VARCHAR(20) CHARACTER SET gbk", "'中文'", "'\\\\N'", "NULL"),
    "e": ("ENUM('a', 'b,c')", "'b,c'", "''", "NULL"),
    "s": ("SET('x', 'y')", "'x,y'", "''", "NULL"),
    "bi": ("BINARY(3)", "'ab'", "''", "NULL"),
    "bl": ("BLOB", "x'00ff'", "''", "NULL"),
    "p": ("POINT SRID 4326", "ST_GeomFromText('POINT(1 2)', 4326)", "NULL", "NULL"),
    "j": ("JSON", "'[]'", "NULL", "NULL"),
    "z": ("DATE NOT NULL", "'0000-00-00'", "'0001-01-01'", "'9999-12-31'"),
}
KEYS = {"texts": "k VARCHAR(30), n INT, v INT, PRIMARY KEY (k, n)", "bytes": "k VARBINARY(9) PRIMARY KEY, v INT", "days": "k DATE PRIMARY KEY, v INT"}


@pytest.fixture(scope="module")
def pipeline(make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    tables: dict[str, dict[str, Any]] = {name: {} for name in ("hot", "other", "xa", *KEYS)}
    tables |= {"types": {"type": "cow"}, "stops": {"on_schema_change": "stop"}}
    found = Pipeline(make_settings, spark, "verify", tables, verify={"rows_per_range": 900, "pause_seconds": 0.0})
    found.run(
        "CREATE TABLE hot (id INT PRIMARY KEY, n BIGINT NOT NULL, v VARCHAR(40))",
        "CREATE TABLE stops (id INT PRIMARY KEY)",
        "CREATE TABLE xa (id INT PRIMARY KEY)",
    )
    found.run("CREATE TABLE other (id INT PRIMARY KEY, v INT)", f"INSERT INTO other SELECT * FROM ({_numbers(ROWS)}) AS numbers")
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in TYPES.items())
    rows = ", ".join(f"({', '.join(values)})" for values in zip(*(values for _, *values in TYPES.values()), strict=True))
    found.run("SET sql_mode = ''", f"CREATE TABLE types ({columns})", f"INSERT INTO types VALUES {rows}")
    found.run(f"INSERT INTO hot SELECT a, b, 'first' FROM ({_numbers(ROWS)}) AS numbers")
    for name, columns in KEYS.items():
        found.run(f"CREATE TABLE {name} ({columns})")
    found.run("INSERT INTO texts VALUES ('a', 1, 1), ('B', 1, 1), ('it''s', 1, 1), ('ü\\\\N', 2, 1)", "INSERT INTO bytes VALUES (x'00', 1), (x'FF2C', 1)")
    found.run("INSERT INTO days VALUES ('2024-02-29', 1), ('0099-01-01', 1)", "ANALYZE TABLE hot, other")
    found.full_load()
    with found.streaming():
        yield found


def _numbers(rows: int) -> str:
    more = f"SELECT 1 AS a UNION ALL SELECT a + 1 FROM n WHERE a < {rows}"
    return f"WITH RECURSIVE n AS ({more}) SELECT /*+ SET_VAR(cte_max_recursion_depth = 100000) */ a, a AS b FROM n"


class Writer(threading.Thread):
    """Changes rows of `hot` without a pause, the few first ones most."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._end, self._random = pipeline, threading.Event(), random.Random(3)
        self.changes = 0

    def run(self) -> None:
        with mysql.connect(self._pipeline.settings.local, database=self._pipeline.name, autocommit=True) as connection, connection.cursor() as cursor:
            while not self._end.is_set():
                id_ = self._random.choice([self._random.randint(1, 3), self._random.randint(100, ROWS + 200)])
                if self._random.random() < 0.2:
                    cursor.execute("DELETE FROM hot WHERE id = %s", (id_,))
                else:
                    cursor.execute("REPLACE INTO hot VALUES (%s, %s, 'changed')", (id_, self.changes))
                self.changes += 1
                time.sleep(0.005)

    def __enter__(self) -> "Writer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


def compare(pipeline: Pipeline, *tables: str) -> dict[str, VerifyRecord]:
    names = [f"{pipeline.name}.{table}" for table in tables]
    try:
        verify.verify_tables(pipeline.spark, pipeline.settings, names)
    finally:
        verified = pipeline.state().verified
    return {name.partition(".")[2]: verified[name] for name in names}


def unlogged(pipeline: Pipeline, *statements: str) -> None:
    """Changes that no binlog has, and so no lake will."""
    pipeline.run("SET sql_log_bin = 0", *statements)


def test_values_of_every_type_are_equal(pipeline: Pipeline) -> None:
    found = compare(pipeline, "types", *KEYS)
    assert {name: record.verdict for name, record in found.items()} == dict.fromkeys(["types", *KEYS], "equal")
    assert found["types"].left_out == ("j",)
    assert (found["types"].source_rows, found["types"].lake_rows) == (3, 3)


def test_a_table_that_is_written_to_is_equal(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    with Writer(pipeline) as writer, caplog.at_level(logging.INFO):
        time.sleep(2)
        record = compare(pipeline, "hot")["hot"]
    assert record.verdict == "equal", record
    assert writer.changes > 200
    assert "looked closer" in caplog.text  # else nothing was written at the right time


def test_what_really_differs_is_found_while_the_table_is_written_to(pipeline: Pipeline) -> None:
    unlogged(pipeline, "UPDATE hot SET v = 'unlogged' WHERE id = 50", "DELETE FROM hot WHERE id = 60", f"INSERT INTO hot VALUES ({ROWS + 999}, 1, 'unlogged')")
    with Writer(pipeline), pytest.raises(VerifyError, match="3 keys"):
        compare(pipeline, "hot", "other")
    verified = pipeline.state().verified
    assert dict(verified[f"{pipeline.name}.hot"].keys) == {("50",): "v", ("60",): "not in MySQL", (f"{ROWS + 999}",): "not in the lake"}
    assert (verified[f"{pipeline.name}.hot"].verdict, verified[f"{pipeline.name}.other"].verdict) == ("different", "equal")


@pytest.mark.parametrize(("table", "key"), [("texts", ("it's", "1")), ("bytes", ("FF2C",)), ("days", ("2024-02-29",))])
def test_a_key_of_any_type_is_looked_up(pipeline: Pipeline, table: str, key: tuple[str, ...]) -> None:
    where = {"texts": "k = 'it''s'", "bytes": "k = x'FF2C'", "days": "k = '2024-02-29'"}[table]
    unlogged(pipeline, f"UPDATE {table} SET v = 2 WHERE {where}")
    with pytest.raises(VerifyError):
        compare(pipeline, table)
    assert pipeline.state().verified[f"{pipeline.name}.{table}"].keys == ((key, "v"),)


def test_the_command_names_what_differs_and_fails(pipeline: Pipeline) -> None:
    assert pipeline.settings.local
    environment = os.environ | {SETTINGS_VARIABLE: str(pipeline.settings.local.folder / "settings" / f"{pipeline.name}.toml")}
    command = [str(Path(sys.executable).with_name("lakerelay")), "verify", f"{pipeline.name}.bytes", f"{pipeline.name}.other"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert told.returncode == 1
    assert f"differs table={pipeline.name}.bytes key=FF2C in=v" in told.stdout
    assert f"{pipeline.name}.other" in told.stdout.partition("verdict")[2]


def test_a_table_that_differs_everywhere_is_not_looked_at_whole(pipeline: Pipeline) -> None:
    unlogged(pipeline, "UPDATE other SET v = v + 1")
    with pytest.raises(VerifyError):
        compare(pipeline, "other")
    record = pipeline.state().verified[f"{pipeline.name}.other"]
    assert (record.verdict, len(record.keys)) == ("different", 100)
    assert record.differing >= 1000


@pytest.mark.fault("F-28", "streaming", "XA transactions: committed, rolled back after PREPARE", "the first arrives; verify_tables finds the other")
def test_a_prepared_transaction_that_is_rolled_back_is_found(pipeline: Pipeline) -> None:
    """It is in the binlog from its PREPARE on, and Debezium does not wait for its end."""
    for id_, end in ((1, "COMMIT"), (2, "ROLLBACK")):
        pipeline.run(f"XA START '{end}'", f"INSERT INTO xa VALUES ({id_})", f"XA END '{end}'", f"XA PREPARE '{end}'", f"XA {end} '{end}'")
    pipeline.wait()
    assert {row["id"] for row in pipeline.lake("xa").collect()} == {1, 2}
    with pytest.raises(VerifyError):
        compare(pipeline, "xa")
    assert pipeline.state().verified[f"{pipeline.name}.xa"].keys == ((("2",), "not in MySQL"),)


def test_a_stopped_table_is_undecided_and_says_why(pipeline: Pipeline) -> None:
    pipeline.run("ALTER TABLE stops ADD COLUMN n INT")
    pipeline.wait(stopped=["stops"])
    with pytest.raises(VerifyError, match="settings say to stop"):
        compare(pipeline, "stops")
    assert pipeline.state().verified[f"{pipeline.name}.stops"].verdict == "undecided"


def test_without_a_stream_a_table_that_is_behind_is_undecided(make_settings: Callable[..., Settings], spark: SparkSession) -> None:
    quiet = Pipeline(make_settings, spark, "verify_quiet", {"t": {}}, verify={"minutes": 0.5})
    quiet.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    quiet.full_load()
    assert compare(quiet, "t")["t"].verdict == "equal"
    quiet.run("INSERT INTO t VALUES (2)")
    with pytest.raises(VerifyError, match="does stream_changes run"):
        compare(quiet, "t")
