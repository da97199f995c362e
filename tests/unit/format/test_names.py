"""Which names may become folders and files of a store."""

import numpy as np
import pytest

from penstock.errors import LongTopicError, QueueError, TopicError
from penstock.format.names import check_queue, check_topic, is_waiting, segment_name, topic_of


def test_file_names() -> None:
    assert segment_name(3221225472) == "00000000003221225472"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"), (".", "outside"), ("..", "outside"), ("a/b", "'/'"), ("a\n", "control"), ("\x7f", "control"),
        ("\udcff", "UTF-8"), ("x" * 256, "256 UTF-8 bytes"), ("ö" * 128, "256 UTF-8 bytes"), (5, "not int"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_folder_is_no_topic_and_says_why(topic: object, reason: str) -> None:
    with pytest.raises(TopicError, match=reason):
        check_topic(topic)
    if isinstance(topic, str):
        assert topic_of(topic.encode("utf-8", "surrogateescape")) is None


def test_a_topic_may_be_as_long_as_a_file_name_unless_brokers_read_it() -> None:
    long = "x" * 128
    assert check_topic("x" * 255) == "x" * 255
    assert check_topic("x" * 127, long=False) == "x" * 127
    with pytest.raises(LongTopicError, match="128 bytes"):
        check_topic(long, long=False)
    assert topic_of(long.encode()) == long


def test_any_whole_number_in_bounds_is_a_queue() -> None:
    assert [check_queue(number) for number in (0, 65_535, np.int64(7))] == [0, 65_535, 7]
    assert type(check_queue(np.int64(7))) is int


@pytest.mark.parametrize("queue", [-1, 65_536, 1.0, "1", None, True])
def test_what_is_no_queue_number_is_refused_by_its_limit(queue: object) -> None:
    with pytest.raises(QueueError, match="0 to 65535"):
        check_queue(queue)


def test_topics_of_brokers_hold_what_is_not_delivered_or_committed() -> None:
    assert all(map(is_waiting, ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]))
    assert not any(map(is_waiting, ["orders", "%RETRY%g", "%DLQ%g", "schedule_topic_xxxx"]))
