"""Preflight: all that is wrong is named at once, each with what mends it."""

import logging
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from lakerelay import config
from lakerelay.capture import binlog, bodies, preflight
from lakerelay.capture.binlog import Server
from lakerelay.capture.connector import Connector
from lakerelay.capture.grants import parsed
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.preflight import Check
from lakerelay.capture.relay import scan_relay
from lakerelay.capture.source import Column, SourceTable
from lakerelay.config import Settings
from lakerelay.errors import PreflightError
from tests.capture.conftest import Fill, Source

GOOD = {"log_bin": True, "format": "ROW", "row_image": "FULL", "row_value_options": "", "gtid_mode": "ON", "hides_keys": False, "retention": 3 * 86_400}
USER = "c_preflight"


def _failed(settings: Settings) -> dict[str, str]:
    return {check.name if check.name != "grant" else check.found: check.mend for check in preflight.run(settings) if check.mend}


@pytest.fixture
def account(source: Source) -> Iterator[str]:
    """A MySQL user with the password that Debezium knows, and no privilege."""
    account = f"'{USER}'@'127.0.0.1'"
    source.run(f"DROP USER IF EXISTS {account}", f"CREATE USER {account} IDENTIFIED BY '{config.source_password()}'")
    yield account
    source.run(f"DROP USER {account}")


def _as_user(settings: Settings) -> Settings:
    return settings.model_copy(update={"source": settings.source.model_copy(update={"user": USER})})


def test_a_fit_source_passes(source: Source, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
    fill("t", 10)
    with caplog.at_level(logging.INFO):
        preflight.preflight(source.settings())

    assert "ok   grants" in caplog.text
    assert "exactly once" in caplog.text
    assert config.source_password() not in caplog.text


@pytest.mark.fault("F-02", "preflight", "log_bin, binlog_format, binlog_row_image, PARTIAL_JSON, retention", "refused, with the statement that mends it")
@pytest.mark.parametrize(
    ("change", "name", "mend"),
    [
        ({"log_bin": False}, "log_bin", "set log_bin = binlog"),
        ({"format": "STATEMENT"}, "binlog_format", "SET PERSIST binlog_format = 'ROW'"),
        ({"row_image": "MINIMAL"}, "binlog_row_image", "SET PERSIST binlog_row_image = 'FULL'"),
        ({"row_value_options": "PARTIAL_JSON"}, "binlog_row_value_options", "SET PERSIST binlog_row_value_options = ''"),
        ({"hides_keys": True}, "show_gipk_in_create_table_and_information_schema", "SET PERSIST show_gipk_in_create_table_and_information_schema = ON"),
        ({"retention": 3600}, "binlog_expire_logs_seconds", "SET PERSIST binlog_expire_logs_seconds = 259200"),
    ],
)
def test_each_binlog_setting_is_named_with_what_mends_it(change: dict[str, object], name: str, mend: str) -> None:
    server = Server(version="8.0.12", uuid="u", **(GOOD | change))  # type: ignore[arg-type]
    (failed,) = (check for check in preflight._binlog(server) if check.mend)

    assert failed.name == name
    assert mend in failed.mend


def test_a_binlog_that_is_never_purged_is_fine() -> None:
    server = Server(version="8.0.12", uuid="u", **(GOOD | {"retention": None}))  # type: ignore[arg-type]
    assert [check for check in preflight._binlog(server) if check.mend] == []


def test_the_server_is_asked(source: Source, fill: Fill) -> None:
    fill("t", 1)
    source.run("SET @before = @@GLOBAL.binlog_row_image", "SET GLOBAL binlog_row_image = 'NOBLOB'")
    try:
        assert list(_failed(source.settings())) == ["binlog_row_image"]
    finally:
        source.run("SET GLOBAL binlog_row_image = @before")


@pytest.mark.fault("F-01", "preflight", "a grant is missing, each in turn", "refused, with the statement that mends it; nothing was made")
@pytest.mark.parametrize("lacking", ["LOCK TABLES", "REPLICATION SLAVE", "REPLICATION CLIENT", "SELECT"])
def test_each_missing_grant_is_named_and_its_statement_mends_it(source: Source, fill: Fill, account: str, lacking: str) -> None:
    fill("t", 1)
    fill("u", 1)
    everything = {"LOCK TABLES", "REPLICATION SLAVE", "REPLICATION CLIENT"} - {lacking}
    source.run(f"GRANT {', '.join(sorted(everything))} ON *.* TO {account}", f"GRANT SELECT ON `{source.name}`.`t` TO {account}")
    if lacking == "SELECT":
        source.run(f"GRANT INSERT ON `{source.name}`.`u` TO {account}")  # to be seen, but not read
    else:
        source.run(f"GRANT SELECT ON `{source.name}`.`u` TO {account}")
    settings = _as_user(source.settings())

    failed = {name: mend for name, mend in _failed(settings).items() if name.startswith(USER)}
    places = {"SELECT": f" on {source.name}.u", "LOCK TABLES": f" on `{source.name}`.*"}
    assert list(failed) == [f"{USER} lacks {lacking}{places.get(lacking, '')}"]
    source.run(*failed.values())
    assert _failed(settings) == {}


def test_without_a_lock_its_privilege_is_not_needed(source: Source, fill: Fill, account: str) -> None:
    fill("t", 1)
    source.run(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {account}", f"GRANT SELECT ON `{source.name}`.* TO {account}")

    assert _failed(_as_user(source.settings(relay={"locking": "none"}))) == {}


@pytest.mark.fault("F-03", "preflight", "tables without a key, of types and names that the lake cannot have", "all are named at once")
def test_all_that_is_wrong_with_tables_is_said_at_once(source: Source, fill: Fill) -> None:
    fill("good", 1)
    source.run("CREATE TABLE keyless (a INT)", "CREATE TABLE declared (a INT, b INT)", "CREATE TABLE wrong (a INT)")
    name = source.name
    settings = source.settings(
        {"name": f"{name}.good"},
        {"name": f"{name}.gone"},
        {"name": f"{name}.keyless"},
        {"name": f"{name}.declared", "key": ["a", "b"]},
        {"name": f"{name}.wrong", "key": ["a", "c"]},
        {"pattern": rf"{name}\.nothing_.*"},
    )
    with pytest.raises(PreflightError) as caught:
        preflight.preflight(settings)

    told = str(caught.value)
    assert "4 of " in told
    assert f"table {name}.gone: not there" in told
    assert f"table {name}.keyless: has no primary key\n    set `key` in its [[tables]] entry" in told
    assert f"table {name}.wrong: has no column c" in told
    assert rf"pattern {name}\.nothing_.*: matches no table" in told


def test_servers_that_cannot_be_reached_are_named_together(source: Source, fill: Fill) -> None:
    fill("t", 1)
    settings = source.settings().model_copy(
        update={
            "connect": source.settings().connect.model_copy(update={"url": "http://127.0.0.1:9"}),
            "kafka": source.settings().kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:9"}),
            "source": source.settings().source.model_copy(update={"port": 9}),
        }
    )
    assert list(_failed(settings)) == ["mysql", "kafka", "connect"]


def test_a_worker_that_cannot_log_in_is_named(source: Source, fill: Fill) -> None:
    fill("t", 1)
    settings = source.settings()
    wrong = settings.connect.source_password.replace(":password}", ":no_such_key}")
    failed = _failed(settings.model_copy(update={"connect": settings.connect.model_copy(update={"source_password": wrong})}))

    assert len(failed) == 1
    assert "connect.source_password" in next(iter(failed.values()))


def test_a_check_is_one_line() -> None:
    assert str(Check("log_bin", "OFF", "set it")) == "FAIL log_bin: OFF; mend: set it"


def test_grants_are_read_as_mysql_writes_them() -> None:
    statements = [
        "GRANT SELECT, RELOAD, REPLICATION SLAVE ON *.* TO `a`@`%`",
        "GRANT BACKUP_ADMIN,FLUSH_TABLES ON *.* TO `a`@`%`",
        r"GRANT ALL PRIVILEGES ON `my\_shop`.* TO `a`@`%`",
        "GRANT `reader`@`%` TO `a`@`%`",
    ]
    assert parsed(statements) == {"*.*": {"SELECT", "RELOAD", "REPLICATION SLAVE", "BACKUP_ADMIN", "FLUSH_TABLES"}, "`my_shop`.*": {"ALL PRIVILEGES"}}


@pytest.mark.parametrize(
    ("table", "entry", "locking", "found", "mend"),
    [
        (("k", "_seq"), {}, "brief", "has columns that lakerelay adds itself: _seq", "rename them"),
        (("k", "a b"), {}, "brief", "has columns with names that Hudi does not allow: a b", "rename them"),
        (("v",), {}, "brief", "has no primary key", 'kind = "append"'),
        (("v",), {"kind": "append"}, "none", "is read exactly only under a lock", 'locking = "brief"'),
        (("v",), {"kind": "append"}, "brief", "key=none", ""),
        (("k", "v"), {"key": ["x"]}, "brief", "has no column x", "correct `key`"),
    ],
)
def test_a_table_that_cannot_be_brought_is_named(table: tuple[str, ...], entry: dict[str, Any], locking: str, found: str, mend: str) -> None:
    connect = {"url": "http://c:8083", "source_password": "${file:/x:password}"}
    named = [{"name": "shop.t"} | entry]
    given: dict[str, Any] = {
        "kafka": {"bootstrap_servers": "k:9092"},
        "connect": connect,
        "lake": {"path": "/lake"},
        "tables": named,
        "relay": {"locking": locking},
    }
    settings = Settings(name="shop", source={"host": "h"}, **given)  # type: ignore[arg-type]
    columns = tuple(Column(name, "int", "int", nullable=False) for name in table)
    check = preflight._table(settings, SourceTable("shop.t", columns, ("k",) if "k" in table else (), 0, 0))
    assert found in check.found
    assert mend in check.mend
    assert bool(check.mend) == bool(mend)


def test_an_account_with_the_grants_that_are_printed_suffices(source: Source, fill: Fill) -> None:
    """For preflight, capture and a relay with a lock, of one table of two."""
    fill("t", 5)
    fill("other", 5)
    settings = source.settings({"name": f"{source.name}.t"}, source={"user": "lean"})
    account = "'lean'@'%'"
    source.run(f"DROP USER IF EXISTS {account}", f"CREATE USER {account} IDENTIFIED WITH mysql_native_password BY '{config.source_password()}'")
    try:
        source.run(*preflight.grants_needed(settings))
        preflight.preflight(settings)
        fix_position(settings)
        (relay,) = plan_relays(settings, [], run="one", replace=False)
        assert scan_relay(settings, relay).rows == {f"{source.name}.t": 5}
        with binlog.connect(settings) as connection, connection.cursor() as cursor:
            for statement in (f"SELECT * FROM {source.name}.other", f"DELETE FROM {source.name}.t"):
                with pytest.raises(pymysql.MySQLError, match="command denied"):
                    cursor.execute(statement)
    finally:
        Connector(settings, bodies.capture_name(settings)).delete()
        source.run(f"DROP USER {account}")
