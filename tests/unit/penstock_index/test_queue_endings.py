"""Which records without an entry need none: of a deleted topic, or of an ended generation of one made again."""

from typing import Any

import numpy as np

from penstock.contracts.history import NO_HISTORY, NoHistory
from penstock_index.queue_endings import Endings

KEY, OTHER = ("t", 0), ("t", 1)


class Deleted(NoHistory):
    """A history in which no topic is listed, and a broker wrote all but what is at `ours`."""

    def __init__(self, *ours: int) -> None:
        self.ours = ours

    def is_unlisted(self, topic: str) -> bool:
        return True

    def are_ours(self, log_offsets: Any) -> Any:
        return np.isin(log_offsets, self.ours)

    def may_have_ours(self, first: int, last: int) -> bool:
        return any(first <= at <= last for at in self.ours)

    def is_one_run(self, first: int, last: int) -> bool:
        return False


def gone(endings: Endings, *offsets: int, key: tuple[str, int] = KEY) -> list[bool]:
    found: list[bool] = endings.need_no_entry(key, np.array(offsets)).tolist()
    return found


def test_where_nothing_was_deleted_every_record_needs_its_entry() -> None:
    endings = Endings(NO_HISTORY)
    endings.take(KEY, 0, np.array([10, 20]), None)
    assert gone(endings, 10, 20) == [False, False]


def test_records_of_a_topic_that_is_not_listed_need_none() -> None:
    endings = Endings(Deleted())
    endings.take(KEY, 0, np.array([10, 20]), None)
    assert gone(endings, 10, 20) == [True, True]


def test_from_what_penstock_put_on_every_queue_of_the_topic_is_kept() -> None:
    endings = Endings(Deleted(50))
    endings.take(KEY, 0, np.array([10, 20]), None)
    endings.take(KEY, 0, np.array([50]), None)
    endings.take(OTHER, 0, np.array([60]), None)
    assert gone(endings, 10, 20, 50) == [True, True, False]
    assert gone(endings, 60, key=OTHER) == [False]


def test_a_queue_made_again_tells_of_the_others() -> None:
    class Broker(Deleted):
        def is_unlisted(self, topic: str) -> bool:
            return False

    endings = Endings(Broker())
    endings.take(OTHER, 0, np.array([10, 20]), None)
    endings.take(KEY, 0, np.array([15]), (0, 100))
    assert gone(endings, 10, 20, key=OTHER) == [True, True]


def test_an_entry_that_survives_keeps_what_follows_it() -> None:
    endings = Endings(Deleted())
    endings.take(OTHER, 0, np.array([10, 70]), None)
    endings.keep("t", 50)
    assert gone(endings, 10, 70, key=OTHER) == [False, False], (
        "one generation that goes on behind it"
    )
    apart = Endings(Deleted())
    apart.take(OTHER, 0, np.array([10]), None)
    apart.take(OTHER, 0, np.array([70]), None)
    apart.keep("t", 50)
    assert gone(apart, 10, 70, key=OTHER) == [True, False]
