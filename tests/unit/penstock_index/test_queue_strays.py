"""Records that were found without an entry of their own, and which of them need one."""

import numpy as np

from penstock.contracts import NO_HISTORY
from penstock_index.queue_strays import Strays, true_ranges

KEY = ("t", 0)


def ones(count: int) -> np.ndarray:
    return np.ones(count, np.bool_)


def test_ranges_of_rows_that_are_true() -> None:
    assert true_ranges(np.array([True, True, False, True])) == [(0, 2), (3, 4)]
    assert true_ranges(np.zeros(3, np.bool_)) == []
    assert true_ranges(np.zeros(0, np.bool_)) == []


def test_gaps_are_what_no_record_matched() -> None:
    strays = Strays()
    strays.match(KEY, 2, np.array([20, 30]), ones(2))
    strays.match(KEY, 6, np.array([60]), ones(1))
    assert list(strays.gaps(KEY, 0, 10)) == [(0, 2), (4, 6), (7, 10)]
    assert list(strays.gaps(("u", 0), 0, 3)) == [(0, 3)]


def test_an_entry_stored_before_the_one_before_it_is_told() -> None:
    strays = Strays()
    strays.match(KEY, 0, np.array([50]), ones(1))
    strays.match(KEY, 1, np.array([20]), ones(1))
    assert list(strays.descents(KEY)) == [(1, 20)]


def test_a_record_after_the_first_entry_needs_its_own() -> None:
    strays = Strays()
    strays.match(KEY, 0, np.array([100]), ones(1))
    strays.add(KEY, 1, np.array([110]), ones(1), is_beyond=False)
    missing, others = strays.missing(NO_HISTORY)
    assert [(stray.ordinal, stray.log_offsets, count) for stray, count in missing] == [(1, [110], 1)]  # fmt: skip
    assert others == 0
    assert strays.has(KEY, 110)
    assert not strays.has(KEY, 100)


def test_an_earlier_generation_of_an_offset_needs_none() -> None:
    strays = Strays()
    strays.add(KEY, 0, np.array([10, 20]), ones(2), is_beyond=False)
    strays.match(KEY, 0, np.array([100, 110]), ones(2))
    assert strays.missing(NO_HISTORY) == ([], 2)


def test_what_is_missing_at_the_end_is_one_finding_with_a_count() -> None:
    strays = Strays()
    strays.match(KEY, 0, np.array([100]), ones(1))
    strays.add(KEY, 1, np.array([110, 120, 130]), ones(3), is_beyond=True)
    ((stray, count),) = strays.missing(NO_HISTORY)[0]
    assert (stray.ordinal, count, stray.is_beyond) == (1, 3, True)


def test_what_two_have_seen_is_what_one_would() -> None:
    first, second, both = Strays(), Strays(), Strays()
    for strays in (first, both):
        strays.match(KEY, 0, np.array([100]), ones(1))
    for strays in (second, both):
        strays.match(KEY, 1, np.array([110]), ones(1))
        strays.add(KEY, 2, np.array([120]), ones(1), is_beyond=True)
    first.take(second.plain())
    assert first.plain() == both.plain()
    assert list(first.gaps(KEY, 0, 2)) == []
