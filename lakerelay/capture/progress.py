"""What a pipeline has done so far, readable from any host: one compacted Kafka topic, the newest record of each key counts."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, ClassVar, Self

from confluent_kafka import KafkaError, KafkaException, Producer
from pydantic import TypeAdapter

from lakerelay.capture import topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.commits import RECORD, CommitRecord
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.errors import ProgressError, WriterFencedError


@dataclass(frozen=True)
class KeyRange:
    """lower <= column < upper; the bounds are SQL literals, None means open."""

    column: str
    lower: str | None
    upper: str | None

    def __str__(self) -> str:
        return f"{self.lower or '-∞'} ≤ {self.column} < {self.upper or '∞'}"


@dataclass(frozen=True)
class RelayRecord:
    """One relay: a group of whole tables, or one key range of one table. Times are Unix seconds, 0.0 = not yet."""

    kind: ClassVar[str] = "relay"

    id: str
    load: str
    tables: tuple[str, ...]
    range: KeyRange | None = None
    exact: bool = False  # read at one position, low = high, for want of a key by which changes made meanwhile could be merged
    state: str = "planned"  # planned | scanning | scanned | failed
    attempt: int = 0
    topics: dict[str, str] = field(default_factory=dict)  # table → data topic of this attempt
    schema_topic: str = ""
    rows: dict[str, int] = field(default_factory=dict)  # table → rows as Debezium counted them
    low: Position | None = None  # every change up to here is in the rows
    high: Position | None = None  # no change after here is in the rows; every change up to here is in Kafka
    error: str = ""
    planned_at: float = 0.0
    started_at: float = 0.0
    scanned_at: float = 0.0
    estimate: int = 0  # rows, when it was planned
    read: int = 0  # rows in Kafka so far, about

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.id}"


@dataclass(frozen=True)
class TableRecord:
    """One load of one table; loaded when its rows stand in the lake by one commit."""

    kind: ClassVar[str] = "table"

    table: str
    load: str
    requested_by: str  # the run that planned this load
    relays: tuple[str, ...]
    state: str = "planned"  # planned | loaded | stopped (its changes can no longer be applied, or its load cannot be finished: `error`)
    error: str = ""
    offset: int = 0  # end of the table's capture topic when the load was planned: no change after a relay's low position stands before it
    rows: int = 0
    position: Position | None = None  # the state of the source that the load's commit holds
    schema: str = ""  # the table's columns at that position, JSON of lake.schema.TableSchema
    commit: str = ""  # Hudi instant
    quarantined: int = 0  # records that could not be decoded, and wait for a replay
    planned_at: float = 0.0
    loaded_at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.table}"


@dataclass(frozen=True)
class PositionRecord:
    """P0: every change after it is captured, from this server.

    `epochs`: each time that another server took the source's place, capture topic → offset of the first record from it; 0 for topics that were made since.
    """

    kind: ClassVar[str] = "position"

    position: Position
    server_uuid: str
    fixed_at: float
    epochs: tuple[dict[str, int], ...] = ()
    topic_ids: dict[str, str] = field(default_factory=dict)  # of the topics in the newest epoch, as Kafka made them

    @property
    def key(self) -> str:
        return self.kind


@dataclass(frozen=True)
class VerifyRecord:
    """A comparison of a table with the source."""

    kind: ClassVar[str] = "verify"

    table: str
    verdict: str  # equal | different | undecided (there was no time left, or it is not streamed: `why`)
    why: str = ""
    source_rows: int = 0
    lake_rows: int = 0
    keys: tuple[tuple[tuple[str, ...], str], ...] = ()  # the first keys that differ, each with what is wrong: columns, or where it is missing
    differing: int = 0  # keys
    changing: int = 0  # keys that were changed again whenever they were looked at
    left_out: tuple[str, ...] = ()  # columns of types that are not compared
    position: Position | None = None  # of the source, as it was compared first
    checked_at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.table}"


@dataclass(frozen=True)
class ReplayRecord:
    """A request to apply quarantined records of a table, answered by the stream: `applied` and `left` are records."""

    kind: ClassVar[str] = "replay"

    table: str
    requested_at: float
    answered_at: float = 0.0
    applied: int = 0
    left: int = 0
    error: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.table}"


@dataclass(frozen=True)
class StreamRecord:
    """The newest micro-batch, written again every half minute: table → `offset` (next of its topic), `lag_events` (in offsets, so markers count), `commit`,
    `captured_at` (Unix seconds; of the newest event in that commit, 0.0 when it is not the stream's)."""

    kind: ClassVar[str] = "stream"

    batch: int
    written_at: float
    tables: dict[str, dict[str, Any]]

    @property
    def key(self) -> str:
        return self.kind


def _is_fenced(error: KafkaError) -> bool:
    return error.code() in _FENCED or (error.code() == KafkaError._FATAL and "fence" in error.str().lower())


_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
Record = RelayRecord | TableRecord | PositionRecord | VerifyRecord | ReplayRecord | StreamRecord
_RECORDS: dict[str, TypeAdapter[Any]] = {
    record.kind: TypeAdapter(record) for record in (RelayRecord, TableRecord, PositionRecord, VerifyRecord, ReplayRecord, StreamRecord)
}


@dataclass(frozen=True)
class State:
    """All records at one moment."""

    position: PositionRecord | None = None
    relays: dict[str, RelayRecord] = field(default_factory=dict)
    tables: dict[str, TableRecord] = field(default_factory=dict)
    verified: dict[str, VerifyRecord] = field(default_factory=dict)
    replays: dict[str, ReplayRecord] = field(default_factory=dict)
    stream: StreamRecord | None = None

    @property
    def epochs(self) -> tuple[dict[str, int], ...]:
        return self.position.epochs if self.position else ()

    def epoch_of(self, topic: str, offset: int) -> int:
        """In which epoch a record of a capture topic was captured."""
        return sum(offset >= first.get(topic, 0) for first in self.epochs)


class Progress:
    """Reader and writer of the progress topic; a context manager.

    `sole_writer` names a role that only one program of the pipeline may have: the newest to take it fences the others, whose next
    `write` raises WriterFencedError. Raises ProgressError when Kafka does not answer within `timeout` seconds.
    """

    def __init__(self, settings: Settings, timeout: float = 30.0, sole_writer: str | None = None) -> None:
        self._settings, self._timeout = settings, timeout
        self._role = sole_writer and f"{settings.name}.{sole_writer}"
        self._topic = topics.progress(settings)
        self._reader = Reader(settings, self._topic, timeout)
        self._records: dict[str, Record] = {}
        self._writing, self._reading = threading.Lock(), threading.Lock()

    def __enter__(self) -> Self:
        topics.create(self._settings, {self._topic: topics.COMPACTED} | ({topics.commits(self._settings): topics.SEVEN_DAYS} if self._role else {}))
        self._reader.__enter__()
        if self._role:
            try:
                self._producer.init_transactions(self._timeout)
            except KafkaException as error:
                raise self._error(str(error)) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.__exit__(kind, error, trace)
        self.__dict__.pop("_producer", None)  # the client ends with its last reference

    @cached_property
    def _producer(self) -> Producer:
        role = {"transactional.id": self._role} if self._role else {}
        return Producer(
            {"bootstrap.servers": self._settings.kafka.bootstrap_servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 3} | role
        )

    def read(self) -> State:
        """The newest record of every key, up to the topic's end at the time of the call. Safe to call from several threads."""
        with self._reading:
            for message in self._reader.new():
                self._take((message.key() or b"").decode(), message.value())
            every = list(self._records.values())
        return State(
            position=next((each for each in every if isinstance(each, PositionRecord)), None),
            relays={each.id: each for each in every if isinstance(each, RelayRecord)},
            tables={each.table: each for each in every if isinstance(each, TableRecord)},
            verified={each.table: each for each in every if isinstance(each, VerifyRecord)},
            replays={each.table: each for each in every if isinstance(each, ReplayRecord)},
            stream=next((each for each in every if isinstance(each, StreamRecord)), None),
        )

    def write(self, *records: Record, commits: Iterable[CommitRecord] = ()) -> None:
        """Append the records, those of commits to a topic of their own, and return when all in-sync replicas have them. Safe to call from several threads."""
        messages = [(self._topic, record.key, _RECORDS[record.kind].dump_json(record)) for record in records]
        messages += [(topics.commits(self._settings), commit.table, RECORD.dump_json(commit)) for commit in commits]
        with self._writing:  # a transactional producer has one transaction at a time
            self._send(messages)

    def _send(self, messages: Sequence[tuple[str, str, bytes]]) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error:
                failed.append(error)

        try:
            if self._role:
                self._producer.begin_transaction()
            for topic, key, value in messages:
                # A transaction's end tells of its failures; a callback beside it is called with an exception of the client's own under way.
                told = None if self._role else delivered
                self._producer.produce(topic, key=key, value=value, on_delivery=told)
            missing = self._producer.flush(self._timeout)
            if self._role:
                self._producer.commit_transaction(self._timeout)
        except (KafkaException, BufferError) as error:
            if self._role and isinstance(error, KafkaException) and _is_fenced(error.args[0]):
                raise WriterFencedError(
                    "Another program has taken over.", safe="What is committed stands.", todo="Leave the newer one running, or stop it first.", role=self._role
                ) from error
            raise self._error(str(error)) from error
        if missing or failed:
            raise self._error(failed[0].str() if failed else "no answer")

    def _take(self, key: str, value: bytes | None) -> None:
        adapter = _RECORDS.get(key.partition("/")[0])
        if value is None:
            self._records.pop(key, None)
        elif adapter is not None:  # a kind that a newer version writes is left alone
            self._records[key] = adapter.validate_json(value)

    def _error(self, why: str) -> ProgressError:
        return ProgressError(
            "The progress topic cannot be written.",
            safe="What was recorded before stands.",
            todo="See that Kafka runs, then run the task again.",
            topic=self._topic,
            servers=self._settings.kafka.bootstrap_servers,
            why=why,
        )
