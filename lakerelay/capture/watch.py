"""What becomes of the capture connector while the stream runs: a stream without it is green and gets no change."""

import logging
import time

from lakerelay.capture import bodies, topics
from lakerelay.capture.connector import Connector, Status
from lakerelay.config import Settings
from lakerelay.errors import ConnectError

log = logging.getLogger(__name__)

_EVERY = 10.0  # seconds between two looks
_SILENT = 60.0  # seconds without a heartbeat
_HEALTHY = 600.0  # seconds after which a failure is none of the ones before
_RESTARTS = 3


class Watch:
    """Looks at the connector now and then, never waiting for Connect; restarts a task that failed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._heartbeat = settings, topics.heartbeat(topics.capture_prefix(settings))
        self._heard, self._beats = time.monotonic(), 0
        self._connector = Connector(settings, bodies.capture_name(settings), patience=0.0)
        self._next, self._told = 0.0, ""
        self._failures: list[float] = []

    def look(self) -> None:
        """Raises ConnectError when the connector is gone, and with the task's trace when it fails again and again."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        try:
            status = self._connector.status()
            if status and status.failed and self._restarted() < _RESTARTS:
                self._restart()
                return
            gone = status is None and self._connector.is_gone()
        except ConnectError as error:
            self._tell(f"{error.what} Changes wait in the binlog.")
            return
        if gone:
            raise ConnectError(
                "The capture connector is gone.",
                safe="What is in the lake stands; changes wait in the binlog as long as MySQL keeps it.",
                todo="Trigger full_load: it makes the connector again, where it was. No table is loaded twice.",
                connector=self._connector.name,
            )
        if status and status.failed:
            raise self._connector.failure(status)
        self._tell(self._resting(status) if status else "No Connect worker has reported of it yet: changes wait in the binlog.")

    def _resting(self, status: Status) -> str:
        """Why nothing is captured, empty when all is well. A connector can be RUNNING and try in vain to reach MySQL."""
        beats = topics.end_offsets(self._settings, [self._heartbeat])[self._heartbeat]
        if beats != self._beats:
            self._heard, self._beats = time.monotonic(), beats
        if (status.connector, status.task) != ("RUNNING", "RUNNING"):
            return f"It is {status.connector}, its task {status.task or 'missing'}: changes wait in the binlog."
        silent = time.monotonic() - self._heard > _SILENT
        return "It is RUNNING, but hears nothing from MySQL: see that its account can log in, and the Connect worker's log." if silent else ""

    def _restarted(self) -> int:
        """How often, of late."""
        self._failures = [at for at in self._failures if time.monotonic() - at < _HEALTHY]
        return len(self._failures)

    def _restart(self) -> None:
        self._connector.restart()
        self._failures.append(time.monotonic())
        log.warning("connector restarted connector=%s failures=%d", self._connector.name, len(self._failures))

    def _tell(self, what: str) -> None:
        """Once for each change."""
        if what != self._told:
            log.log(logging.WARNING if what else logging.INFO, "capture connector=%s state='%s'", self._connector.name, what or "running")
            self._told = what
