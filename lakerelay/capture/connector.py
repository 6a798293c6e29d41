"""Kafka Connect's REST interface, for one connector: create, watch its task, stop, offsets, delete."""

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lakerelay.capture.binlog import Position
from lakerelay.config import Settings
from lakerelay.errors import ConnectError

CLASS = "io.debezium.connector.mysql.MySqlConnector"

_TRACE_LINES = 6
_PASSING = ("timed out", "failed to read to end of config topic", "a rebalance is expected")  # with status 500, from a worker that has much to do
_POLL = 0.3  # seconds between two looks at the status


@dataclass(frozen=True)
class Status:
    """States as Connect names them: RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED, RESTARTING; task "" before there is one."""

    connector: str
    task: str
    trace: str

    @property
    def failed(self) -> bool:
        return "FAILED" in (self.connector, self.task)


class Connector:
    """One connector by name, whether it exists or not.

    A rebalance (409) and a worker that restarts are waited for, `patience` seconds at most; then ConnectError.
    """

    def __init__(self, settings: Settings, name: str, patience: float = 90.0) -> None:
        self.name, self._patience = name, patience
        self._root = settings.connect.url.rstrip("/")

    def put(self, config: dict[str, str]) -> None:
        """Create it, or change its options."""
        self._call("PUT", "/config", json=config)

    def create_stopped(self, config: dict[str, str]) -> None:
        """Create it without starting it, so that offsets can be put first."""
        self._send("POST", f"{self._root}/connectors", json={"name": self.name, "config": config, "initial_state": "STOPPED"})

    def config(self) -> dict[str, str] | None:
        """Its options as Connect keeps them, placeholders unresolved; None when it does not exist."""
        response = self._call("GET", "/config", missing_ok=True)
        return None if response.status_code == httpx.codes.NOT_FOUND else response.json()

    def is_gone(self) -> bool:
        """Whether it does not exist. A worker that starts says so of every connector, for a minute after `kill -9`, so it is asked again when it is healthy.

        Source: KIP-1017; a worker before 3.9 has no such page.
        """
        if self.config() is not None:
            return False
        self._send("GET", f"{self._root}/health", accepted=(httpx.codes.NOT_FOUND,))
        return self.config() is None

    def status(self) -> Status | None:
        """None when it does not exist (or was made so recently that no worker has reported yet)."""
        response = self._call("GET", "/status", missing_ok=True)
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        body = response.json()
        task = body["tasks"][0] if body["tasks"] else {}
        return Status(body["connector"]["state"], task.get("state", ""), task.get("trace", "") or body["connector"].get("trace", ""))

    def wait(self, task: str = "RUNNING", connector: str = "RUNNING", seconds: float = 300.0) -> None:
        """Until connector and task have these states. Raises ConnectError with the trace as soon as one failed, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while (seen := self.check()) is None or (seen.connector, seen.task) != (connector, task):
            if time.monotonic() > deadline:
                raise ConnectError("The connector did not reach its state.", todo=_TODO, connector=self.name, wanted=connector, seen=str(seen))
            time.sleep(_POLL)

    def check(self) -> Status | None:
        """Its status; raises ConnectError with the first lines of the trace when it or its task failed."""
        status = self.status()
        if status and status.failed:
            raise self.failure(status)
        return status

    def failure(self, status: Status) -> ConnectError:
        """What a failed status says."""
        lines = [line.strip() for line in status.trace.splitlines()]
        causes = [line for line in lines if line.startswith("Caused by:")]
        told = "\n  ".join([*lines[:_TRACE_LINES], *causes])
        return ConnectError(f"The connector's task failed:\n  {told}\n", safe="No row is lost.", todo=_TODO, connector=self.name)

    def offset(self) -> dict[str, Any] | None:
        """The source offset that Connect stored last: file, pos, gtids, …; None when there is none."""
        response = self._call("GET", "/offsets", missing_ok=True)
        stored = [] if response.status_code == httpx.codes.NOT_FOUND else response.json()["offsets"]
        return stored[0]["offset"] if stored else None

    def position(self) -> Position | None:
        """The stored offset as a position."""
        offset = self.offset()
        return Position(offset["file"], int(offset["pos"]), offset.get("gtids")) if offset and "file" in offset else None

    def put_position(self, prefix: str, position: Position) -> None:
        """Set the stored offset of a stopped connector; with GTIDs, for a server with GTIDs on heeds them alone."""
        offset = {"file": position.file, "pos": position.pos} | ({"gtids": position.gtids} if position.gtids else {})
        self._call("PATCH", "/offsets", json={"offsets": [{"partition": {"server": prefix}, "offset": offset}]})

    def stop(self) -> None:
        """Stop it and its task, keeping its options and offsets."""
        self._call("PUT", "/stop")
        self.wait(connector="STOPPED", task="")

    def resume(self) -> None:
        self._call("PUT", "/resume")

    def restart(self) -> None:
        """Restart it and its task if they failed."""
        self._call("POST", "/restart?includeTasks=true&onlyFailed=true")

    def forget(self) -> None:
        """Stop it, and remove the offsets that Connect keeps: resumed, it begins anew. Nothing happens when it does not exist."""
        if self.config() is not None:
            self.stop()
            self._call("DELETE", "/offsets")

    def delete(self) -> None:
        """Remove it with its offsets; nothing happens when it does not exist."""
        self.forget()
        self._call("DELETE", "", missing_ok=True)

    def validate(self, config: dict[str, str]) -> list[str]:
        """What the worker finds wrong with the options, as `option: message`; it tries them on the source. Raises ConnectError."""
        url = f"{self._root}/connector-plugins/{config['connector.class']}/config/validate"
        response = self._send("PUT", url, json=config | {"name": self.name}, accepted=(httpx.codes.NOT_FOUND, httpx.codes.BAD_REQUEST))
        if response.is_error:
            return [f"connector.class: {response.json()['message']}"]
        values = (each["value"] or {} for each in response.json()["configs"])
        return [f"{value['name']}: {message}" for value in values for message in value.get("errors", ())]

    def _call(self, method: str, path: str, *, json: Any = None, missing_ok: bool = False) -> httpx.Response:
        accepted = (httpx.codes.NOT_FOUND,) if missing_ok else ()
        return self._send(method, f"{self._root}/connectors/{self.name}{path}", json=json, accepted=accepted)

    def _send(self, method: str, url: str, *, json: Any = None, accepted: tuple[int, ...] = ()) -> httpx.Response:
        retrying = Retrying(wait=wait_fixed(1.0), stop=stop_after_delay(self._patience), retry=retry_if_exception(_is_passing), reraise=True)
        try:
            return retrying(_request, method, url, json, accepted)
        except httpx.HTTPStatusError as error:
            told = _told(error.response)
            raise ConnectError(f"Kafka Connect refused a request: {told}.", todo=_TODO, connector=self.name, status=error.response.status_code) from error
        except httpx.HTTPError as error:
            raise ConnectError(f"Kafka Connect cannot be reached: {error}.", todo="See that it runs.", url=self._root) from error


_TODO = "Mend what the message names, then run the task again."


def _request(method: str, url: str, json: Any, accepted: tuple[int, ...]) -> httpx.Response:
    response = _client().request(method, url, json=json)
    if response.status_code not in accepted:
        response.raise_for_status()
    return response


@cache
def _client() -> httpx.Client:
    """One for the process: each new one reads all CA certificates, half a second of CPU."""
    return httpx.Client(timeout=60.0)


def _is_passing(error: BaseException) -> bool:
    """A rebalance, a worker that starts or restarts: the same request can succeed in a moment."""
    if isinstance(error, httpx.HTTPStatusError):
        passing = (httpx.codes.CONFLICT, httpx.codes.SERVICE_UNAVAILABLE)
        told = _told(error.response).lower()
        return error.response.status_code in passing or any(words in told for words in _PASSING)
    return isinstance(error, httpx.ConnectError | httpx.RemoteProtocolError | httpx.ReadError | httpx.TimeoutException)


def _told(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return response.text.strip()[:500]
