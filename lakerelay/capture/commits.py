"""What the stream's commits did in the last days, for pictures and metrics: one Kafka topic, a record for each commit, kept for a week.

No decision rests on it: what a commit did stands in its own metadata (`lakerelay.lake.store.Facts`).
"""

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from pydantic import TypeAdapter

from lakerelay.capture import topics
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.errors import ProgressError

_SECONDS = 20.0


@dataclass(frozen=True)
class CommitRecord:
    """`table`: of the lake; `at`: Unix seconds, when it was committed; `seconds` that the write took; `delay`: seconds from Kafka's having the newest event.

    The counts are those of `lakerelay.lake.store.Facts` and `Commit`.
    """

    table: str
    instant: str
    at: float
    seconds: float
    delay: float
    events: int
    inserts: int
    updates: int
    deletes: int
    quarantined: int
    rows: int
    files: int
    bytes: int


RECORD = TypeAdapter(CommitRecord)


def read(settings: Settings, since: float) -> list[CommitRecord]:
    """Commits after `since`, Unix seconds, oldest first; none before the stream has made one. Raises ProgressError."""
    topic = topics.commits(settings)
    if not topics.present(settings, topic):
        return []
    with Reader(settings, topic, start=_first(settings, topic, since)) as reader:
        return [RECORD.validate_json(value) for message in reader.new() if (value := message.value())]


def _first(settings: Settings, topic: str, since: float) -> int:
    """The offset of the first record that was written after `since`, Kafka's end when there is none."""
    consumer = Consumer({"bootstrap.servers": settings.kafka.bootstrap_servers, "group.id": topic, "log_level": 3})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, int(min(since, time.time()) * 1000))], timeout=_SECONDS)
        return found.offset if found.offset >= 0 else topics.end_offsets(settings, [topic])[topic]
    except KafkaException as error:
        raise ProgressError("A topic cannot be read.", todo="See that Kafka runs.", topic=topic, why=str(error)) from error
    finally:
        consumer.close()
