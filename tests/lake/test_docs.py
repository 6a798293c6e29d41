"""docs/tables.md against the code."""

import re
from pathlib import Path

from lakerelay.lake.schema import _MAPPINGS, SourceColumn

TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables.md"
_TYPE = re.compile(r"(?P<name>[A-Z]+)(?:\((?P<length>\d+)(?:, (?P<scale>\d+))?\))?(?P<unsigned> UNSIGNED)?")


def documented() -> dict[str, str]:
    """MySQL type → lake type, of each line of the first table."""
    section = TABLES.read_text().partition("## Types")[2].partition("A type that is not here")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| MySQL"):
            types, lake = (cell.strip() for cell in line.strip("|").split("|")[:2])
            found |= dict.fromkeys(re.split(r", (?=[A-Z])", types), lake)
    return found


def test_lake_types_are_as_documented() -> None:
    for text, lake in documented().items():
        parts = _TYPE.fullmatch(text)
        assert parts, text
        length, scale = (int(parts[name]) if parts[name] else None for name in ("length", "scale"))
        assert SourceColumn("c", parts["name"] + (parts["unsigned"] or ""), length, scale).lake_type.simpleString() == lake, text


def test_every_type_is_documented() -> None:
    names = {re.sub(r"\(.*?\)", "", text) for text in documented()}
    assert set(_MAPPINGS) - names - {"FLOAT UNSIGNED", "DOUBLE UNSIGNED"} == set()
