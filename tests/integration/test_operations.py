"""What can be done to rows, and to keys of every kind: streamed, the lake ends equal to MySQL."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakerelay.config import Settings
from lakerelay.local import mysql
from tests.integration.pipeline import Pipeline

# Table → (columns, settings, statements; a list is one transaction)
TABLES: dict[str, tuple[str, dict[str, Any], list[str | list[str]]]] = {
    "replaced": (
        "id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v)",
        {},
        ["REPLACE INTO {t} VALUES (1, 'other')", "REPLACE INTO {t} VALUES (9, 'b')", "REPLACE INTO {t} VALUES (2, 'c')"],
    ),
    "upserted": ("id INT PRIMARY KEY, v VARCHAR(20)", {}, ["INSERT INTO {t} VALUES (1, 'x'), (9, 'y') ON DUPLICATE KEY UPDATE v = CONCAT(v, 'dup')"]),
    "shifted": ("id INT PRIMARY KEY, v VARCHAR(20)", {}, ["UPDATE {t} SET id = id + 1 ORDER BY id DESC", "UPDATE {t} SET id = id - 2 ORDER BY id"]),
    "swapped": (
        "id INT PRIMARY KEY, v VARCHAR(20)",
        {},
        [["UPDATE {t} SET id = -1 WHERE id = 1", "UPDATE {t} SET id = 1 WHERE id = 2", "UPDATE {t} SET id = 2 WHERE id = -1"]],
    ),
    "again": ("id INT PRIMARY KEY, v VARCHAR(20)", {}, ["DELETE FROM {t} WHERE id = 1", "INSERT INTO {t} VALUES (1, 'again')", "DELETE FROM {t} WHERE id = 2"]),
    "savepoint": (
        "id INT PRIMARY KEY, v VARCHAR(20)",
        {},
        [
            [
                "INSERT INTO {t} VALUES (7, 'kept')",
                "SAVEPOINT s",
                "INSERT INTO {t} VALUES (8, 'gone')",
                "UPDATE {t} SET v = 'gone'",
                "ROLLBACK TO s",
                "DELETE FROM {t} WHERE id = 3",
            ]
        ],
    ),
    "keyless": (  # its declared key is changed by an update, not by a delete and an insert
        "id INT NOT NULL, v VARCHAR(20)",
        {"key": ["id"]},
        [
            "UPDATE {t} SET id = 20 WHERE id = 2",
            "INSERT INTO {t} VALUES (2, 'new')",
            "UPDATE {t} SET id = 21, v = 'moved' WHERE id = 2",
            "DELETE FROM {t} WHERE id = 3",
        ],
    ),
    "moved": (
        "id INT PRIMARY KEY, v VARCHAR(20)",
        {"partition": "substring(v, 1, 1)"},
        [
            "UPDATE {t} SET v = 'z' WHERE id = 1",
            "UPDATE {t} SET v = 'y' WHERE id = 1",
            "UPDATE {t} SET v = 'a' WHERE id = 1",
            "UPDATE {t} SET id = 10, v = 'q' WHERE id = 2",
        ],
    ),
    "text_key": (
        "id VARCHAR(20) PRIMARY KEY, v VARCHAR(20)",
        {},
        ["UPDATE {t} SET id = 'Ü/ö ''\"' WHERE id = '1'", "UPDATE {t} SET v = 'u' WHERE id = 'Ü/ö ''\"'"],
    ),
    "empty_key": ("id VARCHAR(20) PRIMARY KEY, v VARCHAR(20)", {}, ["UPDATE {t} SET v = 'u' WHERE id = ''", "DELETE FROM {t} WHERE id = '2'"]),
    "text_keys": (  # Hudi alone would make one key of the first two
        "id VARCHAR(20), k2 VARCHAR(20) DEFAULT '', v VARCHAR(20), PRIMARY KEY (id, k2)",
        {},
        ["INSERT INTO {t} VALUES ('a,k2:b', 'c', 'x')", "INSERT INTO {t} VALUES ('a', 'b,k2:c', 'y')", "UPDATE {t} SET v = 'u' WHERE id = '1'"],
    ),
    "binary_key": (
        "id VARBINARY(20) PRIMARY KEY, v VARCHAR(20)",
        {},
        ["UPDATE {t} SET id = x'00FF' WHERE id = '1'", "UPDATE {t} SET v = 'u' WHERE id = x'00FF'"],
    ),
    "date_key": ("id DATE PRIMARY KEY, v VARCHAR(20)", {}, ["UPDATE {t} SET v = 'u' WHERE id = '2024-01-01'", "DELETE FROM {t} WHERE id = '2024-01-02'"]),
    "zero_date_key": (
        "id DATE NOT NULL, n INT DEFAULT 1, v VARCHAR(20), PRIMARY KEY (id, n)",
        {},
        ["UPDATE {t} SET v = 'u' WHERE id = '0000-00-00'", "INSERT INTO {t} VALUES ('0000-00-00', 2, 'new')", "DELETE FROM {t} WHERE id = '2024-01-02'"],
    ),
    "decimal_key": ("id DECIMAL(20, 5) PRIMARY KEY, v VARCHAR(20)", {}, ["UPDATE {t} SET id = 1.00001 WHERE id = 1", "UPDATE {t} SET v = 'u' WHERE id = 2"]),
    "unsigned_key": (
        "id BIGINT UNSIGNED PRIMARY KEY, v VARCHAR(20)",
        {},
        ["UPDATE {t} SET id = 18446744073709551615 WHERE id = 1", "DELETE FROM {t} WHERE id = 2"],
    ),
}

KEYS = {"empty_key": ["", "2", "3"], "date_key": ["2024-01-01", "2024-01-02", "2024-01-03"], "zero_date_key": ["0000-00-00", "2024-01-02", "2024-01-03"]}


@pytest.fixture(scope="module", params=["cow", "mor"])
def changed(request: pytest.FixtureRequest, make_settings: Callable[..., Settings], spark: SparkSession) -> Pipeline:
    options = {name: {"type": request.param} | of for name, (_, of, _) in TABLES.items()}
    pipeline = Pipeline(make_settings, spark, f"operations_{request.param}", options)
    for name, (columns, _, _) in TABLES.items():
        rows = ", ".join(f"('{key}', '{text}')" for key, text in zip(KEYS.get(name, ["1", "2", "3"]), "abc", strict=True))
        pipeline.run("SET sql_mode = ''", f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} (id, v) VALUES {rows}")
    pipeline.full_load()
    with pipeline.streaming(), mysql.connect(pipeline.settings.local, database=pipeline.name, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for name, (_, _, statements) in TABLES.items():
            for transaction in statements:
                for statement in [transaction] if isinstance(transaction, str) else transaction:
                    cursor.execute(statement.format(t=name))
                connection.commit()
        pipeline.wait()
    return pipeline


@pytest.mark.parametrize("name", TABLES)
def test_the_lake_is_equal(changed: Pipeline, name: str) -> None:
    rows = [tuple(row) for row in changed.lake(name).select("id", "v").collect()]
    key = "IF(id = 0, NULL, CAST(id AS DATE))" if name == "zero_date_key" else "id"
    assert sorted(rows, key=str) == sorted(changed.run("SET sql_mode = ''", f"SELECT {key}, v FROM {name}"), key=str)
