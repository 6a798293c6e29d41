"""Debezium's own SQL files, each run twice: before a full load, and while streaming. Both end equal to MySQL, value by value.

A file runs in databases of its own, `<pipeline>_relay_<file>` and `<pipeline>_stream_<file>`. Half of the tables are copy-on-write and half merge-on-read,
each table one of them by relay and the other by stream. While streaming, tables come by themselves when the file creates them. A table without a primary key
is given a key that its rows have, else kind "append".
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pymysql
import pytest
from pymysql.cursors import Cursor
from pyspark.sql import SparkSession

from lakerelay.config import Settings
from lakerelay.local import mysql
from tests.integration import canonical, corpus
from tests.integration.canonical import Table
from tests.integration.corpus import File
from tests.integration.pipeline import Pipeline

# File → why MySQL refuses a statement of it. Those of Debezium's parser alone were never run on a server.
REFUSED = {
    "geometry_test_5.sql": "MySQL 8 has no spatial reference system 1234",
    "maria_vector_test.sql": "MariaDB's VECTOR and Vec_FromText",
    "mysql-dbz-106.ddl": "keys on columns that the table does not have",
    "mysql-dbz-123.ddl": "a BLOB with a literal as default",
    "mysql-dbz-176.ddl": "a trigger on a table that no statement makes",
    "mysql-dbz-198j.ddl": "two statements without a semicolon between them",
    "mysql-schema-captured.ddl": "keys on columns that the tables do not have",
    "mysql-test-init-5.6.ddl": "statements without a semicolon between them",
    "mysql-test-init-5.7.ddl": "statements without a semicolon between them",
    "mysql-test-statements.ddl": "statements about tables that no statement makes",
    "vector_test.sql": "VECTOR, which MySQL has since 9.0",
}
# Table → why it is not among the pipeline's.
LEFT_OUT = {"DBZ.1834": "the settings refuse a point in its name", "special\"[`]$'": "Hudi takes letters, digits and _ in a column's name"}
# What docs/tables.md calls limits: rows whose JSON holds a date, a time or bytes, not as text; zero dates in NOT NULL columns of a table that came by itself.
LIMITS = {f"_stream_json_test.dbz_126_jsontable id='{number}'" for number in (*range(27, 33), *range(34, 37), 40, 41)} | {
    "_stream_datetime_key_test.dbz_1194_datetime_key_test id='1'",
    "_stream_default_value_all_zero_time.all_zero_date_and_time_table: 1 rows",
    "_stream_default_value_all_zero_time.part_zero_date_and_time_table G=3600000000 column C",
    "_stream_default_value_all_zero_time.part_zero_date_and_time_table G=3600000000 column E",
    *(f"_stream_regression_test.dbz_1318_zerovaluetest c2={time} column {column}" for time in (0, 60000000) for column in ("nnc1", "nnc3")),
    *(
        f"_stream_zero_date_fallback_converter.dt_full id='2' column {column}"
        for column in (
            "d_no_default",
            "d_epoch_default",
            "d_other_default",
            "dt_no_default",
            "dt_epoch_default",
            "dt_other_default",
            "ts_epoch_default",
            "ts_other_default",
        )
    ),
}
_SESSION = "SET SESSION sql_mode = '', foreign_key_checks = 0, time_zone = '+00:00'"
_KEY_TYPES = (*canonical.INTEGERS, "char", "varchar", "date", "datetime", "timestamp", "decimal", "enum", "binary", "varbinary", "time")
_KEY_COLUMNS = 3


class Corpus(Pipeline):
    """All files, both ways."""

    def __init__(self, make_settings: Callable[..., Settings], spark: SparkSession) -> None:
        super().__init__(make_settings, spark, "corpus", {})
        files = corpus.fetch()
        self.refused = {file.name: error for file in files if (error := self._execute(file, "relay"))}
        self.entries = self._entries()
        self.settings = make_settings(self.name, [{"name": f"{self.name}.heartbeat_"}, *self.entries.values()], stream={"seconds_between_batches": 0.5})
        self.failed: dict[str, str] = {}
        self._load()
        with self.streaming():
            for file in files:
                error = "" if file.name in self.refused else self._execute(file, "stream")
                assert not error, error
            names = [name.partition(".")[2] for name in self.entries]
            self.wait(patience=600, stopped=names)  # those that stop are known then
            self.failed |= self._unless_loaded()
            stopped = [name.partition(".")[2] for name in self.failed]
            self.wait(patience=600, stopped=stopped, also=[name for name in self.entries if name not in self.failed])

    def _load(self) -> None:
        try:
            self.full_load()
        except Exception as error:  # of some tables: the others go on
            self.failed = {name: f"{why} {error!r:.1000}" for name, why in self._unless_loaded().items()}

    def _unless_loaded(self) -> dict[str, str]:
        """Table → why it is not loaded, or no longer streamed."""
        return {name: f"{record.state}: {record.error}" for name, record in self.state().tables.items() if record.state != "loaded"}

    @contextmanager
    def _in(self, file: File, way: str) -> Iterator[Cursor]:
        with mysql.connect(self.settings.local, database=self._database(file, way)) as connection, connection.cursor() as cursor:
            cursor.execute(_SESSION)
            yield cursor

    def _database(self, file: File, way: str) -> str:
        return f"{self.name}_{way}_{file.name.rpartition('.')[0]}"

    def _execute(self, file: File, way: str) -> str:
        """Run the file; why MySQL refuses it, else an empty text. Of a refused one nothing stays."""
        database = self._database(file, way)
        taken_for_granted = [called for name, called in file.called(database).items() if not file.databases[name]]
        self.run(*(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4" for name in [database, *taken_for_granted]))
        with self._in(file, way) as cursor:
            try:
                for statement in file.statements_in(database):
                    cursor.execute(statement)
            except pymysql.MySQLError as error:
                self.run(*(f"DROP DATABASE IF EXISTS `{name}`" for name in [database, *file.called(database).values()]))
                return f"{file.name}: {error.args[1]}: {statement}"
        return ""

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Table → its settings, of all tables with rows, by either way. Tables that stay empty would take most of the time, and have no values."""
        entries: dict[str, dict[str, Any]] = {}
        with self._oracle() as cursor:
            like = f"table_schema LIKE '{self.name}\\_relay\\_%' AND table_type = 'BASE TABLE'"
            cursor.execute(f"SELECT table_schema, table_name FROM information_schema.tables WHERE {like}")
            found = [canonical.read_source(cursor, *name) for name in sorted(cursor.fetchall())]
        for number, table in enumerate(table for table in found if table.rows and table.name.partition(".")[2] not in LEFT_OUT):
            for way, kind in zip(("relay", "stream"), ("cow", "mor")[:: 1 - 2 * (number % 2)], strict=True):
                name = table.name.replace("_relay_", f"_{way}_", 1)
                entries[name] = {"name": name, "type": kind} | ({} if table.key else _without_primary_key(table))
        return entries

    @contextmanager
    def _oracle(self) -> Iterator[Cursor]:
        with mysql.connect(self.settings.local, conv={}) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            yield cursor

    def differences(self, way: str) -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            names = [name for name in self.entries if f"_{way}_" in name]
            return [line for lines in pool.map(self._differences, names) for line in lines]

    def _differences(self, name: str) -> list[str]:
        if name in self.failed:
            return [f"{name}: {self.failed[name]}"]
        database, table = name.split(".")
        entry = self.entries[name]
        with self._oracle() as cursor:
            source = canonical.read_source(cursor, database, table, entry.get("key", ()))
        return canonical.compare(self.spark, f"{self.settings.lake.path}/{database}/{table}", source, entry["type"])


def _without_primary_key(table: Table) -> dict[str, Any]:
    """Columns that are a key of the rows that it has; if there are none, every change is kept."""
    names = [column.name for column in table.columns if column.type in _KEY_TYPES and all(row[column.name] is not None for row in table.rows)]
    candidates = (key for count in range(1, _KEY_COLUMNS + 1) for key in combinations(names, count))
    key = next((key for key in candidates if len({tuple(row[name] for name in key) for row in table.rows}) == len(table.rows)), None)
    return {"key": list(key)} if key else {"kind": "append"}


@pytest.fixture(scope="module")
def run(make_settings: Callable[..., Settings], spark: SparkSession) -> Corpus:
    return Corpus(make_settings, spark)


def test_refused_files_are_listed(run: Corpus) -> None:
    assert sorted(run.refused) == sorted(REFUSED), run.refused


def test_every_accepted_file_is_loaded_equal(run: Corpus) -> None:
    different = run.differences("relay")
    assert not different, "\n".join(different)


def test_every_accepted_file_is_streamed_equal(run: Corpus) -> None:
    different = run.differences("stream")
    beyond = [line for line in different if not any(limit in line for limit in LIMITS)]
    assert not beyond, "\n".join(beyond)
    assert [limit for limit in LIMITS if not any(limit in line for line in different)] == []
