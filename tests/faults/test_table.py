"""docs/faults.md lists the faults that the tests make."""

from tests.faults import table


def test_the_lines_are_the_tests() -> None:
    """Each of `make test`, and those of `make faults` that were run since."""
    marked, lines = table.marked(), {fault: line.split(" | ") for fault, line in table.lines().items()}
    assert {(fault, *line[1:4]) for fault, line in lines.items()} <= marked.keys()
    assert {fact[0] for fact, long in marked.items() if not long} <= lines.keys()
    assert all(line[4].startswith("as expected") for line in lines.values())
