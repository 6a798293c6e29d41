"""What the page asks for, for whoever is logged in to Airflow."""

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse

from lakerelay import config
from lakerelay.capture import commits, status
from lakerelay.capture.progress import Progress
from lakerelay.config import Settings
from lakerelay.errors import LakerelayError

app = FastAPI(title="lakerelay", dependencies=[Depends(requires_authenticated())])

_FRESH = 2.0  # seconds for which an answer is given again: any number of open pages ask Kafka once
_RELAYS = 200  # of the newest loads
_HOURS = 24.0
_asking = threading.Lock()
_kept: dict[str, tuple[float, dict[str, Any]]] = {}


@app.get("/", response_class=FileResponse)
def page() -> Path:
    return Path(__file__).with_name("page.html")


@app.get("/status")
def pipeline_status() -> Response:
    """As `lakerelay status --json` gives the pipeline, and the newest relays."""
    return _answer("status", _status)


@app.get("/commits")
def newest_commits(hours: float = 1.0) -> Response:
    """`lakerelay.capture.commits.CommitRecord` of the last hours, oldest first."""
    hours = min(hours, _HOURS)
    return _answer(f"commits {hours}", lambda settings: {"commits": [asdict(each) for each in commits.read(settings, time.time() - hours * 3600)]})


def _status(settings: Settings) -> dict[str, Any]:
    with Progress(settings, timeout=10.0) as progress:
        state = progress.read()
    found = asdict(status.of(settings, state))
    try:
        found["connectors"] = [asdict(each) for each in status.connectors(settings, state)]
    except LakerelayError as error:
        found["trouble"] = str(error)
    relays = sorted(state.relays.values(), key=lambda relay: relay.id)[-_RELAYS:]
    shown = ("id", "tables", "state", "attempt", "estimate", "read", "started_at", "scanned_at", "error")
    return found | {"relays": [{name: getattr(relay, name) for name in shown} | {"rows": sum(relay.rows.values())} for relay in relays]}


def _answer(name: str, ask: Any) -> JSONResponse:
    with _asking:
        at, body = _kept.get(name, (0.0, {}))
        if time.monotonic() - at > _FRESH:
            try:
                body = ask(config.load())
            except LakerelayError as error:
                body = {"trouble": str(error)}
            _kept[name] = (time.monotonic(), body)
    return JSONResponse(body)
