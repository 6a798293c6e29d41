"""Kafka: one broker that is its own controller (KRaft)."""

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lakerelay.config import Local, Settings
from lakerelay.errors import StackError
from lakerelay.local import LOOPBACK, jars, java

LARGEST_MESSAGE = 32 * 1024 * 1024  # bytes: a row with a blob, twice (before and after), as JSON
_CLUSTER = "bGFrZXJlbGF5LWxvY2Fs"  # one embedded stack is one cluster; the id only has to be the same at each start


@dataclass(frozen=True)
class Kafka:
    settings: Settings
    name: str = "kafka"
    gigabytes: float = 1.0
    seconds: float = 300.0

    @cached_property
    def local(self) -> Local:
        assert self.settings.local is not None
        return self.settings.local

    @property
    def ports(self) -> dict[str, int]:
        return {"kafka_port": self.local.kafka_port, "controller_port": self.local.controller_port}

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.local.kafka_port}"

    @property
    def environment(self) -> dict[str, str]:
        return java.environment()

    @property
    def command(self) -> list[str]:
        return [*java.start("768m", "Serial", self._folder / "log4j2.properties"), "-cp", classpath(), "kafka.Kafka", str(self._folder / "server.properties")]

    @property
    def _folder(self) -> Path:
        return self.local.folder / "kafka"

    def prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_properties(self._folder / "server.properties", self._configuration())
        java.write_logging(self._folder / "log4j2.properties", "WARN")
        if (self._folder / "data" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--ignore-formatted", "--config", str(self._folder / "server.properties")]
        done = subprocess.run(
            [java.program(), "-XX:TieredStopAtLevel=1", "-cp", classpath(), *tool], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StackError("Kafka cannot format its data folder.", todo="", told=(done.stdout + done.stderr)[-2000:])

    def is_ready(self) -> bool:
        try:
            metadata = AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers)

    def _configuration(self) -> dict[str, object]:
        controller = f"{LOOPBACK}:{self.local.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 5,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "message.max.bytes": LARGEST_MESSAGE,
            "replica.fetch.max.bytes": LARGEST_MESSAGE,
            "log.retention.hours": 168,
            # Idle on two cores: no empty metadata record twice a second, and no more threads than there is work for.
            "metadata.max.idle.interval.ms": 0,
            # Where the CPU is short heartbeats come late, and the only broker must not be taken for dead; one that was killed is not let in before that time.
            "broker.session.timeout.ms": 20_000,
            "num.io.threads": 4,
            "num.network.threads": 2,
            "background.threads": 2,
        }


def classpath() -> str:
    return str(jars.folder() / "kafka" / "*")


def write_properties(file: Path, values: dict[str, object]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
