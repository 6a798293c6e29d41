"""Binlog positions, and what MySQL says of itself."""

import pytest

from lakerelay.capture import binlog
from lakerelay.capture.binlog import Position
from lakerelay.errors import SourceError
from tests.capture.conftest import Source


def test_positions_are_ordered_by_file_number_and_not_as_text() -> None:
    ordered = [Position("binlog.999999", 5), Position("binlog.1000000", 4), Position("binlog.1000000", 10), Position("binlog.1000001", 4)]

    assert sorted(ordered, reverse=True) == ordered[::-1]
    assert sorted(position.seq for position in ordered) == [position.seq for position in ordered]


def test_gtids_do_not_make_two_positions_different() -> None:
    assert Position("binlog.000001", 4, "a:1") == Position("binlog.000001", 4)


def test_the_largest_position_fits_a_bigint() -> None:
    assert Position(f"binlog.{2**24 - 1}", 2**32 - 1).seq < 2**56


def test_the_position_moves_with_a_write(source: Source) -> None:
    settings = source.settings()
    with binlog.connect(settings) as mysql:
        before = binlog.position(mysql)
        source.run("CREATE TABLE t (id INT PRIMARY KEY)")
        after = binlog.position(mysql)

    assert before < after
    assert after.gtids


def test_the_server_writes_rows(source: Source) -> None:
    with binlog.connect(source.settings()) as mysql:
        server = binlog.server(mysql)

    assert (server.log_bin, server.format, server.row_image, server.gtid_mode) == (True, "ROW", "FULL", "ON")
    assert len(server.uuid) == 36


def test_a_wrong_password_is_an_error_without_the_password(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKERELAY_SOURCE_PASSWORD", "not-this-one")
    with pytest.raises(SourceError, match="MySQL refuses the connection") as caught:
        binlog.connect(source.settings())

    assert "not-this-one" not in str(caught.value)
