"""Another server takes the source's place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

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
        made = Replicated(stack, primary, replica, make_settings, spark)
        with made.streaming():
            yield made


@pytest.mark.fault("F-24b", "streaming", "the address leads to a replica that lacks transactions", "refused, with the reason; the old server is captured on")
@pytest.mark.long
def test_a_replica_that_lags_is_refused(replicated: Replicated) -> None:
    replicated.on(replicated.replica, "STOP SLAVE")
    replicated.change("primary")
    replicated.require_equal()
    replicated.go_to(replicated.replica)
    with pytest.raises(SourceError, match="does not have all transactions that were captured"):
        fix_position(replicated.settings)
    replicated.go_to(replicated.primary)
    replicated.on(replicated.replica, "START SLAVE")
    replicated.change("primary again")
    replicated.require_equal()


@pytest.mark.fault(
    "F-24", "streaming", "a replica takes the place of its primary (GTIDs), whose binlog was files ahead", "capture goes on there, in order; one trigger"
)
@pytest.mark.long
def test_a_replica_takes_the_place_of_its_primary(replicated: Replicated) -> None:
    replicated.run("ALTER TABLE mor ADD COLUMN n INT DEFAULT 5")
    replicated.change("before")
    replicated.require_equal()
    Connector(replicated.settings, capture_name(replicated.settings)).stop()
    replicated.change("captured from the replica")
    ((executed,),) = replicated.on(replicated.primary, "SELECT @@gtid_executed")
    assert replicated.on(replicated.replica, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 60)") == ((0,),)
    process = Process("mysql", replicated.primary.folder).find()
    assert process
    process.kill()
    replicated.on(replicated.replica, "STOP SLAVE")
    replicated.go_to(replicated.replica)
    replicated.change("after")
    replicated.run("ALTER TABLE mor ADD COLUMN m INT DEFAULT 7 FIRST", "ALTER TABLE cow ADD COLUMN m INT DEFAULT 9")

    fix_position(replicated.settings)
    replicated.require_equal()
    replicated.run("UPDATE mor SET v = 'of the replica', m = 1 WHERE id < 10", "UPDATE cow SET m = 1 WHERE id < 10", "DELETE FROM mor WHERE id = 10")
    replicated.require_equal()

    replicated.full_load("mor", replace=True)
    replicated.run("UPDATE mor SET v = 'loaded again' WHERE id < 3", "DELETE FROM mor WHERE id = 3")
    replicated.require_equal()
