"""Which pieces a point needs."""

import pytest
from tests.unit.penstock_replicate.test_manifest import piece

from penstock_replicate.ship.restore_point import chosen_pieces, runs
from penstock_replicate.ship.ship_errors import ArchiveError

PIECES = [
    piece(0, 4096, first_ms=100), piece(4096, 5000, first_ms=200), piece(5000, 5100, first_ms=0),
    piece(8192, 9000, first_ms=300), piece(9000, 9500, first_ms=400),
]  # fmt: skip


def chosen(last_ms: int | None, last_offset: int | None = None) -> list[int]:
    return [each.start for each in chosen_pieces("a", PIECES, last_ms, last_offset)]


def test_consecutive_pieces_up_to_a_point_are_chosen() -> None:
    assert [len(run) for run in runs(PIECES)] == [3, 2]
    assert chosen(None) == [8192, 9000]
    assert chosen(100) == [0]
    assert chosen(299) == [0, 4096, 5000]
    assert chosen(300) == [8192]
    assert chosen(1 << 60) == [8192, 9000]
    assert chosen(None, 4999) == [0, 4096]
    assert chosen(None, 6000) == [0, 4096, 5000]
    assert chosen(250, 9500) == [0, 4096, 5000]
    assert chosen_pieces("a", [], 5, None) == []
    with pytest.raises(ArchiveError, match=r"1970-01-01 00:00:00\.099Z"):
        chosen(99)
    with pytest.raises(ArchiveError, match="0 to 9500"):
        chosen(None, 9501)
