"""What a journal, a mark and a committed offset mean together."""

import attrs
import pytest

from penstock_messaging.groups.fold import Fold, Nack, Position
from penstock_messaging.groups.marks import Mark
from penstock_messaging.groups.position import VOIDED_BITS, Settled, settle

JOURNAL = Fold(7, 0, 3, 10, base=20, acked=[(25, 30)], number=2)


def settled(
    fold: Fold | None = JOURNAL, mark: Mark | None = None, committed: int | None = 10, **given: int
) -> Settled:
    """Settle a copy of the journal."""
    own = None if fold is None else attrs.evolve(fold, acked=list(fold.acked), nacks=dict(fold.nacks))  # fmt: skip
    return settle(own, mark, committed, **{"store_id": 7, "topic_life": 0, **given})


def test_without_a_writer_the_journal_is_the_position() -> None:
    assert settled().position() == Position(20, ((25, 30),))


def test_without_a_journal_the_committed_offset_is() -> None:
    assert settled(None).position() == Position(10)
    assert settled(None, committed=None).position() is None


@pytest.mark.parametrize("committed", [12, 20])
def test_both_offsets_of_the_mark_are_the_writers_own(committed: int) -> None:
    mark = Mark(0, 3, old=12, new=20)
    assert settled(mark=mark, committed=committed).position() == Position(20, ((25, 30),))


@pytest.mark.parametrize("committed", [None, 0, 11, 15, 21])
def test_any_other_offset_is_somebody_elses_and_counts(committed: int | None) -> None:
    for mark in (None, Mark(0, 3, old=12, new=20)):
        found = settled(mark=mark, committed=committed)
        assert found.position() == (None if committed is None else Position(committed))
        assert found.moved
        assert "moved" in found.note


def test_a_slow_owner_that_saw_an_older_offset_of_the_writer_keeps_its_journal() -> None:
    """A taker that was stopped while the writer moved the offset twice lost its acknowledged ranges (found by a review)."""
    mark = Mark(0, 2, old=15, new=18)
    assert settled(mark=mark, committed=18).position() == Position(20, ((25, 30),))


def test_an_owner_that_found_an_offset_of_somebody_else_keeps_it() -> None:
    fold = attrs.evolve(JOURNAL, moved=True)
    mark = Mark(0, 2, old=50, new=60)
    assert settled(fold, mark).position() == Position(20, ((25, 30),))
    assert settled(fold, mark, committed=60).moved
    # Once the writer has taken it in, the mark counts again.
    assert not settled(fold, Mark(0, 3, old=10, new=20), committed=20).moved


@pytest.mark.parametrize("given", [{"store_id": 8}, {"topic_life": 1}])
def test_a_journal_of_another_store_or_life_does_not_count(given: dict[str, int]) -> None:
    found = settled(JOURNAL, None, 10, **given)
    assert found.position() == Position(10)
    assert found.note
    assert found.life == given.get("topic_life", 0) << VOIDED_BITS


def test_the_next_epoch_is_above_all_of_this_store() -> None:
    assert settled(mark=Mark(5, 9)).epoch == 9
    assert settled(mark=Mark(5, 1)).epoch == 3
    assert settled(store_id=8).epoch == 0


def test_a_journal_that_the_writer_has_voided_does_not_count() -> None:
    found = settled(mark=Mark(1, 3, 2, 2, old=10, new=10))
    assert (found.position(), found.life, found.number) == (Position(10), 1, 2)


def test_a_reset_counts_before_and_after_it_was_taken_in() -> None:
    fold = attrs.evolve(JOURNAL, base=4, acked=[], reset=3, number=3)
    assert settled(fold, Mark(0, 3, 2, 2, old=12, new=20), committed=20).position() == Position(4)
    assert settled(fold, Mark(0, 3, 2, 3, old=20, new=4), committed=20).is_reset
    assert settled(fold, Mark(0, 3, 3, 3, old=20, new=4), committed=4).position() == Position(4)


def test_refusals_count_as_consumed_once_they_are_taken_in() -> None:
    fold = attrs.evolve(JOURNAL, nacks={1: Nack(1, 20, 0, 0), 2: Nack(2, 40, 0, 0)})
    mark = Mark(0, 3, 1, 2, old=10, new=20)
    assert settled(fold, mark).position() == Position(21, ((25, 30),), frozenset({40}))


def test_an_offset_that_the_opening_set_back_is_nobody_elses() -> None:
    mark = Mark(0, 3, old=18, new=20)
    found = settled(mark=mark, committed=15, end=15)
    assert found.fold is not None
    assert found.moved
    assert settled(mark=mark, committed=15, end=16).fold is None
