"""The embedded stack on its real servers."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pymysql
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakerelay.config import Settings
from lakerelay.errors import StackError
from lakerelay.local import mysql, secrets, stack
from lakerelay.local.process import Process
from tests.conftest import PORTS, Stack, free_ports

SMALL = ("mysql", "kafka")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Settings]:
    """Settings of a stack that this test alone starts, stops and erases."""
    local = {"folder": str(tmp_path / "own")} | dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    settings = Settings(name="own", local=local, tables=[{"name": "a.b"}])  # type: ignore[call-arg]
    yield settings
    stack.down(settings, erase=True)


def pids(settings: Settings) -> dict[str, int | None]:
    return {server.name: server.pid for server in stack.status(settings)}


def test_up_twice_leaves_what_runs_alone_and_says_so(stack_settings: Settings) -> None:
    before = pids(stack_settings)
    lines: list[str] = []
    stack.up(stack_settings, ("mysql", "kafka", "connect"), lines.append)
    assert pids(stack_settings) == before
    assert [line.split()[:2] for line in lines] == [["mysql", "running"], ["kafka", "running"], ["connect", "running"]]


def test_data_survive_down_and_up_and_a_killed_server_and_go_with_erase(own: Settings) -> None:
    assert own.local is not None
    stack.up(own, SMALL)
    with mysql.connect(own.local) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kept")
        cursor.execute("CREATE TABLE kept.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO kept.t VALUES (7)")
    servers = {"bootstrap.servers": own.kafka.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
    producer = Producer(servers)
    producer.produce("kept", b"seven")
    assert producer.flush(20) == 0

    stack.down(own)
    assert set(pids(own).values()) == {None}
    stack.up(own, SMALL)
    running = Process("mysql", own.local.folder).find()
    assert running is not None
    running.kill()
    running.wait(20)
    stack.up(own, SMALL)

    with mysql.connect(own.local) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM kept.t")
        assert cursor.fetchall() == ((7,),)
    consumer = Consumer(servers | {"group.id": "kept", "auto.offset.reset": "earliest"})
    consumer.subscribe(["kept"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"seven"

    stack.down(own, erase=True)
    assert not own.local.folder.exists()


def test_a_taken_port_is_named_with_its_setting_before_anything_starts(own: Settings) -> None:
    assert own.local is not None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own.local.kafka_port))
        taken.listen()
        with pytest.raises(StackError, match=rf"port {own.local.kafka_port} is taken: set another kafka_port .*LAKERELAY_LOCAL__KAFKA_PORT"):
            stack.up(own, SMALL)
    assert set(pids(own).values()) == {None}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(name="bad", local={"folder": str(tmp_path / "file" / "stack")}, tables=[{"name": "a.b"}])  # type: ignore[call-arg]
    with pytest.raises(StackError, match="folder cannot be written"):
        stack.up(settings, SMALL)


def test_two_at_a_time_on_one_folder_are_refused(own: Settings) -> None:
    with stack._only_one(stack._local(own)), pytest.raises(StackError, match="Another `lakerelay up` or `down`"):
        stack.up(own, SMALL)


def test_every_server_listens_on_loopback_only(stack_settings: Settings) -> None:
    for pid in filter(None, pids(stack_settings).values()):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"


def test_secrets_are_closed_to_others_and_on_no_command_line(stack: Stack) -> None:
    folder = secrets.folder(stack.local)
    assert (stack.local.folder.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700, 0o700)
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    words = [secrets.read(stack.local, "mysql-root"), secrets.source_password(stack.local)]
    for pid in filter(None, pids(stack.settings).values()):
        line = " ".join(psutil.Process(pid).cmdline())
        assert not any(word in line for word in words)
    for log in (stack.local.folder / "logs").iterdir():
        assert not any(word in log.read_text(errors="replace") for word in words)


def test_the_sources_user_has_what_debezium_needs_and_no_more(stack: Stack) -> None:
    with mysql.connect(stack.local) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW GRANTS FOR '{stack.settings.source.user}'@'127.0.0.1'")
        ((granted,),) = cursor.fetchall()
    rights = granted.removeprefix("GRANT ").split(" ON *.* TO ")[0].split(", ")
    assert sorted(rights) == sorted(mysql.GRANTS.split(", "))
    denied = pytest.raises(pymysql.OperationalError, match="denied")
    with mysql.connect(stack.local, stack.settings.source.user) as connection, connection.cursor() as cursor, denied:
        cursor.execute("CREATE DATABASE not_allowed")


def test_connect_reads_files_of_the_secrets_folder_only(stack: Stack, tmp_path: Path) -> None:
    """Whoever can create a connector must not be able to read the machine's files through the config provider."""
    (tmp_path / "other.properties").write_text("password=canary")
    asked = {"connector.class": "io.debezium.connector.mysql.MySqlConnector", "name": "x", "topic.prefix": f"${{file:{tmp_path}/other.properties:password}}"}
    answer = httpx.put(f"{stack.settings.connect.url}/connector-plugins/MySqlConnector/config/validate", json=asked, timeout=30)
    assert "canary" not in answer.text


def test_connect_has_exactly_once_source_support(stack: Stack) -> None:
    text = (stack.local.folder / "connect" / "worker.properties").read_text()
    assert "exactly.once.source.support=enabled" in text
    assert str(secrets.folder(stack.local)) in text


@pytest.fixture
def stack_settings(stack: Stack) -> Settings:
    return stack.settings
