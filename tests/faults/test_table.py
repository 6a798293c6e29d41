"""docs/faults.md lists the faults that the tests make."""

from tests.faults import table, test_streaming


def test_the_lines_are_the_tests() -> None:
    """Each of `make test`, and those of `make faults` that were run since."""
    marked = [each for each in vars(test_streaming).values() if hasattr(each, "pytestmark")]
    facts = [{mark.name: table.facts(mark) for mark in each.pytestmark} for each in marked]
    lines = {fault: line.split(" | ") for fault, line in table.lines().items()}
    assert {(fault, *line[1:4]) for fault, line in lines.items()} <= {each["fault"] for each in facts}
    assert {each["fault"][0] for each in facts if "long" not in each} <= lines.keys()
    assert all(line[4].startswith("as expected") for line in lines.values())
