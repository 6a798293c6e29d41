"""What `lakerelay status` makes of the progress topic."""

from typing import Any

import pytest

from lakerelay.capture import status
from lakerelay.capture.progress import RelayRecord, State, StreamRecord, TableRecord, VerifyRecord
from lakerelay.capture.status import TableStatus
from lakerelay.config import Settings

NOW = 10_000.0


@pytest.fixture
def settings() -> Settings:
    return Settings.model_validate(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u"},
            "kafka": {"bootstrap_servers": "k:9092"},
            "connect": {"url": "http://c:8083", "source_password": "${file:/p:p}"},
            "lake": {"path": "/lake"},
            "tables": [{"name": "shop.orders"}, {"pattern": r"shop\.x.*"}],
        }
    )


def _relay(number: int, **fields: Any) -> RelayRecord:
    return RelayRecord(f"l_{number}", "l", ("shop.orders",), **({"estimate": 100} | fields))


def _of(settings: Settings, table: TableRecord, *relays: RelayRecord, stream: StreamRecord | None = None, **verified: VerifyRecord) -> TableStatus:
    state = State(relays={relay.id: relay for relay in relays}, tables={table.table: table}, stream=stream, verified=verified)
    (found,) = status.of(settings, state, NOW).tables
    return found


def test_a_table_that_was_never_loaded_is_missing(settings: Settings) -> None:
    """One of a pattern is known when it is planned."""
    assert status.of(settings, State(), NOW).tables == (TableStatus("shop.orders", "missing"),)


def test_a_scan_has_a_share_a_speed_and_a_time_left(settings: Settings) -> None:
    table = TableRecord("shop.orders", "l", "r", ("l_1", "l_2", "l_3"))
    planned = [_relay(number) for number in (1, 2, 3)]
    assert _of(settings, table, *planned).phase == "waiting"

    half = [_relay(1, state="scanned", rows={"shop.orders": 110}), _relay(2, state="scanning", read=40, started_at=NOW - 20), _relay(3)]
    found = _of(settings, table, *half)
    assert (found.phase, found.rows, found.rows_per_second) == ("scanning", 150, 2.0)
    assert found.share == pytest.approx(150 / 310)
    assert found.seconds_left == pytest.approx(160 / 2)

    failed = _of(settings, table, half[0], _relay(2, state="failed", error="why", read=40), _relay(3))
    assert (failed.why, failed.seconds_left) == ("why", None)
    done = _of(settings, table, *(_relay(number, state="scanned", rows={"shop.orders": 100}) for number in (1, 2, 3)))
    assert (done.phase, done.rows) == ("loading", 300)


@pytest.mark.parametrize(("lag", "seconds"), [(0, 0.0), (7, 30.0)])
def test_a_stream_has_a_lag(settings: Settings, lag: int, seconds: float) -> None:
    table = TableRecord("shop.orders", "l", "r", (), state="loaded", rows=5, commit="1")
    at = {"offset": 9, "lag_events": lag, "commit": "2", "captured_at": NOW - 30}
    found = _of(settings, table, stream=StreamRecord(4, NOW - 10, {"shop.orders": at}))
    assert (found.phase, found.lag_events, found.lag_seconds, found.commit) == ("streaming", lag, seconds, "2")


def test_a_stream_that_says_nothing_does_not_run(settings: Settings) -> None:
    table = TableRecord("shop.orders", "l", "r", (), state="loaded", commit="1")
    verified = {"shop.orders": VerifyRecord("shop.orders", "equal")}
    found = _of(settings, table, stream=StreamRecord(4, NOW - 500, {"shop.orders": {"offset": 9, "lag_events": 0, "commit": "2"}}), **verified)
    assert (found.phase, found.commit, found.verdict) == ("loaded", "1", "equal")


def test_a_stopped_table_says_why(settings: Settings) -> None:
    found = _of(settings, TableRecord("shop.orders", "l", "r", (), state="stopped", error="altered", quarantined=3))
    assert (found.phase, found.why, found.quarantined) == ("stopped", "altered", 3)
