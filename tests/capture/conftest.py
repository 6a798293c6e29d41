import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pymysql.connections import Connection

from lakerelay.capture import topics
from lakerelay.capture.connector import Connector
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.local import mysql
from tests.conftest import MakeSettings, Stack


@dataclass(frozen=True)
class Source:
    """A database and a pipeline of the test's own, both of this name."""

    name: str
    root: "Connection[Any]"
    make: MakeSettings

    def settings(self, *tables: dict[str, Any], **sections: dict[str, Any]) -> Settings:
        return self.make(self.name, tables or [{"pattern": rf"{self.name}\..*"}], **sections)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.root.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def count(self, table: str) -> int:
        return int(self.run(f"SELECT COUNT(*) FROM `{self.name}`.`{table}`")[0][0])


def events(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """The committed records of a topic."""
    with Reader(settings, topic) as reader:
        return [json.loads(message.value() or b"null") for message in reader.new()]


def _remove(settings: Settings) -> None:
    for name in httpx.get(f"{settings.connect.url}/connectors").json():
        if name.startswith(f"{settings.name}-"):
            Connector(settings, name).delete()
    topics.delete(settings, topics.present(settings, settings.name))


@pytest.fixture
def source(request: pytest.FixtureRequest, stack: Stack, make_settings: MakeSettings) -> Iterator[Source]:
    name = "c_" + re.sub(r"[^a-z0-9]+", "_", request.node.name.lower().removeprefix("test_"))[:40].strip("_")
    root = mysql.connect(stack.local, local_infile=True)
    made = Source(name, root, make_settings)
    made.run(f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`", f"USE `{name}`")
    _remove(made.settings())
    try:
        yield made
    finally:
        _remove(made.settings())
        made.run(f"DROP DATABASE `{name}`")
        root.close()


Fill = Callable[[str, int], None]


@pytest.fixture
def fill(source: Source) -> Fill:
    """`fill("t", 1000)`: a table t(id, v) with ids 1 to 1000."""

    def make(table: str, rows: int) -> None:
        source.run(f"CREATE TABLE `{table}` (id INT PRIMARY KEY, v VARCHAR(100) NOT NULL)")
        insert(source, table, [(number, f"value {number}") for number in range(1, rows + 1)])

    return make


def insert(source: Source, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    with source.root.cursor() as cursor:
        for start in range(0, len(rows), 20_000):
            part = rows[start : start + 20_000]
            cursor.executemany(f"INSERT INTO `{table}` VALUES ({', '.join(['%s'] * len(part[0]))})", part)
