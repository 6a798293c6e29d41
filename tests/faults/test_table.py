"""docs/faults.md lists the faults that the tests make."""

from tests.faults import table


def test_the_lines_are_the_tests() -> None:
    """And nothing stands there that was not as expected."""
    lines = {fault: line.split(" | ") for fault, line in table.lines().items()}
    assert {(fault, *line[1:4]) for fault, line in lines.items()} <= table.marked()
    assert all(line[4].startswith("as expected") for line in lines.values())
