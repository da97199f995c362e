"""Where nothing is known of a log: no topic is deleted, and every record may be Penstock's."""

import numpy as np

from penstock.contracts.history import NO_HISTORY


def test_no_topic_counts_as_deleted() -> None:
    assert not NO_HISTORY.is_unlisted("t")


def test_every_record_may_be_ours_and_none_is_surely_so() -> None:
    assert NO_HISTORY.are_ours(np.arange(3)).tolist() == [True] * 3
    assert NO_HISTORY.are_ours(np.arange(0)).tolist() == []
    assert NO_HISTORY.may_have_ours(0, 9)
    assert not NO_HISTORY.is_one_run(0, 9)
