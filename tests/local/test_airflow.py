"""Airflow in the stack, through its API."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from lakerelay.errors import StackError
from lakerelay.local import airflow as local_airflow
from lakerelay.local import secrets, stack
from lakerelay.local.airflow import AirflowApi
from tests.conftest import Stack


def test_the_dags_are_found_without_import_errors_and_start_paused(airflow: AirflowApi) -> None:
    for dag in ("full_load", "stream_changes", "verify_tables"):
        airflow.wait_for_dag(dag)


def test_an_unknown_dag_is_our_error(airflow: AirflowApi) -> None:
    with pytest.raises(StackError, match="Airflow refused a request"):
        airflow.trigger("no_such_dag")


def test_all_of_it_runs_and_listens_on_loopback_only(stack_of_airflow: Stack) -> None:
    servers = [server for server in stack.status(stack_of_airflow.settings) if server.name.startswith("airflow")]
    assert [server.ready for server in servers] == [True, True, True]
    processes = [each for server in servers for each in (psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True))]
    listening = {connection.laddr for each in processes for connection in each.net_connections("tcp") if connection.status == psutil.CONN_LISTEN}
    assert {(address.ip, address.port) for address in listening} == {("127.0.0.1", stack_of_airflow.local.airflow_port)}


def test_the_page_is_for_whoever_is_logged_in(stack_of_airflow: Stack) -> None:
    """It asks nobody but Airflow's own server."""
    local = stack_of_airflow.local
    ((user, password),) = json.loads(local_airflow.users_file(local).read_text()).items()
    with httpx.Client(base_url=local_airflow.url(local), timeout=60) as client:
        for path in ("", "status", "commits"):
            assert client.get(f"/lakerelay/{path}").status_code == httpx.codes.UNAUTHORIZED
        token = client.post("/auth/token", json={"username": user, "password": password}).json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        page = client.get("/lakerelay/").text
        assert "Lakerelay" in page
        assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
        status = client.get("/lakerelay/status").json()
        assert status["pipeline"] == stack_of_airflow.settings.name
        assert "trouble" not in status
        assert client.get("/lakerelay/commits?hours=1").json() == {"commits": []}
        plugins = {plugin["name"]: plugin for plugin in client.get("/api/v2/plugins").json()["plugins"]}
        assert [view["href"] for view in plugins["lakerelay"]["external_views"]] == ["/lakerelay/"]


def test_no_secret_on_a_command_line(stack_of_airflow: Stack) -> None:
    local = stack_of_airflow.local
    words = [secrets.source_password(local), secrets.read(local, "airflow-fernet"), *json.loads(local_airflow.users_file(local).read_text()).values()]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        assert not any(word in line for word in words)
    assert (local.folder / "airflow" / "airflow.cfg").stat().st_mode & 0o777 == 0o600


def test_a_task_finds_the_source_spark_submit_and_java(stack_of_airflow: Stack) -> None:
    """What a task sees is this environment."""
    code = (
        "import shutil; from airflow.sdk import Connection; from lakerelay import config; s = config.load(); c = Connection.get('lakerelay_source');"
        "print(c.host, c.port == s.source.port, bool(c.password), shutil.which('spark-submit'), Connection.get('lakerelay_spark').host)"
    )
    environment = local_airflow.environment(stack_of_airflow.settings)
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert told.split()[-5:] == ["127.0.0.1", "True", "True", str(Path(sys.executable).with_name("spark-submit")), "local[*]"]


@pytest.fixture
def stack_of_airflow(stack: Stack, airflow: AirflowApi) -> Stack:
    return stack
