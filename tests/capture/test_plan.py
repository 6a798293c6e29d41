"""Which relays are planned, at first and again."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lakerelay.capture import plan
from lakerelay.capture.plan import plan_relays
from lakerelay.capture.progress import KeyRange, Progress, RelayRecord, TableRecord
from lakerelay.capture.source import SourceTable
from lakerelay.cli import app
from lakerelay.config import SETTINGS_VARIABLE, Settings
from lakerelay.errors import SettingsError
from tests.capture.conftest import Fill, Source


def _tables(**rows: int) -> list[SourceTable]:
    return [SourceTable(name, (), (), count, 0) for name, count in rows.items()]


def test_small_tables_go_together_and_lanes_have_equal_work() -> None:
    pieces = plan.group(_tables(lineitem=600, orders=150, partsupp=80, part=20, customer=15, region=0), rows=1500, lanes=2)

    assert [piece.tables for piece in pieces] == [("lineitem",), ("orders", "partsupp", "part", "customer", "region")]


def test_a_group_is_not_larger_than_a_relay() -> None:
    pieces = plan.group(_tables(a=60, b=50, c=40, d=30), rows=100, lanes=1)

    assert [(piece.tables, piece.rows) for piece in pieces] == [(("a", "c"), 100), (("b", "d"), 80)]


def test_empty_tables_are_one_relay() -> None:
    assert [piece.tables for piece in plan.group(_tables(a=0, b=0), rows=100, lanes=2)] == [("a", "b")]


def test_the_plan_fits_a_hundred_columns() -> None:
    relays = [
        RelayRecord(f"20261121t161500_{number:02}", "20261121t161500", (f"a_rather_long_database.{'t' * 60}",), KeyRange("k", "1", None), estimate=10**9)
        for number in range(3)
    ]
    exact = RelayRecord("20261121t161500_04", "20261121t161500", ("shop.log",), exact=True)
    whole = RelayRecord("20261121t161500_05", "20261121t161500", (f"shop.{'w' * 60}",), estimate=4_000_000)
    settings = Settings.model_validate({"name": "p", "local": {}, "tables": [{"name": "a.b"}], "relay": {"rows": 1_000_000}})
    lines = plan.described(settings, [TableRecord("a.b", "l", "r", ())], [*relays, exact, whole])

    assert max(map(len, lines)) <= 100
    assert len(lines) == 7
    assert lines[-2].endswith("shop.log (no key: one relay)")
    assert lines[-1].endswith("w… (key cannot be split: one relay)")


def _plan(settings: Settings) -> list[str]:
    return plan.preview(settings, [], replace=False)


def _state(settings: Settings, **changes: str) -> None:
    with Progress(settings) as progress:
        progress.write(*(replace(table, **changes) for table in progress.read().tables.values()))


def test_a_large_table_is_split_and_small_ones_are_grouped(source: Source, fill: Fill) -> None:
    for table, rows in {"large": 1000, "small": 30, "tiny": 20}.items():
        fill(table, rows)
    settings = source.settings(relay={"rows": 400})
    preview = plan.preview(settings, [], replace=False)
    with Progress(settings) as progress:
        assert progress.read().tables == {}
    ids = plan_relays(settings, [], run="one", replace=False)
    assert [line.split(maxsplit=1)[1] for line in preview[1:]] == [line.split(maxsplit=1)[1] for line in _plan(settings)[1:]]
    with Progress(settings) as progress:
        state = progress.read()

    relays = [state.relays[relay] for relay in ids]
    assert sorted(len(relay.tables) for relay in relays)[:3] == [1, 1, 1]
    assert {relay.tables for relay in relays if relay.range} == {(f"{source.name}.large",)}
    assert state.tables[f"{source.name}.small"].relays == state.tables[f"{source.name}.tiny"].relays == (ids[-1],)
    assert [relay.estimate for relay in relays] == sorted((relay.estimate for relay in relays), reverse=True)


def test_planned_again_an_unfinished_load_is_continued(source: Source, fill: Fill) -> None:
    fill("t", 1000)
    settings = source.settings(relay={"rows": 400})
    first = plan_relays(settings, [], run="one", replace=False)
    with Progress(settings) as progress:
        progress.write(replace(progress.read().relays[first[0]], state="scanned"))

    assert plan_relays(settings, [], run="two", replace=False) == first[1:]
    assert plan_relays(settings, [], run="three", replace=True) == first[1:]


def test_a_loaded_table_is_planned_only_to_be_replaced_and_once_a_run(source: Source, fill: Fill) -> None:
    fill("t", 10)
    settings = source.settings()
    first = plan_relays(settings, [], run="one", replace=True)
    _state(settings, state="loaded")
    assert plan_relays(settings, [], run="two", replace=False) == []
    assert plan_relays(settings, [], run="one", replace=True) == [], "the same run, its task cleared"

    second = plan_relays(settings, [], run="two", replace=True)
    assert len(second) == 1
    assert second != first


def test_a_table_that_is_new_gets_a_load_of_its_own(source: Source, fill: Fill) -> None:
    fill("a", 10)
    settings = source.settings()
    plan_relays(settings, [], run="one", replace=False)
    _state(settings, state="loaded")
    fill("b", 10)
    (relay,) = plan_relays(settings, [], run="two", replace=False)
    with Progress(settings) as progress:
        assert progress.read().relays[relay].tables == (f"{source.name}.b",)


def test_only_the_named_tables_are_planned(source: Source, fill: Fill) -> None:
    fill("a", 10)
    fill("b", 10)
    settings = source.settings()
    plan_relays(settings, [f"{source.name}.a"], run="one", replace=False)
    with Progress(settings) as progress:
        assert list(progress.read().tables) == [f"{source.name}.a"]


def test_a_table_outside_the_settings_is_refused(source: Source, fill: Fill) -> None:
    fill("a", 10)
    with pytest.raises(SettingsError, match=r"mysql\.user"):
        plan_relays(source.settings(), ["mysql.user"], run="one", replace=False)


def test_what_the_commands_show(source: Source, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    fill("t", 10)
    settings = source.settings()
    assert settings.local
    monkeypatch.setenv(SETTINGS_VARIABLE, str(settings.local.folder / "settings" / f"{source.name}.toml"))
    monkeypatch.setenv("COLUMNS", "80")
    checked = CliRunner().invoke(app, ["check"])
    assert checked.exit_code == 0, checked.output
    assert f"table {source.name}.t: key=id" in checked.output

    assert "relays_to_scan=1" in CliRunner().invoke(app, ["plan"]).output
    plan_relays(settings, [], run="one", replace=False)
    shown = CliRunner().invoke(app, ["status"]).output
    assert f"{source.name}.t" in shown
    assert "waiting" in shown
    assert max(map(len, shown.splitlines())) <= 80
    document = json.loads(CliRunner().invoke(app, ["status", "--json"]).output)
    assert [(table["table"], table["phase"]) for table in document["pipeline"]["tables"]] == [(f"{source.name}.t", "waiting")]
    assert document["pipeline"]["connectors"] == [{"name": f"{source.name}-capture", "connector": "", "task": ""}]
    assert {server["name"] for server in document["servers"] if server["ready"]} >= {"mysql", "kafka", "connect"}

    with Progress(settings) as progress:
        progress.write(*(replace(table, state="stopped", error="altered") for table in progress.read().tables.values()))
    assert f"{source.name}.t: altered" in CliRunner().invoke(app, ["status"]).output
    missing = CliRunner().invoke(app, ["plan", "no.table"])
    assert missing.exit_code == 1
    assert "no.table" in missing.output
