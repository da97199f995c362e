"""A queue in its owner's hands: answers count until it is lost."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.group_story import GROUP, SETTINGS, TOPIC, services, take

from penstock.errors import LostQueueError
from penstock.files import Files
from penstock.testing import ManualClock
from penstock.testing.kit import open_store
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.owned_queue import GROUP_SETTING, OwnedQueue
from penstock_messaging.groups.taking import Groups


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Return those of a store with twenty messages."""
    with open_store(tmp_path / "store", **SETTINGS) as store:
        for number in range(20):
            store.put(TOPIC, b"%d" % number)
        yield services(store, Files(), ManualClock())[0]


def now(groups: Groups) -> Position:
    """Return the group's position as others see it."""
    known = groups.position(GROUP, TOPIC, 0)
    assert known is not None
    return known


def test_every_kind_of_answer_counts_for_the_next_owner(groups: Groups) -> None:
    owned = take(groups)
    assert (owned.epoch, owned.position) == (1, Position(0))
    owned.ack([0, 1, 2], 0)
    owned.ack([5, 6, 9], 3)
    owned.nack(4, 0, GROUP_SETTING, 3)
    owned.retry(3, 2, 3)
    owned.sync(owned.ack([], 3))
    assert now(groups) == Position(3, ((5, 7), (9, 10)), frozenset({4}), {3: 2})
    owned.hand_back()
    after = take(groups)
    assert (after.epoch, after.position) == (2, now(groups))
    after.advance(8)
    assert now(groups) == Position(8, ((9, 10),), frozenset({4}))
    after.reset(1)
    assert now(groups) == Position(1)


def test_a_queue_has_one_owner(groups: Groups) -> None:
    owned = take(groups)
    assert groups.take(GROUP, TOPIC, 0, member="x", begin=lambda: 0) is None
    assert str(os.getpid()) in str(groups.holder(GROUP, TOPIC, 0))
    owned.hand_back()
    assert groups.holder(GROUP, TOPIC, 0) is None


CALLS: list[Callable[[OwnedQueue], object]] = [
    lambda q: q.ack([1], 0), lambda q: q.ack([1, 3], 0), lambda q: q.ack([], 0),
    lambda q: q.nack(1, 0, 0, 0), lambda q: q.retry(1, 1, 0), lambda q: q.reset(0), lambda q: q.advance(1),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_answer_after_the_queue_was_handed_back_is_refused(
    call: Callable[[OwnedQueue], object], groups: Groups
) -> None:
    owned = take(groups)
    ticket = owned.ack([0], 0)
    owned.hand_back()
    owned.sync(ticket)
    with pytest.raises(LostQueueError, match="handed back"):
        call(owned)
    owned.hand_back()
    assert now(groups) == Position(1)


def test_an_owner_with_an_old_epoch_is_refused(groups: Groups) -> None:
    """Somebody removed the lock file, so that another process could take the queue."""
    owned = take(groups)
    groups.paths(GROUP).queue_lock(TOPIC, 0).unlink()
    other = take(groups)
    assert other.epoch == 2
    ticket = owned.ack([0], 0)
    with pytest.raises(LostQueueError):
        owned.sync(ticket)
    owned.check_lock()
    assert owned.is_lost
    assert "replaced its journal" in owned.lost_reason
    assert now(groups) == Position(0)
    owned.hand_back()
    assert other.position == Position(0)
    assert other.lost_reason == ""
    other.sync(other.ack([0], 0))


def test_a_lost_queue_says_why(groups: Groups) -> None:
    owned = take(groups)
    owned.lose("its topic was deleted")
    with pytest.raises(LostQueueError, match="its topic was deleted") as caught:
        owned.ack([0], 0)
    assert (caught.value.topic, caught.value.queue) == (TOPIC, 0)
    owned.hand_back()
    assert now(groups) == Position(0)


def test_a_forked_child_can_neither_answer_nor_keep_the_queue(groups: Groups) -> None:
    owned = take(groups)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            owned.ack([0], 0)
        except LostQueueError:
            code = 0
        # The parent lets go while this process lives.
        os.read(read, 1)
        os._exit(code)
    owned.hand_back()
    again = take(groups)
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert again.position == Position(0)
    os.close(read)
    os.close(write)


def test_an_answer_to_a_message_of_a_new_topic_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """Until the owner's next look it had the queue of the deleted topic: its acknowledgement was durable, and did not count."""
    with open_store(tmp_path / "store", **SETTINGS) as store:
        store.put(TOPIC, b"old")
        groups = Groups(
            services(store, Files(), ManualClock())[0].context, store, life=store.topic_life
        )
        owned = take(groups)
        owned.sync(owned.ack([0], 0))
        store.remove_topic(TOPIC)
        store.put(TOPIC, b"new")
        with pytest.raises(LostQueueError, match="its topic was deleted"):
            owned.sync(owned.ack([0], 0))
        assert owned.is_lost
        owned.hand_back()
        assert take(groups).position == Position(0)
