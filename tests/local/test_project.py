"""The project's own commands and packages."""

import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakerelay.cli import app

PROJECT = Path(__file__).resolve().parents[2]


def test_make_alone_lists_every_command() -> None:
    targets = set(re.findall(r"^\.PHONY: (\S+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    told = subprocess.run(["make", "--no-print-directory"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    listed = dict(re.findall(r"^  make (\S+) +(.+)$", told, re.MULTILINE))
    assert set(listed) == targets
    assert {"setup", "up", "down", "status", "demo", "test", "lint", "format", "bench-full-load", "bench-stream", "clean"} <= targets


def test_ci_runs_the_same_commands() -> None:
    script = PROJECT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"^make .*", script.read_text(), re.MULTILINE) == ["make lint", "make test"]


def test_pyspark_client_is_absent() -> None:
    """It is a dependency of the Spark provider, and its files would overwrite those of PySpark 3.5."""
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("pyspark-client")
    assert importlib.metadata.version("pyspark") == "3.5.7"


def test_an_error_of_ours_is_a_message_not_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKERELAY_SETTINGS", raising=False)
    told = CliRunner().invoke(app, ["status"])
    assert told.exit_code == 1
    assert "The settings file cannot be read." in told.output
    assert "Traceback" not in told.output


def test_status_of_a_stack_that_was_never_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline.toml").write_text(f'name = "p"\n[local]\nfolder = "{tmp_path}/none"\n[[tables]]\nname = "a.b"\n')
    monkeypatch.setenv("LAKERELAY_SETTINGS", str(tmp_path / "pipeline.toml"))
    told = CliRunner().invoke(app, ["status"])
    assert told.exit_code == 0
    assert len(re.findall("down", told.output)) == 6
    assert not (tmp_path / "none").exists()
