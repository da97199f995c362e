"""What goes in and what comes out: words with RocketMQ's names, and messages that are values."""

import pickle

import pytest
from tests.conftest import OpenStore

from penstock.format.record import RecordFields, encode_record
from penstock.message import (
    Message,
    PutStatus,
    ReadResult,
    ReadStatus,
    StoredMessage,
    StoreStats,
)
from penstock.testing import ManualWorkers


def test_statuses_are_rocketmqs_words() -> None:
    assert [*PutStatus] == [
        "PUT_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE",
    ]  # fmt: skip
    assert all(status == status.name for status in ReadStatus)


def test_a_message_has_defaults_that_ask_for_nothing() -> None:
    message = Message("t", b"x", queue=0)
    assert (message.queue, message.tag, tuple(message.keys), dict(message.properties)) == (
        0,
        "",
        (),
        {},
    )


def test_a_stored_message_is_what_its_record_says() -> None:
    record = encode_record(
        RecordFields(
            topic=b"t",
            body=b"body",
            queue=3,
            queue_offset=5,
            log_offset=7,
            store_time_ms=11,
            properties=b"TAGS\x01red\x02KEYS\x01a b\x02n\x011\x02",
        )
    )
    message = StoredMessage(record)
    assert (message.topic, message.body, message.queue, message.queue_offset) == ("t", b"body", 3, 5)  # fmt: skip
    assert (message.log_offset, message.store_time_ms, message.size) == (7, 11, len(record))
    assert (message.tag, message.keys, message.properties) == ("red", ("a", "b"), {"n": "1"})
    assert pickle.loads(pickle.dumps(message)) == message


def test_bytes_that_are_no_record_are_no_message() -> None:
    with pytest.raises(ValueError, match="at least 91 bytes"):
        StoredMessage(b"no record")


def test_a_read_says_where_to_go_on_and_what_there_is() -> None:
    result = ReadResult(ReadStatus.FOUND, [], 5, 2, 9)
    assert (result.next_offset, result.min_offset, result.max_offset) == (5, 2, 9)


@pytest.mark.parametrize(
    ("status", "following", "high", "at_end", "out_of_range"),
    [
        (ReadStatus.FOUND, 3, 10, False, False), (ReadStatus.FOUND, 10, 10, True, False),
        (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, True, False), (ReadStatus.OFFSET_OVERFLOW_ONE, 10, 10, True, False),
        (ReadStatus.OFFSET_OVERFLOW_BADLY, 10, 10, True, True), (ReadStatus.OFFSET_TOO_SMALL, 5, 10, False, True),
        (ReadStatus.NO_MATCHED_MESSAGE, 10, 10, True, False), (ReadStatus.OFFSET_FOUND_NULL, 8, 10, False, False),
        (ReadStatus.MESSAGE_WAS_REMOVING, 9, 10, False, False),
    ],
)  # fmt: skip
def test_a_result_says_in_two_words_what_the_statuses_mean(
    status: ReadStatus, following: int, high: int, at_end: bool, out_of_range: bool
) -> None:
    found = ReadResult(status, [], following, 5, high)
    assert (found.at_end, found.out_of_range) == (at_end, out_of_range)


def test_the_figures_of_a_store_are_those_that_their_type_names(open_small: OpenStore) -> None:
    with open_small(spawn=ManualWorkers()) as store:
        store.put("t", b"x", queue=0)
        figures = store.stats()
        assert set(figures) == set(StoreStats.__annotations__)
        assert isinstance(figures, dict)
        path = store.path
    with open_small(path=path, read_only=True) as reader:
        assert set(reader.stats()) == set(StoreStats.__required_keys__)
