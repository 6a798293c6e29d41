"""Kafka topics as Spark reads them. Every topic has one partition: its order is the binlog's."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from lakerelay.capture import topics
from lakerelay.capture.progress import Progress
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.errors import LakeError
from lakerelay.lake import decode
from lakerelay.lake.schema import TableSchema, schemas


def records(spark: SparkSession, settings: Settings, topic: str, start: int = 0) -> DataFrame:
    """The committed records of a topic from offset `start` on: topic, value (binary), partition, offset, epoch, …; split so that every core has work.

    Raises LakeError when the topic no longer holds that offset.
    """
    require(settings, {topic: start})
    with Progress(settings) as progress:
        epochs = progress.read().epochs
    options = source_options(settings) | {"subscribe": topic, "startingOffsets": starting_offsets({topic: start}), "endingOffsets": "latest"}
    found = spark.read.format("kafka").options(**options, minPartitions=str(2 * spark.sparkContext.defaultParallelism)).load()
    return decode.with_epoch(found, epochs)


def require(settings: Settings, offsets: Mapping[str, int]) -> None:
    """Raise LakeError when a topic no longer holds the offset, or does not have it yet."""
    for error in lost(settings, {topic: (offset, "") for topic, offset in offsets.items()}).values():
        raise error


def lost(settings: Settings, wanted: Mapping[str, tuple[int, str]]) -> dict[str, LakeError]:
    """Of topics, each with the offset that is needed next and the topic's id (empty when it is not known): those that do not hold it, and why."""
    found = topics.described(settings, wanted)
    bounds, errors = topics.bounds(settings, found), {}
    for topic, (offset, known) in wanted.items():
        first, end = bounds.get(topic, (0, 0))
        identity, partitions = found.get(topic, ("", 0))
        todo = "Run full_load for this table with replace set."
        if not identity:
            why = "the topic is gone"
        elif known not in ("", identity):
            why = "the topic was deleted and made anew"
        elif partitions > 1:
            why, todo = "the topic was given more partitions, among which changes have no order", f"Delete the topic. {todo}"
        elif not first <= offset <= end:
            why = "Kafka has deleted them" if offset < first else "the topic ends before them"
        else:
            continue
        errors[topic] = LakeError(
            f"Kafka does not hold the changes that a table needs next: {why}.",
            safe="The table stands as its newest commit left it.",
            todo=todo,
            topic=topic,
            next=offset,
            first=first,
            end=end,
        )
    return errors


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

    def __init__(self, settings: Settings, topic: str, progress: Progress) -> None:
        self._reader, self._topic, self._progress = Reader(settings, topic), topic, progress
        self._records: list[tuple[int, bytes]] = []  # offset, value

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.__exit__(kind, error, trace)

    def read(self, epoch: int | None = None) -> dict[str, list[TableSchema]]:
        """Table → its schemas, oldest first, up to the topic's end at the time of the call; all of them of this `epoch`, if it is given.

        Call it after the end of a batch is fixed: a reader of committed records that sees a row then also sees the schema before it.
        """
        self._records += [(message.offset() or 0, value) for message in self._reader.new() if (value := message.value())]
        state = self._progress.read()  # after them: an epoch is recorded before its first record comes
        return schemas((state.epoch_of(self._topic, offset) if epoch is None else epoch, value) for offset, value in self._records)


def read_schemas(settings: Settings, topic: str, epoch: int | None = None) -> dict[str, list[TableSchema]]:
    """All schemas of a connector's schema-change topic, once; `epoch`: of a relay's, which reads one server."""
    with Progress(settings) as progress, SchemaTopic(settings, topic, progress) as schema_topic:
        return schema_topic.read(epoch)
