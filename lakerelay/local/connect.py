"""Kafka Connect, distributed mode, with Debezium's MySQL connector.

What does not depend on the machine stands in connect/worker.properties.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx

from lakerelay.config import Local, Settings
from lakerelay.local import LOOPBACK, PROJECT, http, jars, java, kafka, secrets


@dataclass(frozen=True)
class Connect:
    settings: Settings
    name: str = "connect"
    gigabytes: float = 2.5
    seconds: float = 300.0

    @cached_property
    def local(self) -> Local:
        assert self.settings.local is not None
        return self.settings.local

    @property
    def ports(self) -> dict[str, int]:
        return {"connect_port": self.local.connect_port}

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.local.connect_port}"

    @property
    def environment(self) -> dict[str, str]:
        return java.environment()

    @property
    def command(self) -> list[str]:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return [*java.start("2g", "Parallel", self._folder / "log4j2.properties"), "-cp", kafka.classpath(), main, str(self._folder / "worker.properties")]

    @property
    def _folder(self) -> Path:
        return self.local.folder / "connect"

    def prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        secrets.source_password(self.local)
        here: dict[str, object] = {
            "bootstrap.servers": f"{LOOPBACK}:{self.local.kafka_port}",
            "listeners": self.address,
            "rest.advertised.host.name": LOOPBACK,
            "plugin.path": jars.folder() / "plugins",
            "config.providers.file.param.allowed.paths": secrets.folder(self.local),
        }
        file = self._folder / "worker.properties"
        kafka.write_properties(file, here)
        file.write_text((PROJECT / "connect" / "worker.properties").read_text() + "\n" + file.read_text())
        java.write_logging(self._folder / "log4j2.properties", "WARN", {"io.debezium": "INFO", "org.apache.kafka.connect.runtime": "INFO"})

    def is_ready(self) -> bool:
        """The REST server answers early; it lists connectors only when the worker has joined its group and read its topics."""
        try:
            plugins = http.client().get(f"{self.address}/connector-plugins").json()
            listed = http.client().get(f"{self.address}/connectors")
        except (httpx.HTTPError, ValueError):
            return False
        return listed.is_success and any(each["class"] == "io.debezium.connector.mysql.MySqlConnector" for each in plugins)
