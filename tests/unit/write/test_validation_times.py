"""What a message gets that names no time."""

import itertools

from tests.conftest import OpenStore

from penstock import Message
from penstock.runtime.clock import Clock


class Ticking(Clock):
    """A clock that is a millisecond later each time it is asked."""

    def __init__(self) -> None:
        self._times = itertools.count(1_700_000_000_000)

    def time_ms(self) -> int:
        return next(self._times)


def test_messages_of_a_batch_that_name_no_time_are_born_when_it_is_put(
    open_small: OpenStore,
) -> None:
    clock = Ticking()
    with open_small(clock=clock) as store:
        before = clock.time_ms()
        receipts = store.put_many([Message("t", b"a"), Message("t", b"b", born_time_ms=7)])
        first, second = store.scan("t")
    assert before < first.born_time_ms <= receipts[0].store_time_ms
    assert second.born_time_ms == 7
