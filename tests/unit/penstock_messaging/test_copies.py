"""What a broker stores when a group refuses a message: spec section 3.2 of the broker."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Message, StoredMessage
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.delays.schedule import delivered
from penstock_messaging.properties_text import pairs_of, stored_text
from penstock_messaging.retries.copies import (
    Origin,
    dead_letter_topic,
    first_topic,
    lesser_letters,
    origin,
    retry_copy,
    retry_level,
    retry_topic,
)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path, spawn=ManualWorkers()) as opened:
        yield opened


def put(store: Store, message: Message, text: bytes) -> StoredMessage:
    return store.at(store.put_copies([(message, text)])[0].log_offset)


def refuse(store: Store, message: StoredMessage, **options: Any) -> StoredMessage:
    made = retry_copy(message, "CGR2", **options)
    assert made is not None
    return put(store, *made)


def test_the_sequence_that_was_measured_at_a_broker(store: Store) -> None:
    """T8 with one retry at level 1: waits, is retried, is a dead letter."""
    first = put(
        store,
        Message("T8", b"body", queue=2, flag=5, born_time_ms=77, born_host="10.1.1.1:8"),
        b"a\x01b\x02",
    )
    waiting = refuse(store, first, level=1, max_tries=1)
    expected = {
        b"a": b"b", b"RETRY_TOPIC": b"T8", b"ORIGIN_MESSAGE_ID": first.message_id.encode(), b"WAIT": b"false",
        b"DELAY": b"1", b"REAL_TOPIC": b"%RETRY%CGR2", b"REAL_QID": b"0",
    }  # fmt: skip
    assert (waiting.topic, waiting.queue, waiting.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 0, 1)
    assert list(pairs_of(stored_text(waiting)).items()) == list(expected.items())
    retried = put(store, *delivered(waiting))
    assert (retried.topic, retried.queue, retried.reconsume_times) == ("%RETRY%CGR2", 0, 1)
    assert stored_text(retried) == stored_text(waiting)
    dead = refuse(store, retried, level=1, max_tries=1)
    assert (dead.topic, dead.queue, dead.reconsume_times) == ("%DLQ%CGR2", 0, 2)
    assert pairs_of(stored_text(dead)) == expected | {b"DELAY": b"0"}
    for copy in (waiting, retried, dead):
        assert (copy.body, copy.flag, copy.born_time_ms, copy.born_host, copy.prepared_offset) == (b"body", 5, 77, "10.1.1.1:8", 0)  # fmt: skip


def test_sixteen_tries_wait_longer_each_time_and_end_as_a_dead_letter(store: Store) -> None:
    message = put(store, Message("T", b""), b"")
    first_id, levels = message.message_id, []
    for tries in range(16):
        assert origin(message) == Origin(first_id, tries)
        waiting = refuse(store, message)
        levels.append(waiting.queue + 1)
        assert pairs_of(stored_text(waiting))[b"DELAY"] == b"%d" % levels[-1]
        message = put(store, *delivered(waiting))
        assert (message.topic, first_topic(message)) == ("%RETRY%CGR2", "T")
    assert levels == [*range(3, 19)]
    dead = refuse(store, message)
    assert (dead.topic, dead.reconsume_times, origin(dead)) == (
        "%DLQ%CGR2",
        17,
        Origin(first_id, 17),
    )
    assert first_topic(dead) == "T"


@pytest.mark.parametrize(
    ("level", "queue"), [(None, 2), (0, 2), (1, 0), (18, 17), (19, 17), (1 << 70, 17)]
)
def test_the_level_is_the_requested_one_at_most_the_last(
    store: Store, level: int | None, queue: int
) -> None:
    assert refuse(store, put(store, Message("T", b""), b""), level=level).queue == queue


@pytest.mark.parametrize("tries", [0, 3])
def test_a_level_below_0_makes_a_dead_letter_at_once(store: Store, tries: int) -> None:
    message = put(store, Message("T", b"", reconsume_times=tries), b"")
    dead = refuse(store, message, level=-1)
    assert (dead.topic, dead.reconsume_times) == (dead_letter_topic("CGR2"), tries + 1)
    assert b"REAL_TOPIC" not in pairs_of(stored_text(dead))


@pytest.mark.parametrize("queues", [0, -1])
def test_a_group_without_retry_queues_stores_nothing(store: Store, queues: int) -> None:
    message = put(store, Message("T", b""), b"")
    assert retry_copy(message, "g", retry_queues=queues) is None
    assert retry_copy(message, "g", level=-1, retry_queues=queues) is None


def test_retries_are_spread_over_the_queues_and_a_retry_made_twice_is_the_same(
    store: Store,
) -> None:
    messages = [put(store, Message("T", b""), b"") for _ in range(64)]
    copies = [retry_copy(message, "g", retry_queues=4) for message in messages]
    assert [copy and copy[1] for copy in copies] == [
        copy and copy[1] for copy in (retry_copy(m, "g", retry_queues=4) for m in messages)
    ]
    queues = [pairs_of(copy[1])[b"REAL_QID"] for copy in copies if copy]
    assert set(queues) == {b"0", b"1", b"2", b"3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01AB\x02", (b"first", b"AB")),
        (b"ORIGIN_MESSAGE_ID\x01  \x02", (b"T", None)),
        (b"RETRY_TOPIC\x01\xff\x02", (b"\xff", None)),
    ],
)
def test_the_first_topic_and_id_stay(
    store: Store, text: bytes, expected: tuple[bytes, bytes | None]
) -> None:
    message = put(store, Message("T", b""), text)
    pairs = pairs_of(stored_text(refuse(store, message)))
    topic, first_id = expected
    assert pairs[b"RETRY_TOPIC"] == topic
    assert pairs[b"ORIGIN_MESSAGE_ID"] == (first_id or message.message_id.encode())


def test_the_caller_may_name_the_origin(store: Store) -> None:
    message = put(store, Message("T", b""), b"")
    assert (
        pairs_of(stored_text(refuse(store, message, message_id="77")))[b"ORIGIN_MESSAGE_ID"]
        == b"77"
    )


def test_what_a_record_may_hold_does_not_break_a_copy(store: Store) -> None:
    """A count at the field's end, a committed transaction, a compressed body, a tag: all are copied."""
    most = (1 << 31) - 1
    message = put(
        store, Message("T", b"z", reconsume_times=most, sys_flag=0x9), b"TAGS\x01t\x02KEYS\x01k\x02"
    )
    dead = refuse(store, message)
    assert (dead.reconsume_times, dead.sys_flag, dead.tag, dead.keys) == (most, 0x9, "t", ("k",))
    negative = put(store, Message("T", b"", reconsume_times=-5), b"")
    assert (refuse(store, negative).queue, retry_level(-5)) == (2, 3)


def test_topics_of_a_group() -> None:
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_a_letter_for_which_there_is_little_room_gives_up_one_property_after_the_other(
    store: Store,
) -> None:
    message = put(store, Message("T8", b"body"), b"a\x01b\x02WAIT\x01true\x02")
    retry = retry_copy(message, "g")
    assert retry is not None
    forms = list(lesser_letters(message, "g", retry))
    assert forms.pop()[0].body == b""
    assert {(copy.topic, copy.queue, copy.body, copy.reconsume_times) for copy, _ in forms} == {("%DLQ%g", 0, b"body", 1)}  # fmt: skip
    assert [list(pairs_of(text)) for _, text in forms] == [
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DELAY", b"DEAD_LETTER_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DELAY", b"DEAD_LETTER_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DEAD_LETTER_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"],
        [b"a", b"WAIT", b"RETRY_TOPIC"],
        [b"a", b"WAIT"],
        [b"a", b"WAIT"],
        [b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DEAD_LETTER_REASON"],
    ]
    assert pairs_of(forms[0][1])[b"WAIT"] == b"false"
    assert forms[5][1] == forms[6][1] == stored_text(message)
    assert origin(put(store, *forms[-1])) == Origin(message.message_id, 1)
