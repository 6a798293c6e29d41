"""Which mysqld the embedded stack runs, and how it is configured."""

from pathlib import Path

import pytest

from lakerelay import config
from lakerelay.config import Settings
from lakerelay.errors import StackError
from lakerelay.local import stack
from lakerelay.local.mysql import Mysql


def settings(tmp_path: Path, mysqld: str) -> Settings:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'name = "p"\n[local]\nfolder = "own"\nmysqld = "{mysqld}"\n[[tables]]\nname = "a.b"\n')
    return config.load(file)


def program(tmp_path: Path, name: str, version: str) -> None:
    """A program that says of itself that it is this mysqld."""
    (tmp_path / name).write_text(f"#!/bin/sh\necho 'mysqld  Ver {version} for Linux on x86_64'\n")
    (tmp_path / name).chmod(0o755)


def test_the_named_mysqld_is_run_though_another_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is relative to the settings file."""
    program(tmp_path, "mysqld", "8.4.0")
    program(tmp_path, "named", "9.7.4")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Mysql(settings(tmp_path, "named")).command[0] == str(tmp_path / "named")


@pytest.mark.parametrize("mysqld", ["absent", "notes.txt", "."])
def test_what_is_no_program_is_named_before_anything_is_done(tmp_path: Path, mysqld: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    given = settings(tmp_path, mysqld)
    with pytest.raises(StackError, match=r"not an executable file.*Correct `mysqld` in \[local\]") as raised:
        stack.up(given, ("mysql",))
    assert raised.value.facts == {"mysqld": str(tmp_path / mysqld)}


@pytest.mark.parametrize(
    ("version", "has", "has_not"),
    [
        ("8.0.12", {"default_authentication_plugin", "binlog_format", "innodb_log_file_size"}, {"innodb_redo_log_capacity"}),
        ("9.7.4-2", {"innodb_redo_log_capacity"}, {"default_authentication_plugin", "binlog_format", "innodb_log_file_size"}),
    ],
)
def test_only_options_that_the_version_knows_are_set(tmp_path: Path, version: str, has: set[str], has_not: set[str]) -> None:
    program(tmp_path, "mysqld", version)
    names = {line.partition(" = ")[0] for line in Mysql(settings(tmp_path, "mysqld"))._configuration(tmp_path).splitlines()}
    assert has <= names
    assert not has_not & names
