"""Values of 16 MB, rows that are too large, a transaction of a million rows."""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakerelay.config import Settings
from lakerelay.errors import ConnectError
from tests.integration.pipeline import Pipeline

MB = 1 << 20
ROWS = 1_000_000


@pytest.fixture(scope="module")
def pipeline(make_settings: Callable[..., Settings], spark: SparkSession) -> Iterator[Pipeline]:
    found = Pipeline(make_settings, spark, "large", {"wide": {}, "many": {}})
    found.run("CREATE TABLE wide (id INT PRIMARY KEY, b LONGBLOB, t LONGTEXT)", "CREATE TABLE many (id INT PRIMARY KEY, v INT)")
    found.run(f"INSERT INTO wide VALUES (1, REPEAT(x'00FF', {8 * MB}), 'x'), (2, NULL, REPEAT('ä', {8 * MB}))")
    found.full_load()
    with found.streaming():
        yield found


@pytest.mark.fault("F-27a", "streaming", "values of 16 MB", "equal")
def test_values_of_16_mb_arrive_by_relay_and_stream(pipeline: Pipeline) -> None:
    """An update carries such a value twice."""
    pipeline.run(f"INSERT INTO wide VALUES (3, REPEAT(x'FF00', {8 * MB}), 'y')", "UPDATE wide SET t = 'changed' WHERE id IN (1, 3)")
    pipeline.wait()
    lake = {row["id"]: tuple(row) for row in pipeline.lake("wide").select("id", F.md5("b"), F.md5(F.col("t").cast("binary")), F.length("b")).collect()}
    assert lake == {row[0]: row for row in pipeline.run("SELECT id, MD5(b), MD5(t), LENGTH(b) FROM wide")}
    assert {row[3] for row in lake.values()} == {16 * MB, None}


@pytest.mark.fault("F-27b", "streaming", "a transaction of a million rows", "equal")
def test_a_transaction_of_a_million_rows_arrives(pipeline: Pipeline) -> None:
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    tables = ", ".join(f"({digits}) AS t{number}" for number in range(6))
    number = " + ".join(f"t{power}.d * {10**power}" for power in range(6))
    pipeline.run(f"INSERT INTO many SELECT {number}, 0 FROM {tables}")
    pipeline.run("UPDATE many SET v = 1 WHERE id % 100 = 0")
    pipeline.wait(patience=600)
    rows, distinct, ones = pipeline.lake("many").agg(F.count("*"), F.count_distinct("id"), F.sum("v")).collect()[0]
    assert (rows, distinct, ones) == (ROWS, ROWS, ROWS // 100)


@pytest.mark.fault("F-27c", "streaming", "a row of 57 MB", "refused, naming table, key and size")
def test_a_row_that_is_too_large_is_named(make_settings: Callable[..., Settings], spark: SparkSession) -> None:
    found = Pipeline(make_settings, spark, "too_large", {"wide": {}})
    found.run("CREATE TABLE wide (id INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO wide VALUES (1, 'small')")
    found.run(f"INSERT INTO wide VALUES (77, REPEAT('x', {30 * MB}))", f"UPDATE wide SET b = CONCAT(b, REPEAT('x', {25 * MB})) WHERE id = 77")
    with pytest.raises(ConnectError, match=r"wide key=77 bytes=57,671,680"):
        found.full_load()
