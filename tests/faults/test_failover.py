"""Another server takes the source's place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.capture import topics
from lakerelay.capture.bodies import capture_name
from lakerelay.capture.connector import Connector
from lakerelay.capture.position import fix_position
from lakerelay.config import Local, source_password
from lakerelay.errors import SourceError
from lakerelay.local import mysql
from lakerelay.local.process import Process
from tests.conftest import MakeSettings, Stack, another_mysql
from tests.integration.pipeline import Pipeline

Seen = Callable[[str, object], None]
TABLES = {"cow": {"type": "cow"}, "mor": {"partition": "id % 3"}}


class Replicated(Pipeline):
    """Loaded from a primary, which has a replica whose binlog is many files behind its own."""

    def __init__(self, stack: Stack, primary: Local, replica: Local, make_settings: MakeSettings, spark: SparkSession) -> None:
        self.primary, self.replica = primary, replica
        self._connect = {"source_password": stack.settings.connect.source_password}
        super().__init__(make_settings, spark, "failover", TABLES, **self._sections(primary))
        user, password = self.settings.source.user, source_password()
        self.on(
            replica,
            "SET GLOBAL server_id = 2",
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.mysql_port}, MASTER_USER = '{user}', MASTER_PASSWORD = '{password}', "
            "MASTER_AUTO_POSITION = 1",
            "START SLAVE",
        )
        self.run(*["FLUSH BINARY LOGS"] * 20)
        for name in TABLES:
            self.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(40))", f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
        self.full_load()

    def on(self, server: Local, *statements: str) -> tuple[tuple[Any, ...], ...]:
        with mysql.connect(server) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def change(self, word: str) -> None:
        """A few rows of each table, over and over the same."""
        for name in TABLES:
            self.run(
                f"REPLACE INTO {name} (id, v) VALUES (1, '{word}'), (10, '{word}')",
                f"DELETE FROM {name} WHERE id IN (4, 20)",
                f"INSERT INTO {name} (id, v) VALUES (20, '{word} again')",
                f"UPDATE {name} SET v = CONCAT(v, '+') WHERE id = 2",
            )

    def go_to(self, server: Local) -> None:
        self.configure(**self._sections(server))

    def require_equal(self) -> None:
        self.wait()
        for name in TABLES:
            query = f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{self.name}' AND table_name = '{name}'"
            columns = [column for (column,) in self.run(query)]
            lake = self.lake(name).select(*columns).collect()
            assert sorted(map(tuple, lake)) == sorted(self.run(f"SELECT {', '.join(columns)} FROM {name}")), name

    def _sections(self, server: Local) -> dict[str, Any]:
        return {"local": server.model_dump(mode="json", exclude_none=True), "connect": self._connect}


@pytest.fixture(scope="module")
def replicated(stack: Stack, make_settings: MakeSettings, spark: SparkSession) -> Iterator[Replicated]:
    with another_mysql(stack, "primary") as primary, another_mysql(stack, "replica") as replica:
        yield Replicated(stack, primary, replica, make_settings, spark)


@pytest.fixture
def streamed(replicated: Replicated) -> Iterator[Replicated]:
    with replicated.streaming():
        yield replicated


@pytest.mark.fault("F-24b", "streaming", "the address leads to a replica that lacks transactions", "refused, with the reason; the old server is captured on")
@pytest.mark.long
def test_a_replica_that_lags_is_refused(streamed: Replicated) -> None:
    streamed.on(streamed.replica, "STOP SLAVE")
    streamed.change("primary")
    streamed.require_equal()
    streamed.go_to(streamed.replica)
    with pytest.raises(SourceError, match="does not have all transactions that were captured"):
        fix_position(streamed.settings)
    streamed.go_to(streamed.primary)
    streamed.on(streamed.replica, "START SLAVE")
    streamed.change("primary again")
    streamed.require_equal()


@pytest.mark.fault(
    "F-24", "streaming", "a replica takes the place of its primary (GTIDs), whose binlog was files ahead", "capture goes on there, in order; one trigger"
)
@pytest.mark.long
def test_a_replica_takes_the_place_of_its_primary(streamed: Replicated) -> None:
    streamed.run("ALTER TABLE mor ADD COLUMN n INT DEFAULT 5")
    streamed.change("before")
    streamed.require_equal()
    Connector(streamed.settings, capture_name(streamed.settings)).stop()
    streamed.change("captured from the replica")
    ((executed,),) = streamed.on(streamed.primary, "SELECT @@gtid_executed")
    assert streamed.on(streamed.replica, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 60)") == ((0,),)
    process = Process("mysql", streamed.primary.folder).find()
    assert process
    process.kill()
    streamed.on(streamed.replica, "STOP SLAVE")
    streamed.go_to(streamed.replica)
    streamed.change("after")
    streamed.run("ALTER TABLE mor ADD COLUMN m INT DEFAULT 7 FIRST", "ALTER TABLE cow ADD COLUMN m INT DEFAULT 9")

    fix_position(streamed.settings)
    streamed.require_equal()
    streamed.run("UPDATE mor SET v = 'of the replica', m = 1 WHERE id < 10", "UPDATE cow SET m = 1 WHERE id < 10", "DELETE FROM mor WHERE id = 10")
    streamed.require_equal()

    streamed.full_load("mor", replace=True)
    streamed.run("UPDATE mor SET v = 'loaded again' WHERE id < 3", "DELETE FROM mor WHERE id = 3")
    streamed.require_equal()


@pytest.mark.fault(
    "F-24c", "streaming", "after that a capture topic is deleted, and the binlog purged", "tables are stopped; loaded again they go on, in order"
)
@pytest.mark.long
def test_what_is_lost_after_a_failover_is_loaded_again(replicated: Replicated) -> None:
    """The epoch outlives both; in a topic that is made anew it begins with the first record."""
    capture = Connector(replicated.settings, capture_name(replicated.settings))
    capture.stop()
    topics.delete(replicated.settings, [topics.data(topics.capture_prefix(replicated.settings), f"{replicated.name}.cow")])
    replicated.change("lost")
    replicated.run("FLUSH BINARY LOGS")
    ((file, *_),) = replicated.run("SHOW MASTER STATUS")
    replicated.run(f"PURGE BINARY LOGS TO '{file}'")
    with pytest.raises(SourceError, match="changes are lost"):
        fix_position(replicated.settings)
    replicated.full_load(replace=True)
    with replicated.streaming():
        replicated.change("loaded for the third time")
        replicated.require_equal()
