"""The records of prepared messages: what a broker writes, and what hostile ones say."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock import Message, StoredMessage
from penstock.errors import MessageError
from penstock.testing import open_store
from penstock_messaging.prepared.half_message import (
    DISCARD_TOPIC,
    HALF_TOPIC,
    checked_again,
    committed,
    discarded,
    facts_of,
    half_message,
    is_commit_of,
    refuse_delays,
    removal,
    removed_by,
)
from penstock_messaging.properties_text import pairs_of, text_of


def stored(path: Path, message: Message, text: bytes) -> StoredMessage:
    with open_store(path) as store:
        (receipt,) = store.put_copies([(message, text)])
        return store.at(receipt.log_offset)


def half_with(path: Path, properties: Mapping[bytes, bytes]) -> StoredMessage:
    return stored(path, Message(HALF_TOPIC, b"x"), text_of(properties))


def test_a_half_message_names_where_it_goes_and_its_commit_has_the_same_text(
    tmp_path: Path,
) -> None:
    message = Message(
        "orders", b"body", queue=3, tag="t", keys=("k", "l"), properties={"a": "b"}, flag=7,
        born_time_ms=5, born_host="10.0.0.1:99",
    )  # fmt: skip
    copy, text = half_message(message, "shop", "AB" * 16)
    assert (copy.topic, copy.queue, copy.sys_flag) == (HALF_TOPIC, 0, 0)
    assert pairs_of(text) == {
        b"TAGS": b"t", b"KEYS": b"k l", b"a": b"b", b"UNIQ_KEY": b"AB" * 16, b"__transactionId__": b"AB" * 16,
        b"TRAN_MSG": b"true", b"PGROUP": b"shop", b"REAL_TOPIC": b"orders", b"REAL_QID": b"3",
    }  # fmt: skip
    half = stored(tmp_path, copy, text)
    assert facts_of(half) == ("AB" * 16, "shop", "orders", 3, 0, None, -1)
    commit, same = committed(half)
    assert same == text
    assert commit == Message(
        "orders", b"body", queue=3, flag=7, born_time_ms=5, born_host="10.0.0.1:99", wait=False,
        sys_flag=8, prepared_offset=half.log_offset,
    )  # fmt: skip
    again, more = checked_again(half, 2)
    assert again.topic == HALF_TOPIC
    assert more == text + b"TRANSACTION_CHECK_TIMES\x012\x02"
    dropped, same = discarded(half)
    assert (dropped.topic, dropped.queue, same) == (DISCARD_TOPIC, 0, text)


def test_what_the_store_says_itself_a_caller_cannot_say() -> None:
    for name in ("PGROUP", "REAL_TOPIC", "TRAN_MSG", "UNIQ_KEY", "TRANSACTION_CHECK_TIMES"):
        with pytest.raises(MessageError, match=name):
            half_message(Message("orders", b"", properties={name: "x"}), "shop", "id")


@pytest.mark.parametrize("more", [{"delay_level": 3}, {"properties": {"TIMER_DELAY_SEC": "5"}}, {"properties": {"DELAY": "1"}}])  # fmt: skip
def test_a_delay_is_refused(more: Mapping[str, object]) -> None:
    """A broker would delay the half message itself, and never deliver it."""
    with pytest.raises(MessageError, match="nothing was stored"):
        refuse_delays(Message("orders", b"x", **more))  # type: ignore[arg-type] # as the test gives them


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "topic"), ({b"REAL_TOPIC": b"a/b", b"REAL_QID": b"0"}, "'/'"), ({b"REAL_TOPIC": b"\xff"}, "UTF-8"),
        ({b"REAL_TOPIC": HALF_TOPIC.encode(), b"REAL_QID": b"0"}, "nothing is committed"),
        ({b"REAL_TOPIC": b"rmq_sys_wheel_timer", b"REAL_QID": b"0"}, "nothing is committed"),
        ({b"REAL_TOPIC": b"t", b"REAL_QID": b"-1"}, "REAL_QID"), ({b"REAL_TOPIC": b"t", b"REAL_QID": b"9" * 5000}, "REAL_QID"),
        ({b"REAL_TOPIC": b"t", b"REAL_QID": b"70000"}, "queue"),
    ],
)  # fmt: skip
def test_a_half_message_of_another_program_that_can_go_nowhere_is_refused(
    tmp_path: Path, properties: Mapping[bytes, bytes], reason: str
) -> None:
    half = half_with(tmp_path, properties)
    with pytest.raises(MessageError, match=reason):
        committed(half)


def test_numbers_of_other_programs_are_numbers_or_nothing(tmp_path: Path) -> None:
    half = half_with(tmp_path, {
        b"REAL_QID": b"x", b"TRANSACTION_CHECK_TIMES": b"-4", b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"-1",
        b"TRAN_PREPARED_QUEUE_OFFSET": b"1e3", b"PGROUP": b"\xff",
    })  # fmt: skip
    assert facts_of(half) == (half.message_id, "\ufffd", "", -1, 0, None, -1)
    long = half_with(tmp_path, {b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"9" * 18})
    assert 0 < (facts_of(long).immunity_ms or 0) < 1 << 60
    short = half_with(tmp_path, {b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"30"})
    assert facts_of(short).immunity_ms == 30_000


@pytest.mark.slow
def test_removals_of_both_kinds_of_brokers_are_read(tmp_path: Path) -> None:
    copy, text = removal(42)
    assert removed_by(stored(tmp_path, copy, text)) == [42]
    for body, found in ((b"5,", [5]), (b"0,1,", [0, 1]), (b"", []), (b"-1", []), (b"x,7", [7])):
        assert removed_by(stored(tmp_path, Message("ops", body), text)) == found
    assert removed_by(stored(tmp_path, Message("ops", b"7"), b"TAGS\x01other\x02")) == []


def test_a_commit_is_known_by_its_type_and_the_half_messages_log_offset(tmp_path: Path) -> None:
    for sys_flag, offset, expected in ((8, 77, True), (8, 78, False), (0, 77, False), (12, 77, False)):  # fmt: skip
        message = Message("t", b"", sys_flag=sys_flag, prepared_offset=offset)
        assert is_commit_of(stored(tmp_path, message, b""), 77) is expected
