"""The queues that a consumer has; most of it is tested through `Consumer`."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import Members

import penstock
from penstock import LostQueueError, Message, StorageError
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


@pytest.mark.parametrize("call", ["advance", "sync"])
def test_a_full_disk_is_noted_and_the_consumer_goes_on(
    call: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the consumer for good, and the acknowledgements of other queues were never synced."""
    members = Members(store)
    with members() as consumer:
        consumer.ack(consumer.poll(9), sync=False)
        broken: Any = members.journal(queue=0).owner

        def fail(_: int) -> None:
            raise StorageError("no space left")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broken, call, fail)
            members.workers.run_all()
            members.workers.run_all()
        assert caplog.text.count("no space left") == 1
        assert [members.journal(queue=n).synced > 0 for n in (1, 2)] == [True, True]
        members.workers.run_all()
        assert members.journal(queue=0).base == 3
        store.put("orders", b"more")
        (message,) = consumer.poll(1, 5)
        message.ack()
        assert 3 in members.journal(queue=0).acked


def test_a_queue_that_is_given_back_while_the_disk_fails_does_not_end_the_consumer(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    members = Members(store)
    with members() as consumer:
        failing: Any = members.journal(queue=1).owner
        give_back = failing.hand_back

        def hand_back() -> None:
            give_back()
            raise StorageError("the disk fails")

        failing.hand_back = hand_back
        consumer._held.want_back(failing)
        assert "the disk fails" in caplog.text
        assert consumer.assignment() == [("orders", 0), ("orders", 2)]
        members.workers.run_all()
        assert consumer.poll(1)


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
