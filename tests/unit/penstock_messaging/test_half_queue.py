"""Which half messages are open, in queues as a broker and a killed process leave them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Message, Store
from penstock.testing import ManualClock, open_store
from penstock_messaging.prepared.half_message import (
    HALF_TOPIC,
    OP_TOPIC,
    PROGRESS_GROUP,
    half_message,
    removal,
)
from penstock_messaging.prepared.half_queue import (
    messages_from,
    progress,
    read_open,
    removals_done,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "s") as store:
        yield store


def prepare(store: Store, body: bytes, more: bytes = b"", name: str = "", born_ms: int = 5) -> None:
    message = Message("orders", body, born_time_ms=born_ms)
    copy, text = half_message(message, "shop", name or body.decode())
    store.put_copies([(copy, text + more)])


def finish(store: Store, body: bytes) -> None:
    _, text = removal(0)
    store.put_copies([(Message(OP_TOPIC, body), text)])


def open_ones(store: Store) -> list[tuple[str, int]]:
    return [(half.facts.transaction_id, half.offset) for half in read_open(store)]


def test_what_no_removal_names_is_open(store: Store) -> None:
    assert open_ones(store) == []
    for body in (b"a", b"b", b"c", b"d", b"e"):
        prepare(store, body)
    finish(store, b"1")
    finish(store, b"3,4,")
    assert open_ones(store) == [("a", 0), ("c", 2)]
    store.commit_offset(PROGRESS_GROUP, HALF_TOPIC, offset=2)
    assert open_ones(store) == [("c", 2)]
    store.commit_offset(PROGRESS_GROUP, OP_TOPIC, offset=2)
    assert open_ones(store) == [("c", 2), ("d", 3), ("e", 4)]


def test_of_a_checked_message_only_the_newest_copy_is_open(store: Store) -> None:
    """A broker that is killed in a round has written the copy, and not how far it is."""
    prepare(store, b"a")
    prepare(store, b"b")
    prepare(store, b"a", b"TRANSACTION_CHECK_TIMES\x011\x02")
    assert open_ones(store) == [("b", 1), ("a", 2)]
    prepare(store, b"a", b"TRANSACTION_CHECK_TIMES\x012\x02")
    finish(store, b"3")
    assert open_ones(store) == [("b", 1)]
    # Two of one id without checks are two messages: a producer has sent one again.
    prepare(store, b"b")
    assert open_ones(store) == [("b", 1), ("b", 4)]


def test_a_copy_of_a_message_that_was_born_in_the_future_replaces_it(tmp_path: Path) -> None:
    """Of a producer whose clock is ahead: after a crash in a check both were open, and a check-back committed both."""
    clock = ManualClock()
    with open_store(tmp_path / "ahead", clock=clock) as store:
        born_ms = clock.now_ms + 5000
        prepare(store, b"a", born_ms=born_ms)
        clock.now_ms += 1000
        prepare(store, b"a", b"TRANSACTION_CHECK_TIMES\x011\x02", born_ms=born_ms)
        assert open_ones(store) == [("a", 1)]


def test_a_copy_of_a_message_under_immunity_is_finished_with_its_first(store: Store) -> None:
    prepare(store, b"a")
    prepare(store, b"a", b"TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x011\x02")
    finish(store, b"0,")
    assert open_ones(store) == []


def test_progress_that_the_queue_does_not_have_is_moved_into_it(store: Store) -> None:
    assert progress(store, HALF_TOPIC) == 0
    prepare(store, b"a")
    store.commit_offset(PROGRESS_GROUP, HALF_TOPIC, offset=1)
    assert progress(store, HALF_TOPIC) == 1


def test_a_long_queue_is_read_to_its_end(store: Store) -> None:
    for n in range(600):
        finish(store, b"%d" % n)
    assert len(list(messages_from(store, OP_TOPIC, 7))) == 593
    assert removals_done(store, 0, 599) == 599
    assert removals_done(store, 500, 600) == 600
    assert removals_done(store, 0, 0) == 0
