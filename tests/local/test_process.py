"""A server's process: found again, never confused with another, ended with all it started."""

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from lakerelay.errors import StackError
from lakerelay.local.process import Process

STUBBORN = "trap '' TERM; sleep 300 & sleep 300 & echo ready; wait; wait"


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process("sleeper", tmp_path)


def test_a_process_is_found_again_and_stopped(process: Process) -> None:
    pid = process.start(["sleep", "300"], os.environ)
    found = Process(process.name, process.folder).find()
    assert found is not None
    assert found.pid == pid
    assert process.stop(5)
    assert process.find() is None
    assert not process.stop(5)


def test_another_process_that_has_its_pid_is_neither_found_nor_ended(process: Process) -> None:
    """The server has ended, and the system has given its pid to somebody else."""
    pid = process.start(["sleep", "300"], os.environ)
    noted = process.pid_file.read_text()
    process.pid_file.write_text(json.dumps({"pid": pid, "start": "1"}))
    assert process.find() is None
    assert not process.stop(5)
    assert psutil.pid_exists(pid)
    process.pid_file.write_text(noted)
    assert process.stop(5)


def test_a_pid_file_that_is_no_json_is_no_process(process: Process) -> None:
    process.pid_file.parent.mkdir(parents=True)
    process.pid_file.write_text("")
    assert process.find() is None


def test_one_that_ignores_term_is_killed_with_its_children(process: Process) -> None:
    pid = process.start(["bash", "-c", STUBBORN], os.environ)
    deadline = time.monotonic() + 10
    while "ready" not in process.last_lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(pid).children()
    assert len(children) == 2
    assert process.stop(0.5)
    assert not any(child.is_running() for child in children)


def test_children_that_outlive_their_parent_are_ended(process: Process) -> None:
    pid = process.start(["bash", "-c", "sleep 300 & echo ready; wait"], os.environ)
    deadline = time.monotonic() + 10
    while "ready" not in process.last_lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    (child,) = psutil.Process(pid).children()
    assert process.stop(5)
    assert not child.is_running()


def test_a_program_that_is_not_there_is_our_error(process: Process) -> None:
    with pytest.raises(StackError, match="sleeper cannot be started"):
        process.start(["/no/such/program"], os.environ)
