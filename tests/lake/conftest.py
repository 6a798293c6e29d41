"""One small Spark session for all tests that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakerelay.lake import session
from lakerelay.local import jars


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    options = {"spark.jars": ",".join(map(str, jars.spark())), "spark.master": "local[2]", "spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    found = session.start("tests", **options)
    yield found
    found.stop()
