"""Reading a one-partition topic again and again up to its end."""

import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from lakerelay.config import Settings
from lakerelay.errors import ProgressError


class Reader:
    """Follows one topic from its record `start` on, committed transactions only; a context manager."""

    def __init__(self, settings: Settings, topic: str, timeout: float = 30.0, start: int = 0) -> None:
        self.topic, self._timeout = topic, timeout
        self._servers = settings.kafka.bootstrap_servers
        self._next = start  # offset of the first record not read yet

    def __enter__(self) -> Self:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": self.topic,  # the client asks for one; offsets are never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 3,  # errors; what matters is raised
                "fetch.wait.max.ms": 20,  # the end of the topic is known after one empty fetch
            }
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._consumer.close()

    def new(self) -> list[Message]:
        """The records since the last call, up to the topic's end at the time of this one. Raises ProgressError."""
        deadline = time.monotonic() + self._timeout
        # A fresh assignment reports the end anew; without one the client would go on fetching between two reads.
        self._consumer.assign([TopicPartition(self.topic, 0, self._next)])
        messages: list[Message] = []
        try:
            while time.monotonic() < deadline:
                message = self._consumer.poll(1.0)
                if message is None:
                    continue
                if (problem := message.error()) is None:
                    messages.append(message)
                    self._next = (message.offset() or 0) + 1
                elif problem.code() == KafkaError._PARTITION_EOF:
                    return messages
                elif not problem.retriable():
                    raise self._error(problem.str())
        finally:
            self._consumer.unassign()
        raise self._error("no answer")

    def _error(self, why: str) -> ProgressError:
        return ProgressError("A topic cannot be read.", todo="See that Kafka runs, then run the task again.", topic=self.topic, servers=self._servers, why=why)
