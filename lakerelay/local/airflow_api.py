"""A small client of Airflow's REST API: trigger a DAG, follow its run, read a task's log."""

import json
import time
from pathlib import Path
from typing import Any, Self

import httpx

from lakerelay.errors import StackError

FINISHED = frozenset({"success", "failed"})


class AirflowApi:
    """`users_file`: JSON, user → password; the first user is taken. A context manager. Raises StackError where Airflow refuses."""

    def __init__(self, url: str, users_file: Path) -> None:
        self._url = url
        self._users_file = users_file
        self._http = httpx.Client(base_url=f"{url}/api/v2", timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def wait_for_dag(self, dag_id: str, seconds: float = 120) -> None:
        """Until the DAG processor has found it; raises with the import errors it met, if any."""
        deadline = time.monotonic() + seconds
        while (dag := self._send("GET", f"/dags/{dag_id}", missing_ok=True)) is None or dag["is_stale"]:
            if errors := self._get("/importErrors")["import_errors"]:
                raise StackError("A DAG file has an error.", todo="Correct it.", file=errors[0]["filename"], error=errors[0]["stack_trace"])
            if time.monotonic() > deadline:
                raise StackError("Airflow does not find the DAG.", todo="See the log of airflow-dags.", dag=dag_id)
            time.sleep(1)

    def unpause(self, dag_id: str) -> None:
        self._send("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        self._send("PATCH", f"/dags/{dag_id}", json={"is_paused": True})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run with these parameters. Returns its id."""
        return str(self._send("POST", f"/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf or {}})["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The newest 20 first."""
        return list(self._get(f"/dags/{dag_id}/dagRuns", order_by="-run_after", limit=20)["dag_runs"])

    def state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed"""
        return str(self._get(f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def set_state(self, dag_id: str, run_id: str, state: str) -> None:
        """success or failed; running tasks are ended."""
        self._send("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def wait(self, dag_id: str, run_id: str, seconds: float) -> str:
        """The run's state once it has ended."""
        deadline = time.monotonic() + seconds
        while (state := self.state(dag_id, run_id)) not in FINISHED:
            if time.monotonic() > deadline:
                raise StackError("A run has not ended in time.", safe="", todo="", dag=dag_id, run=run_id, state=state, seconds=seconds)
            time.sleep(1)
        return state

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Airflow's task instances: task_id, map_index, state, try_number, rendered_map_index, …"""
        return list(self._get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"])

    def clear(self, dag_id: str, run_id: str, task_ids: list[str]) -> None:
        """Have these tasks and all after them run again."""
        asked = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "include_downstream": True, "only_failed": False, "reset_dag_runs": True}
        self._send("POST", f"/dags/{dag_id}/clearTaskInstances", json=asked)

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """The task's log as text, one event a line; an exception is its type and message."""
        lines: list[str] = []
        token: str | None = None
        while True:
            asked = {"map_index": map_index, "full_content": True} | ({"token": token} if token else {})
            told = self._get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}", **asked)
            content = told["content"]
            lines += [line for each in content for line in ([each] if isinstance(each, str) else _lines(each))]
            token = told.get("continuation_token")
            if not token or not content:
                return "\n".join(lines)

    def _get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params=query)

    def _send(self, method: str, path: str, *, missing_ok: bool = False, **what: Any) -> Any:
        """Logs in first and again when the token has expired."""
        for attempt in (1, 2):
            if "Authorization" not in self._http.headers:
                self._log_in()
            try:
                answer = self._http.request(method, path, **what)
            except httpx.HTTPError as error:
                raise StackError(f"Airflow does not answer: {error}.", safe="", todo="See `lakerelay status`.", url=self._url) from error
            if answer.status_code != httpx.codes.UNAUTHORIZED or attempt > 1:
                break
            del self._http.headers["Authorization"]
        if missing_ok and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if not answer.is_success:
            raise StackError("Airflow refused a request.", todo="", request=f"{method} {path}", status=answer.status_code, told=answer.text[:500])
        return answer.json() if answer.content else None

    def _log_in(self) -> None:
        user, password = next(iter(json.loads(self._users_file.read_text()).items()))
        try:
            answer = self._http.post(f"{self._url}/auth/token", json={"username": user, "password": password}, timeout=30)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise StackError(f"No login at Airflow: {error}.", todo="See `lakerelay status`.", url=self._url, user=user) from error
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"


def _lines(event: dict[str, Any]) -> list[str]:
    errors = event.get("error_detail") or []
    return [event["event"], *(f"{error['exc_type']}: {error['exc_value']}" for error in errors)]
