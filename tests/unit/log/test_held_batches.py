"""A part of an atomic batch is held back until the rest has come, whatever pieces it comes in."""

from random import Random

import pytest
from tests.following import SEGMENT, MasterLog, make_log, whole

from penstock.log.copied_bytes import CopiedBytes
from penstock.log.held_batches import HeldBatches


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return make_log(tmp_path_factory.mktemp("master") / "store")


@pytest.mark.parametrize("size", [100, 200, 777, 3000, 1 << 20])
def test_only_whole_batches_are_shown(log: MasterLog, size: int) -> None:
    stream, held = CopiedBytes(SEGMENT, 1 << 20, 0), HeldBatches(SEGMENT)
    chance, shown, seen = Random(size), 0, 0
    for at in range(0, log.end, size):
        for begin, data, records in stream.take(at, log.raw[at : at + size]):
            if records is not None:
                # A follower may be behind by any number of rounds.
                held.add(records, begin + len(data), chance.choice((0, shown)))
        end = stream.end_offset
        # Before and after the append, wherever the readable bytes end meanwhile.
        for some in (end, *log.begins, *(first + 7 for first, _ in log.batches)):
            if some <= end and some >= shown:
                assert held.shown(some) in (some, whole(log, some))
        shown = held.shown(end)
        assert shown == whole(log, end)
        assert (held.begin is None) == (shown == end)
        seen += shown < end
    assert held.begin is None
    assert (seen > 0) == (size < log.end)


def test_marks_that_do_not_fit_hold_nothing_back(log: MasterLog) -> None:
    """The records of a batch from its second one on, as after a foreign program: nothing says that they belong together."""
    first, _ = log.batches[0]
    stream, held = CopiedBytes(SEGMENT, 1 << 20, first), HeldBatches(SEGMENT)
    ((_, data, records),) = stream.take(first, log.raw[first : first + 700])
    assert records is not None
    held.add(records.rows(slice(1, None)), first + len(data), 0)
    assert held.shown(first + 1) == first + 1
    held.add(records, first + len(data), 0)
    assert held.shown(first + 1) == held.begin == first
    # The records after it do not continue the batch.
    at = log.begins[0]
    stream = CopiedBytes(SEGMENT, 1 << 20, at)
    ((_, data, others),) = stream.take(at, log.raw[at : log.begins[2]])
    assert others is not None
    held.add(others, first + len(data), 0)
    assert held.shown(first + 1) == first + 1
