"""What is stored for a delayed message, and what is delivered: spec section 1.2 of the broker."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Message, MessageError, PropertyError, StoredMessage
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.delays.schedule import delivered, destination, scheduled, waiting_copy
from penstock_messaging.properties_text import pairs_of, stored_text


def accept(message: Message) -> None:
    """Refuse nothing."""


def stored(root: Path, message: Message, text: bytes) -> StoredMessage:
    """Return a copy as a store has it."""
    with open_store(root, clock=ManualClock(), spawn=ManualWorkers()) as store:
        receipt = store.put_copies([(message, text)])[0]
        return store.at(receipt.log_offset)


def test_a_delayed_message_waits_with_its_topic_and_queue_in_its_properties() -> None:
    message = Message(
        "T1", b"body", queue=3, tag="t", keys=["a", "b"], properties={"x": "y"}, delay_level=1,
        flag=7, born_time_ms=5, born_host="10.0.0.1:99", reconsume_times=2, wait=False, sys_flag=8,
    )  # fmt: skip
    waiting, text = scheduled(message, accept)
    assert waiting == Message(
        "SCHEDULE_TOPIC_XXXX", b"body", queue=0, flag=7, born_time_ms=5, born_host="10.0.0.1:99",
        reconsume_times=2, wait=False, sys_flag=8,
    )  # fmt: skip
    assert text == (
        b"TAGS\x01t\x02KEYS\x01a b\x02x\x01y\x02DELAY\x011\x02REAL_TOPIC\x01T1\x02REAL_QID\x013\x02"
    )


@pytest.mark.parametrize(
    ("level", "stored_level"),
    [(1, 1), (2, 2), (17, 17), (18, 18), (19, 18), (99, 18), (1 << 62, 18)],
)
def test_a_level_above_the_last_is_clamped_in_the_text_as_well(
    level: int, stored_level: int
) -> None:
    waiting, text = scheduled(Message("t", b"", delay_level=level), accept)
    assert waiting.queue == stored_level - 1
    assert pairs_of(text)[b"DELAY"] == b"%d" % stored_level


@pytest.mark.parametrize("level", [-1, -(1 << 62)])
def test_a_negative_level_is_refused(level: int) -> None:
    with pytest.raises(MessageError, match=rf"delay_level {level} is refused: .* 1 to 18"):
        scheduled(Message("t", b"", delay_level=level), accept)


def test_what_could_not_be_put_without_a_delay_is_refused() -> None:
    asked = []

    def refuse(message: Message) -> None:
        asked.append(message)
        raise MessageError("no")

    with pytest.raises(MessageError, match="no"):
        scheduled(Message("t", b"", queue=4, tag="x", delay_level=3), refuse)
    assert asked == [Message("t", b"", queue=4, tag="x")]


def test_the_destination_cannot_be_given_as_a_property() -> None:
    given = {"REAL_TOPIC": "other", "REAL_QID": "9", "n": "1"}
    _, text = scheduled(Message("t", b"", delay_level=2, properties=given), accept)
    assert text == b"n\x011\x02DELAY\x012\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02"
    with pytest.raises(PropertyError, match="pass it as delay_level="):
        scheduled(Message("t", b"", delay_level=2, properties={"DELAY": "3"}), accept)


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
def test_the_delivered_copy_has_the_whole_text_and_the_birth_of_the_message(
    tmp_path: Path, checksum: str
) -> None:
    sent = Message(
        "T1", b"body", queue=3, tag="t", properties={"n": "1"}, delay_level=4, flag=-7,
        born_time_ms=5, born_host="[::1]:99", reconsume_times=2,
    )  # fmt: skip
    waiting, text = scheduled(sent, accept)
    with open_store(tmp_path, spawn=ManualWorkers(), log={"checksum": checksum}) as store:
        receipt = store.put_copies([(waiting, text)])[0]
        message = store.at(receipt.log_offset)
        copy, copied_text = delivered(message)
        assert copied_text == text
        after = store.at(store.put_copies([(copy, copied_text)])[0].log_offset)
    assert (after.topic, after.queue, after.body, after.tag) == ("T1", 3, b"body", "t")
    same: list[Any] = [
        (m.flag, m.sys_flag, m.born_time_ms, m.born_host, m.reconsume_times, stored_text(m))
        for m in (message, after)
    ]
    assert same[0] == same[1]
    assert same[0][:5] == (-7, 0x10, 5, "[::1]:99", 2)


def test_a_message_that_is_delivered_may_wait_again_with_its_new_destination() -> None:
    waiting, text = waiting_copy(
        Message("%RETRY%g", b"", queue=2), b"DELAY\x013\x02REAL_TOPIC\x01x\x02a\x01b\x02", 5
    )
    assert text == b"DELAY\x015\x02REAL_TOPIC\x01%RETRY%g\x02a\x01b\x02REAL_QID\x012\x02"
    assert (waiting.topic, waiting.queue) == ("SCHEDULE_TOPIC_XXXX", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"REAL_QID\x010\x02", "empty"),
        (b"REAL_TOPIC\x01t\x02", "REAL_QID b''"),
        (b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02", "not the number"),
        (b"REAL_TOPIC\x01t\x02REAL_QID\x01" + b"9" * 5000 + b"\x02", "not the number"),
        (b"REAL_TOPIC\x01t\x02REAL_QID\x01999999999\x02", "65535"),
        (b"REAL_TOPIC\x01../x\x02REAL_QID\x010\x02", "'/'"),
        (b"REAL_TOPIC\x01\xff\x02REAL_QID\x010\x02", "not UTF-8"),
        (b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02", "nothing is delivered"),
        (b"REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010\x02", "nothing is delivered"),
        (b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02", "nothing is delivered"),
    ],
)
def test_a_message_without_a_destination_is_refused(
    tmp_path: Path, text: bytes, reason: str
) -> None:
    with pytest.raises(MessageError, match=reason):
        destination(pairs_of(text))
    message = stored(tmp_path, Message("SCHEDULE_TOPIC_XXXX", b""), text)
    with pytest.raises(MessageError, match=reason):
        delivered(message)


def test_a_property_that_requests_a_delay_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path, spawn=ManualWorkers()) as store:
        for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
            with pytest.raises(PropertyError, match=r"delay_level=|deliver_at="):
                store.put("t", b"", properties={name: "3"})
