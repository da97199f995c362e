"""What becomes an object: whole segments, pieces of the last one, merged as they grow many."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.penstock_replicate.test_manifest import piece

from penstock_replicate.ship.manifest import LogPiece
from penstock_replicate.ship.planning import FAN, WHOLE, Upload, plan, with_uploaded

SEGMENT = 4096


def test_a_history_is_planned_by_segments() -> None:
    assert plan([], 0, 10_000, SEGMENT) == [
        Upload(0, 4096, WHOLE), Upload(4096, 8192, WHOLE), Upload(8192, 10_000, 1),
    ]  # fmt: skip
    assert plan([piece(0, 100)], 0, 100, SEGMENT) == []
    assert plan([piece(0, 100)], 0, 5000, SEGMENT) == [Upload(0, 4096, WHOLE), Upload(4096, 5000, 1)]  # fmt: skip
    # The log lost what was before: the rest of that segment is what there is.
    assert plan([piece(0, 100)], 4096, 5000, SEGMENT) == [Upload(4096, 5000, 1)]


@given(st.lists(st.integers(1, 3000), max_size=400))
def test_pieces_stay_few_and_cover_the_log(steps: list[int]) -> None:
    pieces: tuple[LogPiece, ...] = ()
    end, segment = 0, 1 << 18
    for step in steps:
        end += step
        uploads = plan(pieces, 0, end, segment)
        pieces = with_uploaded(pieces, [piece(u.start, u.stop, weight=u.weight) for u in uploads])
        assert [p.start for p in pieces] == [0, *(p.stop for p in pieces[:-1])]
        assert pieces[-1].stop == end
        assert all(p.start // segment == (p.stop - 1) // segment for p in pieces)
        open_pieces = [p for p in pieces if p.weight != WHOLE]
        assert len(open_pieces) < 3 * FAN
