"""Messages that request more than to be stored, as the kernel passes them on."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.errors import MessageError, PluginError
from penstock.message import Message
from penstock.write.rewriting import add_rewritten, is_plain, rewritten


def batch(rewrite: Any = None) -> Batch:
    encoder = RecordEncoder(
        bytes(8), crc_property=False, body_bytes_max=100,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0), time_ms=lambda: 77,
    )  # fmt: skip
    encoder.rewrite = rewrite
    return Batch(encoder)


@pytest.mark.parametrize("level", [0, False, np.int64(0)])
def test_a_level_of_zero_requests_nothing(level: Any) -> None:
    made = batch()
    if level is False:
        with pytest.raises(MessageError, match="delay_level"):
            made.add(Message("t", b"x", delay_level=level))
        return
    made.add(Message("t", b"x", delay_level=level))
    assert len(made) == 1


@pytest.mark.parametrize("level", ["3", 1.5, None, 1 << 70])
def test_a_level_that_is_no_number_of_a_message_is_refused(level: Any) -> None:
    made = batch(lambda m: m)
    with pytest.raises(MessageError, match="delay_level"):
        made.add(Message("t", b"x", delay_level=level))
    assert len(made) == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"delay_ms": "3"}, "delay_ms"),
        ({"delay_ms": None}, "delay_ms"),
        ({"delay_ms": 1 << 70}, "delay_ms"),
        ({"deliver_at": "tomorrow"}, "deliver_at"),
        ({"deliver_at": float("nan")}, "deliver_at"),
        ({"deliver_at": datetime(2026, 1, 1)}, "with a time zone"),
    ],
)
def test_a_time_that_is_none_is_refused(given: dict[str, Any], reason: str) -> None:
    made = batch(lambda m: m)
    with pytest.raises(MessageError, match=reason):
        made.add(Message("t", b"x", **given))
    assert len(made) == 0


def test_an_extension_gets_a_time_in_milliseconds() -> None:
    seen: list[Message] = []

    def keep(message: Message) -> Message:
        seen.append(message)
        return Message("t", b"")

    for at in (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000, 1_767_225_599_999.5):
        batch(keep).add(Message("t", b"x", deliver_at=at))
    assert [message.deliver_at for message in seen] == [1_767_225_600_000] * 3


def test_what_takes_its_place_is_stored_as_a_message_or_as_a_copy() -> None:
    made = batch(lambda m: m.__replace__(queue=3))
    made.add(Message("t", b"x", queue=None))
    assert [cursor.queue for cursor in made.cursors] == [3]
    made = batch(lambda m: (Message("later", m.body, queue=2), b"DELAY\x013\x02"))
    add_rewritten(made, Message("t", b"x", delay_level=3))
    assert [(cursor.topic, cursor.queue) for cursor in made.cursors] == [("later", 2)]


def test_without_anyone_to_ask_it_is_refused() -> None:
    with pytest.raises(MessageError, match="no extension is used here"):
        rewritten(batch(), Message("t", b"x", partition_key="k"))


def test_an_answer_that_requests_more_is_refused_and_does_not_go_round_in_circles() -> None:
    for answer in (lambda m: m, lambda m: (m, b"")):
        made = batch(answer)
        with pytest.raises(PluginError, match="still has"):
            made.add(Message("t", b"x", queue=None))
        assert len(made) == 0


def test_plain_means_a_queue_and_no_request() -> None:
    assert is_plain(Message("t", b""))
    assert not is_plain(Message("t", b"", queue=None))
    assert not is_plain(Message("t", b"", delay_level=1))
    assert not is_plain(Message("t", b"", delay_ms=1))
    assert not is_plain(Message("t", b"", deliver_at=0))
    assert not is_plain(Message("t", b"", partition_key=""))
