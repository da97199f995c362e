"""Answers; what becomes of messages is tested through `Consumer`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import Members

import penstock
from penstock import ArgumentError, ArgumentTypeError, LostQueueError, Message, StorageError
from penstock.store.store import Store
from penstock_messaging.consuming.answers import BY_RULE, RetryRules, checked_level
from penstock_messaging.consuming.queue_rights import GROUP_TRIES


def test_levels() -> None:
    assert [checked_level(each) for each in (None, 1, 18)] == [BY_RULE, 1, 18]
    for wrong in (0, 19, -1):
        with pytest.raises(ArgumentError):
            checked_level(wrong)
    with pytest.raises(ArgumentTypeError):
        checked_level("3")


def test_the_last_attempt_is_the_one_after_all_retries() -> None:
    by_group = RetryRules(None, lambda: 2, lambda level: level)
    assert [by_group.is_last(attempt) for attempt in (1, 2, 3)] == [False, False, True]
    assert by_group.tries == GROUP_TRIES
    own = RetryRules(0, lambda: 2, lambda level: level)
    assert own.is_last(1)
    assert own.tries == 0


def test_an_ordered_queue_waits_a_second_or_the_level() -> None:
    rules = RetryRules(None, lambda: 2, lambda level: level * 7)
    assert (rules.pause_ns(BY_RULE), rules.pause_ns(3)) == (1_000_000_000, 21_000_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a store with two messages in each of three queues."""
    with penstock.open(tmp_path / "store") as opened:
        opened.put_many([Message("orders", b"x", queue=n % 3) for n in range(6)])
        yield opened


@pytest.mark.parametrize("answer", ["ack", "nack"])
@pytest.mark.parametrize("fails", ["record", "sync"])
@pytest.mark.parametrize("kind", [LostQueueError, StorageError])
def test_a_queue_that_cannot_be_written_does_not_keep_the_answers_of_others_from_being_durable(
    kind: type[Exception], fails: str, answer: str, store: Store
) -> None:
    """The first failure ended the call: the messages of later queues had no answer, or one that was not on disk."""
    members = Members(store)
    with members() as consumer:
        messages = consumer.poll(6)
        broken: Any = members.journal(queue=0).owner

        def fail(*_: object) -> int:
            raise kind("orders", 0)

        setattr(broken, answer if fails == "record" else "sync", fail)
        with pytest.raises(kind):
            getattr(consumer, answer)(messages)
        for queue in (1, 2):
            journal = members.journal(queue=queue)
            assert journal.acked | set(journal.nacked) == {0, 1}
            assert journal.synced == journal.records
        assert not [each for each in consumer.pending() if each.queue]
