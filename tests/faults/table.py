"""docs/faults.md, from what the tests saw."""

import ast
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).resolve().parents[1]
FILE = _TESTS.parent / "docs" / "faults.md"
WRITE = "LAKERELAY_TEST_WRITE"
_HEAD = """# What happens when something breaks

Written by `make faults`, which makes each fault on real servers. Those of `tests/faults/` come while tables are written to, streamed and read: after each of
them the lake must equal MySQL, every write that MySQL acknowledged must be there, and no reader may have seen a row go back or a deleted one come back
(`tests/faults/conftest.py`). The others have the marker `fault` at their tests. A row is the last time that its fault was made.

| fault | phase | how it is made | expected | seen | seconds |
|---|---|---|---|---|---|
"""
_seen: dict[str, "Row"] = {}


@dataclass(frozen=True)
class Row:
    fault: str
    phase: str
    how: str
    expected: str
    seen: tuple[str, ...]
    passed: int
    failed: int
    seconds: float

    @property
    def line(self) -> str:
        tests = f" in {self.passed} tests" if self.passed > 1 else ""
        verdict = f"**not as expected** in {self.failed} of {self.passed + self.failed} tests" if self.failed else f"as expected{tests}"
        seen = ": ".join([verdict, *filter(None, ["; ".join(self.seen)])])
        return f"| {self.fault} | {self.phase} | {self.how} | {self.expected} | {seen} | {self.seconds:.0f} |\n"


def seen(marker: pytest.Mark, passed: bool, what: Any, seconds: float) -> None:
    """What one test saw; several may be of one fault."""
    fault, phase, how, expected = marker.args
    before = _seen.get(fault, Row(fault, phase, how, expected, (), 0, 0, 0.0))
    told = (*before.seen, str(what)) if what else before.seen
    _seen[fault] = replace(before, seen=told, passed=before.passed + passed, failed=before.failed + (not passed), seconds=before.seconds + seconds)


def write() -> None:
    if os.environ.get(WRITE) and _seen:
        FILE.write_text(_HEAD + "".join(line for _, line in sorted(lines().items())))


def lines() -> dict[str, str]:
    """Fault → its line: of this run, else as it stands in the file."""
    standing = FILE.read_text().splitlines(keepends=True) if FILE.exists() else []
    known = {line.split(" | ")[0].removeprefix("| "): line for line in standing if line.startswith("| F-")}
    return known | {fault: row.line for fault, row in _seen.items()}


def marked() -> set[tuple[str, ...]]:
    """(fault, phase, how, expected) of each test's marker."""
    calls = (node for file in _TESTS.rglob("test_*.py") for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {tuple(map(ast.literal_eval, call.args)) for call in calls if ast.unparse(call.func) == "pytest.mark.fault"}
