"""The DAGs as they are, run by dag.test() on the real servers: MySQL, Kafka, Kafka Connect, Spark and Hudi."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pymysql.connections import Connection

from lakerelay import config
from lakerelay.capture.progress import Progress, State
from lakerelay.config import Settings
from lakerelay.local import airflow, mysql, spark
from tests.conftest import MakeSettings, Stack

PROJECT = Path(__file__).resolve().parents[2]
ROWS = 300


@dataclass(frozen=True)
class Result:
    state: str
    tasks: dict[str, str]
    printed: str


@dataclass(frozen=True)
class Runner:
    """Runs a DAG in an AIRFLOW_HOME of its own, so that the stack's scheduler does not run it too."""

    settings: Settings
    environment: dict[str, str]

    def __call__(self, dag: str, *, done: Sequence[str] = (), **conf: object) -> Result:
        """`done`: tasks that are marked as done without being run. dag.test() runs tasks one by one, so a load beside its scans is two runs."""
        command = [sys.executable, str(PROJECT / "tests" / "dags" / "run_dag.py"), dag, json.dumps(conf), *(["|".join(done)] if done else [])]
        answer = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400, check=False)
        assert answer.returncode == 0, answer.stdout[-5000:]
        # What Python says at its very end may follow the answer.
        told = json.loads(next(line for line in reversed(answer.stdout.splitlines()) if line.startswith('{"state"')))
        return Result(told["state"], told["tasks"], answer.stdout)

    def progress(self) -> State:
        with Progress(self.settings) as progress:
            return progress.read()


@pytest.fixture(scope="module")
def source(stack: Stack) -> Iterator[Connection]:
    """`dags.one`: a key of one column; `dags.two`: a key of two, a partition."""
    with mysql.connect(stack.local) as connection, connection.cursor() as cursor:
        for statement in (
            "DROP DATABASE IF EXISTS dags",
            "CREATE DATABASE dags",
            "CREATE TABLE dags.one (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(15, 2), day DATE)",
            "CREATE TABLE dags.two (id BIGINT, line INT, name VARCHAR(20), day DATE NOT NULL, PRIMARY KEY (id, line))",
        ):
            cursor.execute(statement)
        numbers = range(ROWS)
        cursor.executemany("INSERT INTO dags.one VALUES (%s, %s, %s, '2026-01-01' + INTERVAL %s DAY)", [(n, f"näme {n}", n / 4, n) for n in numbers])
        cursor.executemany("INSERT INTO dags.two VALUES (%s, %s, %s, '2026-01-01' + INTERVAL %s DAY)", [(n // 3, n % 3, f"it's {n}", n) for n in numbers])
        yield connection


@pytest.fixture(scope="module")
def run(stack: Stack, make_settings: MakeSettings, source: Connection, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    tables = [{"name": "dags.one", "type": "cow"}, {"name": "dags.two", "partition": "date_format(day, 'yyyy-MM')"}]
    settings = make_settings("dags", tables)
    home = tmp_path_factory.mktemp("airflow")
    spark.write(stack.local)  # what spark-submit finds its jars by; `up` writes it with Airflow
    environment = airflow.environment(settings) | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONWARNINGS": "default",
        config.SETTINGS_VARIABLE: str(stack.local.folder / "settings" / "dags.toml"),
    }
    subprocess.run([str(Path(sys.executable).with_name("airflow")), "db", "migrate"], env=environment, stdout=subprocess.DEVNULL, check=True)
    return Runner(settings, environment)


@pytest.fixture(scope="module")
def loaded(run: Runner) -> State:
    """After a full load in two runs: the scans, then what comes after them."""
    scanned = run("full_load", done=["load_tables", "hand_over"])
    assert scanned.state == "success", scanned.printed[-5000:]
    assert [relay.state for relay in run.progress().relays.values()] == ["scanned"] * len(run.progress().relays)
    rest = run("full_load")
    assert rest.state == "success", rest.printed[-5000:]
    assert rest.tasks == dict.fromkeys(["preflight", "fix_position", "plan_relays", "load_tables", "hand_over"], "success") | {"scan_relay": "skipped"}
    return run.progress()


def test_a_full_load_that_ended_after_its_scans_goes_on_with_the_load(loaded: State) -> None:
    """The second run scans nothing: each relay was scanned once, and all rows stand in the lake."""
    assert {relay.attempt for relay in loaded.relays.values()} == {1}
    assert {name: (table.state, table.rows) for name, table in loaded.tables.items()} == {"dags.one": ("loaded", ROWS), "dags.two": ("loaded", ROWS)}


def test_a_second_full_load_reads_nothing_again(run: Runner, loaded: State) -> None:
    again = run("full_load")
    assert again.state == "success"
    assert again.tasks["scan_relay"] == "skipped"
    assert again.tasks["hand_over"] == "success"
    assert (run.progress().relays, run.progress().tables) == (loaded.relays, loaded.tables)


def test_the_password_is_in_no_log(run: Runner, loaded: State, stack: Stack) -> None:
    password = json.loads(run.environment["AIRFLOW_CONN_LAKERELAY_SOURCE"])["password"]
    logs = [file for folder in (run.environment["AIRFLOW_HOME"], stack.local.folder / "logs") for file in Path(folder).rglob("*.log")]
    assert logs
    assert [file for file in logs if password in file.read_text(errors="replace")] == []


def test_verify_tells_equal_from_different(run: Runner, loaded: State, source: Connection) -> None:
    """One value changed in the source behind its binlog: each table has a verdict of its own."""
    equal = run("verify_tables")
    assert equal.state == "success", equal.printed[-5000:]
    assert {name: record.verdict for name, record in run.progress().verified.items()} == {"dags.one": "equal", "dags.two": "equal"}
    with source.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("UPDATE dags.one SET price = price + 0.01 WHERE id = 17")
        cursor.execute("SET sql_log_bin = 1")
    different = run("verify_tables")
    assert different.state == "failed"
    assert {task: state for task, state in different.tasks.items() if task.startswith("verdict")} == {"verdict[0]": "failed", "verdict[1]": "success"}
    assert run.progress().verified["dags.one"].keys == ((("17",), "price"),)


def test_a_table_that_cannot_be_chosen_fails_at_once(run: Runner, loaded: State) -> None:
    """No retry: the same name is as wrong the second time."""
    refused = run("full_load", tables=["dags.three"])
    assert refused.state == "failed"
    assert refused.tasks["plan_relays"] == "failed"
    assert refused.printed.count("There are no such tables to choose.") >= 1
