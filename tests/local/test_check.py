"""What is named before anything starts."""

import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakerelay.errors import StackError
from lakerelay.local import check, native


@dataclass(frozen=True)
class Wanted:
    name: str = "some"
    ports: dict[str, int] = field(default_factory=dict)
    gigabytes: float = 0.1


def test_a_taken_port_comes_with_the_setting_and_the_variable_that_change_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = check.taken_ports([Wanted("mysql", {"mysql_port": port})])
    assert line == f"port {port} is taken: set another mysql_port in [local], or $LAKERELAY_LOCAL__MYSQL_PORT (for mysql)"


def test_a_port_given_to_two_servers_is_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (line,) = check.taken_ports([Wanted("a", {"a_port": port}), Wanted("b", {"b_port": port})])
    assert "given to both a_port and b_port" in line


@pytest.mark.parametrize(("needed", "free", "expected"), [(2.0, 2.0, []), (2.0, 1.94, ["too little memory: 2.0 GB are needed, 1.9 GB are free"])])
def test_too_little_names_both_figures(needed: float, free: float, expected: list[str]) -> None:
    assert check.too_little("memory", needed, free) == expected


def test_everything_that_is_in_the_way_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 0.5)
    monkeypatch.setattr(check, "DISK_GIGABYTES", 1e9)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StackError) as raised:
            check.before_start(tmp_path, [Wanted("mysql", {"mysql_port": taken.getsockname()[1]}, 1.0)])
    assert [word in str(raised.value) for word in ("is taken", "too little memory", "too little disk", "Nothing was started.")] == [True] * 4


def test_nothing_is_asked_of_the_machine_when_nothing_is_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` twice on a machine that the first one filled."""
    monkeypatch.setattr(check, "free_memory", lambda: 0.0)
    check.before_start(tmp_path, [])


def test_a_library_that_cannot_be_had_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    with pytest.raises(StackError, match=r"apt-get install libnothing1.*|libnothing\.so\.1"):
        native.install({"libnothing.so.1": "libnothing1"}, tmp_path, print)


def test_a_library_unpacked_into_the_stacks_folder_counts(tmp_path: Path) -> None:
    unpacked = tmp_path / "native" / "usr" / "lib"
    unpacked.mkdir(parents=True)
    (unpacked / "libnothing.so.1").write_bytes(b"")
    assert native.missing({"libnothing.so.1": "libnothing1"}, tmp_path) == {}
    assert native.environment(tmp_path)["LD_LIBRARY_PATH"].split(":")[0] == str(unpacked)
