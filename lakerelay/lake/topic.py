"""Kafka topics as Spark reads them. Every topic has one partition: its order is the binlog's."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.lake.schema import TableSchema, schemas


def whole(spark: SparkSession, settings: Settings, topic: str) -> DataFrame:
    """All committed records of a topic: topic, value (binary), partition, offset, …; split so that every core has work."""
    options = source_options(settings) | {"subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    return spark.read.format("kafka").options(**options, minPartitions=str(2 * spark.sparkContext.defaultParallelism)).load()


def source_options(settings: Settings) -> dict[str, str]:
    """Spark's Kafka source: committed records only, and a loss of data is an error."""
    return {
        "kafka.bootstrap.servers": settings.kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
        "failOnDataLoss": "true",
    }


def starting_offsets(offsets: Mapping[str, int]) -> str:
    return json.dumps({topic: {"0": offset} for topic, offset in offsets.items()})


class SchemaTopic:
    """The schema changes of one connector, read on as they come; a context manager."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._reader = Reader(settings, topic)
        self._values: list[bytes] = []

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.__exit__(kind, error, trace)

    def read(self) -> dict[str, list[TableSchema]]:
        """Table → its schemas, oldest first, up to the topic's end at the time of the call.

        Call it after the end of a batch is fixed: a reader of committed records that sees a row then also sees the schema before it.
        """
        self._values += [value for message in self._reader.new() if (value := message.value())]
        return schemas(self._values)


def read_schemas(settings: Settings, topic: str) -> dict[str, list[TableSchema]]:
    """All schemas of a connector's schema-change topic, once."""
    with SchemaTopic(settings, topic) as schema_topic:
        return schema_topic.read()
