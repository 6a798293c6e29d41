"""Airflow: the API server with its UI, the scheduler (it runs the tasks too) and the DAG processor; SQLite holds its state.

    <folder>/airflow           AIRFLOW_HOME: airflow.cfg, airflow.db, logs of the tasks
    <folder>/secrets           airflow-users.json: user → password for the UI

No triggerer: none of the DAGs defers. The scheduler serves no logs: the API server reads them from the folder.
"""

import configparser
import importlib.metadata
import json
import os
import secrets as random
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import httpx
from cryptography.fernet import Fernet

from lakerelay import config
from lakerelay.config import Local, Settings
from lakerelay.errors import StackError
from lakerelay.local import LOOPBACK, PROJECT, http, java, secrets, spark
from lakerelay.local.airflow_api import AirflowApi
from lakerelay.local.process import Process

__all__ = ["USER", "AirflowApi", "ApiServer", "DagProcessor", "Scheduler", "environment", "url", "users_file"]

USER = "admin"
_BIN = Path(sys.prefix) / "bin"


def environment(settings: Settings) -> dict[str, str]:
    """What Airflow, its tasks and the spark-submit they start run with; the connections are in here and nowhere else.

    Also for `airflow …` on the command line and for `dag.test()`, set before Airflow is imported.
    """
    local = _local(settings)
    given = {name: value for name, value in java.environment().items() if not name.startswith("AIRFLOW_") and name != config.PASSWORD_VARIABLE}
    source = {"conn_type": "mysql", "host": settings.source.host, "port": settings.source.port, "login": settings.source.user}
    return given | {
        "PATH": f"{_BIN}:{given['PATH']}",
        "AIRFLOW_HOME": str(_home(local)),
        "AIRFLOW_CONN_LAKERELAY_SOURCE": json.dumps(source | {"password": secrets.source_password(local)}),
        "AIRFLOW_CONN_LAKERELAY_SPARK": json.dumps({"conn_type": "spark", "host": "local[*]"}),
        config.SETTINGS_VARIABLE: str(Path(os.environ.get(config.SETTINGS_VARIABLE) or "pipeline.toml").resolve()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(local.folder / "spark"),
        "SPARK_LOCAL_IP": LOOPBACK,  # the Spark UI listens there
        "SPARK_HOME": str(_spark_home()),
    }


def users_file(local: Local) -> Path:
    """JSON, user → password; written when absent."""
    file = secrets.folder(local) / "airflow-users.json"
    if not file.exists():
        secrets.write(file, json.dumps({USER: random.token_urlsafe(16)}) + "\n")
    return file


def url(local: Local) -> str:
    return f"http://{LOOPBACK}:{local.airflow_port}"


@dataclass(frozen=True)
class _Part:
    """One of Airflow's processes."""

    settings: Settings
    name: str = ""
    gigabytes: float = 0.5
    seconds: float = 300.0

    @cached_property
    def local(self) -> Local:
        return _local(self.settings)

    @property
    def ports(self) -> dict[str, int]:
        return {}

    @property
    def address(self) -> str:
        return ""

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.settings)

    def prepare(self) -> None:
        """The API server, started first, has prepared for all."""

    def _health(self, part: str) -> bool:
        """Whether the part has sent a heartbeat since it was started: Airflow calls it healthy for a while after its end."""
        process = Process(self.name, self.local.folder).find()
        try:
            told = http.client().get(f"{url(self.local)}/api/v2/monitor/health").json()[part]
        except (httpx.HTTPError, ValueError, KeyError):
            return False
        beat = told.get(f"latest_{part}_heartbeat")
        return process is not None and beat is not None and datetime.fromisoformat(beat).timestamp() > process.create_time()


@dataclass(frozen=True)
class ApiServer(_Part):
    name: str = "airflow"

    @property
    def ports(self) -> dict[str, int]:
        return {"airflow_port": self.local.airflow_port}

    @property
    def address(self) -> str:
        return url(self.local)

    @property
    def command(self) -> list[str]:
        return [str(_BIN / "airflow"), "api-server"]

    def prepare(self) -> None:
        _home(self.local).mkdir(parents=True, exist_ok=True)
        users_file(self.local)
        spark.write(self.local)
        _write_configuration(self.local)
        _migrate(self.settings)

    def is_ready(self) -> bool:
        try:
            return http.client().get(f"{self.address}/api/v2/version").is_success
        except httpx.HTTPError:
            return False


@dataclass(frozen=True)
class Scheduler(_Part):
    name: str = "airflow-scheduler"
    gigabytes: float = 4.0  # with the Spark driver of one task

    @property
    def command(self) -> list[str]:
        return [str(_BIN / "airflow"), "scheduler", "--skip-serve-logs"]

    def is_ready(self) -> bool:
        return self._health("scheduler")


@dataclass(frozen=True)
class DagProcessor(_Part):
    name: str = "airflow-dags"

    @property
    def command(self) -> list[str]:
        return [str(_BIN / "airflow"), "dag-processor"]

    def is_ready(self) -> bool:
        return self._health("dag_processor")


def _local(settings: Settings) -> Local:
    assert settings.local is not None
    return settings.local


def _home(local: Local) -> Path:
    return local.folder / "airflow"


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _migrate(settings: Settings) -> None:
    """Airflow's database, at the version of the installed Airflow. One that was never finished is begun anew."""
    home, version = _home(_local(settings)), importlib.metadata.version("apache-airflow-core")
    done = home / "migrated"
    if done.exists() and done.read_text() == version:
        return
    if not done.exists():
        (home / "airflow.db").unlink(missing_ok=True)
    told = subprocess.run(
        [str(_BIN / "airflow"), "db", "migrate"], env=environment(settings), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise StackError("Airflow cannot make its database.", todo="", told=(told.stdout + told.stderr)[-2000:])
    done.write_text(version)


def _write_configuration(local: Local) -> None:
    """Only what differs from Airflow's defaults. Mode 0600: its keys are in it."""
    home = _home(local)
    sections: dict[str, dict[str, object]] = {
        "core": {
            "dags_folder": PROJECT / "dags",
            "executor": "LocalExecutor",
            "execution_api_server_url": f"{url(local)}/execution/",
            "fernet_key": secrets.read(local, "airflow-fernet", lambda: Fernet.generate_key().decode()),
            "hostname_callable": "socket.gethostname",
            "load_examples": False,
            "parallelism": 8,
            "dagbag_import_timeout": 120,  # two cores with Spark, MySQL and Kafka on them can be slow to import a file
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": users_file(local),
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{home / 'airflow.db'}", "check_migrations": False},
        "logging": {"uvicorn_logging_level": "WARNING", "colored_console_log": False},
        "api": {
            "host": LOOPBACK,
            "port": local.airflow_port,
            "base_url": url(local),
            "workers": 1,
            "instance_name": "lakerelay",
            "secret_key": secrets.read(local, "airflow-api"),
        },
        "api_auth": {"jwt_secret": secrets.read(local, "airflow-jwt", lambda: random.token_urlsafe(64))},
        "scheduler": {"task_instance_heartbeat_timeout": 120},
        # A changed file is parsed at once, a new one within refresh_interval; the rest of the time two cores are for the data.
        "dag_processor": {
            "dag_file_processor_timeout": 180,
            "parsing_processes": 1,
            "min_file_process_interval": 300,
            "refresh_interval": 30,
            "print_stats_interval": 0,
        },
        "usage_data_collection": {"enabled": False},
    }
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict({name: {key: str(value).replace("%", "%%") for key, value in values.items()} for name, values in sections.items()})
    part = home / "airflow.cfg.new"
    with secrets.create(part) as file:
        parser.write(file)
    part.replace(home / "airflow.cfg")
