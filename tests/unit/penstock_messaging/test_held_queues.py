"""The queues that a consumer has; most of it is tested through `Consumer`."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import Members

import penstock
from penstock import LostQueueError, Message
from penstock.store.store import Store
from penstock_messaging.consuming.held_queues import HeldQueues


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "store") as opened:
        opened.put_many([Message("orders", b"x", queue=n % 3) for n in range(9)])
        yield opened


def test_one_queue_that_is_lost_does_not_keep_others_from_being_recorded(store: Store) -> None:
    members = Members(store)
    with members() as consumer:
        held: HeldQueues = consumer._held
        consumer.ack(consumer.poll(9), sync=False)
        lost = members.journal(queue=0).owner

        def sync(_: int) -> None:
            raise LostQueueError("orders", 0)

        lost.sync = sync
        held.record()
        assert [members.journal(queue=n).synced > 0 for n in range(3)] == [False, True, True]
        held.settle()
        assert consumer.assignment() == [("orders", 1), ("orders", 2)]


def test_all_queues_are_given_back_before_an_error_of_one_is_raised(store: Store) -> None:
    members = Members(store)
    consumer = members()
    failing: Any = members.journal(queue=1).owner
    give_back = failing.hand_back

    def hand_back() -> None:
        give_back()
        raise OSError(errno.EIO, "the disk fails")

    failing.hand_back = hand_back
    with pytest.raises(OSError, match="the disk fails"):
        consumer.close()
    assert [members.journal(queue=n).owner for n in range(3)] == [None, None, None]
    assert members.group.members == []


def test_a_queue_that_is_taken_after_the_close_is_given_back(store: Store) -> None:
    members = Members(store)
    with members() as consumer:
        owned = members.journal(queue=0).owner
    owned.is_back = False
    consumer._held.take(owned)
    assert owned.is_back
    assert consumer.assignment() == []
