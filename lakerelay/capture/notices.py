"""What Debezium says about its scan: the notification topic of one relay attempt."""

import json
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from lakerelay.capture import topics
from lakerelay.capture.reader import Reader
from lakerelay.config import Settings

_SCAN = "Initial Snapshot"
_GOOD = "SUCCEEDED"


@dataclass
class Scan:
    """So far: how often it began, tables that were read to their end with their rows, tables that failed with Debezium's word for it."""

    started: int = 0
    completed: bool = False
    aborted: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Notices:
    """Follows the notifications under one topic prefix; a context manager."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        self._reader = Reader(settings, topics.notifications(prefix))
        self._scan = Scan()

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.__exit__(kind, error, trace)

    def read(self) -> Scan:
        """The scan as of the topic's end."""
        for message in self._reader.new():
            notice = json.loads(message.value() or b"{}")
            if notice.get("aggregate_type") == _SCAN:
                self._take(notice["type"], notice.get("additional_data") or {})
        return self._scan

    def _take(self, kind: str, facts: dict[str, str]) -> None:
        scan = self._scan
        if kind == "STARTED":
            scan.started += 1
        elif kind == "COMPLETED":
            scan.completed = True
        elif kind == "ABORTED":
            scan.aborted = True
        elif kind == "TABLE_SCAN_COMPLETED" and facts["status"] == _GOOD:
            scan.rows[facts["scanned_collection"]] = int(facts["total_rows_scanned"])
        elif kind == "TABLE_SCAN_COMPLETED":
            scan.failed[facts["scanned_collection"]] = facts["status"]
