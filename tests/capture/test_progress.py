"""The progress topic: what was written last counts, for every reader."""

import time

from lakerelay.capture.binlog import Position
from lakerelay.capture.progress import KeyRange, PositionRecord, Progress, RelayRecord, StreamRecord, TableRecord
from tests.capture.conftest import Source


def test_what_one_writes_another_reads(source: Source) -> None:
    relay = RelayRecord("l_01", "l", ("a.b",), KeyRange("k", None, "'x'"), topics={"a.b": "t"}, rows={"a.b": 3}, low=Position("binlog.000001", 4, "u:1"))
    table = TableRecord("a.b", "l", "run", ("l_01",), position=Position("binlog.000001", 4))
    position, stream = PositionRecord(Position("binlog.000001", 4), "uuid", 1.5), StreamRecord(1, 2.0, {"a.b": {"rows": 1}})
    with Progress(source.settings()) as writer, Progress(source.settings()) as reader:
        assert reader.read().relays == {}
        writer.write(relay, table, position, stream)
        state = reader.read()

    assert (state.relays, state.tables, state.position, state.stream) == ({"l_01": relay}, {"a.b": table}, position, stream)


def test_the_newest_record_of_a_key_counts(source: Source) -> None:
    with Progress(source.settings()) as progress:
        progress.write(TableRecord("a.b", "l", "run", ()), TableRecord("a.b", "l", "run", (), state="loaded"))
        assert progress.read().tables["a.b"].state == "loaded"
        progress.write(TableRecord("a.b", "m", "run", ()))
        assert progress.read().tables["a.b"].load == "m"


def test_reading_again_takes_no_time(source: Source) -> None:
    """The loader asks twice a second, for hours."""
    with Progress(source.settings()) as progress:
        progress.write(*(TableRecord(f"a.t{number}", "l", "run", ()) for number in range(500)))
        progress.read()
        started = time.monotonic()
        assert len(progress.read().tables) == 500

    assert time.monotonic() - started < 0.5
