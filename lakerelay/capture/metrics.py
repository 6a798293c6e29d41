"""What Prometheus is told: the status of a pipeline, and sums of what the stream's commits did since the exporter began.

docs/monitoring.md lists the metrics.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakerelay.capture import commits, status, topics
from lakerelay.capture.progress import Progress, State
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings
from lakerelay.errors import LakerelayError

PHASES = ("missing", "waiting", "scanning", "loading", "loaded", "streaming", "stopped")
_BUCKETS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class PipelineCollector(Collector):
    """Asks anew at each scrape. A context manager."""

    def __init__(self, settings: Settings, registry: CollectorRegistry) -> None:
        self._settings, self._held, self._asking = settings, ExitStack(), threading.Lock()
        registry.register(self)  # first: a scrape that finds new commits shows them
        self._commits = Counter("lakerelay_commits", "Commits of the stream.", ["table"], registry=registry)
        self._events = Counter("lakerelay_events", "Changes that were committed.", ["table", "operation"], registry=registry)
        self._bytes = Counter("lakerelay_written_bytes", "Bytes that commits wrote.", ["table"], registry=registry)
        self._seconds = Histogram("lakerelay_commit_seconds", "Seconds that a commit took.", ["table"], buckets=_BUCKETS, registry=registry)
        self._delay = Histogram("lakerelay_delay_seconds", "Seconds from Kafka to the commit.", ["table"], buckets=_BUCKETS, registry=registry)

    def __enter__(self) -> "PipelineCollector":
        topic = topics.commits(self._settings)
        topics.create(self._settings, {topic: topics.SEVEN_DAYS})
        self._progress = self._held.enter_context(Progress(self._settings, timeout=10.0))
        self._reader = self._held.enter_context(Reader(self._settings, topic, timeout=10.0, start=topics.end_offsets(self._settings, [topic])[topic]))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask anybody."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        found: list[Metric] = []
        with self._asking:
            try:
                state = self._progress.read()
                self._count()
                found += _of(status.of(self._settings, state))
                found.append(_gauge("connector_up", "1 when connector and task run.", ["connector"], self._connectors(state)))
                up = 1.0
            except LakerelayError:
                up = 0.0
        yield from (*found, _gauge("up", "0 when Kafka or Connect cannot be asked.", [], {(): up}))

    def _connectors(self, state: State) -> dict[tuple[str, ...], float]:
        found = status.connectors(self._settings, state)
        return {(each.name,): float((each.connector, each.task) == ("RUNNING", "RUNNING")) for each in found}

    def _count(self) -> None:
        for value in (message.value() for message in self._reader.new()):
            if value is None:
                continue
            commit = commits.RECORD.validate_json(value)
            self._commits.labels(commit.table).inc()
            self._bytes.labels(commit.table).inc(commit.bytes)
            self._seconds.labels(commit.table).observe(commit.seconds)
            self._delay.labels(commit.table).observe(commit.delay)
            for operation in ("inserts", "updates", "deletes", "quarantined"):
                self._events.labels(commit.table, operation).inc(getattr(commit, operation))


def _of(found: status.PipelineStatus) -> Iterator[Metric]:
    tables = found.tables
    yield _gauge("stream_up", "1 while a stream runs.", [], {(): float(found.batch is not None)})
    phases: dict[tuple[str, ...], float] = {(each.table, phase): float(each.phase == phase) for each in tables for phase in PHASES}
    yield _gauge("table_phase", "1 for the phase that the table is in.", ["table", "phase"], phases)
    for name, told, values in (
        ("lag_events", "How far the stream is behind Kafka.", {each.table: each.lag_events for each in tables}),
        ("lag_seconds", "Since when the stream is behind Kafka.", {each.table: each.lag_seconds for each in tables}),
        ("relay_share", "How much of a table is scanned.", {each.table: each.share for each in tables}),
        ("loaded_rows", "Rows of the newest load.", {each.table: each.rows for each in tables}),
        ("quarantined_records", "Records that wait for a replay.", {each.table: each.quarantined for each in tables}),
        ("table_equal", "Whether the last comparison found it equal.", {each.table: each.verdict == "equal" if each.verdict else None for each in tables}),
    ):
        yield _gauge(name, told, ["table"], {(table,): float(value) for table, value in values.items() if value is not None})


def _gauge(name: str, told: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    gauge = GaugeMetricFamily(f"lakerelay_{name}", told, labels=labels)
    for key, value in values.items():
        gauge.add_metric(list(key), value)
    return gauge
