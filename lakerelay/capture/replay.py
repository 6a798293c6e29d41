"""Asking the stream, which alone writes the lake's tables, to apply quarantined records."""

import time

from lakerelay.capture.progress import Progress, ReplayRecord
from lakerelay.config import Settings
from lakerelay.errors import LakeError

_POLL = 0.5


def replay(settings: Settings, table: str, seconds: float) -> ReplayRecord:
    """Ask for it and wait so long for the answer, which has no `answered_at` when none came: the request stays, whenever the stream runs.

    Raises LakeError for a table that is not loaded, or whose replay is refused.
    """
    with Progress(settings) as progress:
        record = progress.read().tables.get(table)
        if record is None or record.state != "loaded":
            raise LakeError("Only a loaded table can be replayed.", todo="Run full_load for it.", table=table, state=record.state if record else "unknown")
        request = ReplayRecord(table, time.time())
        progress.write(request)
        deadline = time.monotonic() + seconds
        while not (answer := progress.read().replays.get(table, request)).answered_at and time.monotonic() < deadline:
            time.sleep(_POLL)
    if answer.error:
        raise LakeError(f"The replay was refused: {answer.error}", safe="", todo="", table=table)
    return answer
