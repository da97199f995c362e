"""The records of a prepared message, as a broker writes them. Pure functions.

A prepared message waits in `RMQ_SYS_TRANS_HALF_TOPIC` as a *half message*: its properties name the topic and queue that
it is for. Its commit is a copy in that queue, with the same properties text and the log offset of the half message. A
commit and a rollback both leave a *removal* in `RMQ_SYS_TRANS_OP_HALF_TOPIC`, whose body is the queue offset of the
half message: which of the two it was, only the copy tells.

Each check writes the half message again at the end of its queue, counts one check more, and removes the one before.
"""

import re
from typing import NamedTuple

from penstock import Message, StoredMessage
from penstock.errors import MessageError
from penstock.format.names import check_queue, check_topic, is_waiting
from penstock.format.properties import DELAYS, encode_properties
from penstock_messaging.properties_text import (
    REAL_QUEUE,
    REAL_TOPIC,
    flags_for_copy,
    pairs_of,
    stored_text,
    text_of,
)

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# Where a message goes that was checked too often.
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# Under the name of this group a broker keeps how far both queues are done.
PROGRESS_GROUP = "CID_RMQ_SYS_TRANS"

PREPARED, GROUP, UNIQUE, ID = b"TRAN_MSG", b"PGROUP", b"UNIQ_KEY", b"__transactionId__"
CHECKS, FIRST_OFFSET = b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
# Properties that a caller must not set: a commit, a check, or a broker that takes over would go by them.
_OF_THE_STORE = frozenset(
    name.decode()
    for name in (PREPARED, GROUP, UNIQUE, ID, CHECKS, FIRST_OFFSET, REAL_TOPIC, REAL_QUEUE)
)
_REMOVAL_TEXT = b"TAGS\x01d\x02WAIT\x01true\x02"
_REMOVAL_TAG = "d"
_TYPE_BITS, _COMMIT_TYPE = 0xC, 0x8
_NUMBER = re.compile(rb"[0-9]{1,18}")
_IMMUNITY_MAX_S = 10 * 366 * 86_400

Copy = tuple[Message, bytes]


class HalfFacts(NamedTuple):
    """The properties of a half message; all of them were written by a caller, and may be anything.

    Attributes:
        transaction_id: its UNIQ_KEY; the id of its record if it has none.
        group: the group whose program decides.
        topic: the topic that it is for, as text.
        queue: the queue that it is for; -1 if that is no number.
        checks: how often it was checked.
        immunity_ms: how long it is not checked; None for the store's setting.
        first_offset: the queue offset of its first copy, where a broker has noted it; -1 otherwise.
    """

    transaction_id: str
    group: str
    topic: str
    queue: int
    checks: int
    immunity_ms: int | None
    first_offset: int


def refuse_delays(message: Message) -> None:
    """Raise `MessageError` for a message with a delay: the half message itself would be delayed, and not delivered."""
    named = sorted(DELAYS & set(message.properties or ()))
    if message.delay_level or named:
        what = named[0] if named else f"delay_level {message.delay_level!r}"
        raise MessageError(
            f"a prepared message with {what} is refused: RocketMQ delivers none that is both prepared and delayed; "
            f"nothing was stored. Prepare it without a delay, or put it with one after your transaction"
        )


def half_message(message: Message, group: str, transaction_id: str) -> Copy:
    """Return the half message of a message that has a queue number, and its properties text.

    Raises `MessageError` for a property that the store sets itself.
    """
    for name in message.properties or ():
        if name in _OF_THE_STORE:
            raise MessageError(
                f"property {name} of a prepared message is refused: the store sets it; nothing was stored"
            )
    pairs = pairs_of(encode_properties(message.tag, message.keys, message.properties))
    pairs[UNIQUE] = pairs[ID] = transaction_id.encode()
    pairs[PREPARED], pairs[GROUP] = b"true", group.encode()
    pairs[REAL_TOPIC], pairs[REAL_QUEUE] = message.topic.encode(), b"%d" % message.queue
    half = message.__replace__(topic=HALF_TOPIC, queue=0, tag="", keys=(), properties={})
    return half, text_of(pairs)


def facts_of(half: StoredMessage) -> HalfFacts:
    """Return what the properties of a half message say."""
    pairs = pairs_of(stored_text(half))

    def text(name: bytes) -> str:
        return pairs.get(name, b"").decode("utf-8", "replace")

    def number(name: bytes, missing: int) -> int:
        value = pairs.get(name, b"")
        return int(value) if _NUMBER.fullmatch(value) else missing

    seconds = number(IMMUNITY, -1)
    return HalfFacts(
        text(UNIQUE) or half.message_id, text(GROUP), text(REAL_TOPIC), number(REAL_QUEUE, -1),
        number(CHECKS, 0), None if seconds < 0 else 1000 * min(seconds, _IMMUNITY_MAX_S),
        number(FIRST_OFFSET, -1),
    )  # fmt: skip


def checked_again(half: StoredMessage, checks: int) -> Copy:
    """Return the copy that takes the place of a half message when it is checked, and its properties text."""
    pairs = pairs_of(stored_text(half))
    pairs[CHECKS] = b"%d" % checks
    return _copy(half, HALF_TOPIC, 0, flags_for_copy(half)), text_of(pairs)


def committed(half: StoredMessage) -> Copy:
    """Return the copy that a commit puts into the message's own queue, and the half's properties text for it.

    Raises `MessageError` if the half message names no queue to which a message may go.
    """
    text = stored_text(half)
    topic, queue = _destination(text)
    copy = _copy(half, topic, queue, flags_for_copy(half) & ~_TYPE_BITS | _COMMIT_TYPE)
    copy.prepared_offset = half.log_offset
    return copy, text


def discarded(half: StoredMessage) -> Copy:
    """Return the copy of a message that was checked too often, and its properties text."""
    return _copy(half, DISCARD_TOPIC, 0, flags_for_copy(half)), stored_text(half)


def removal(queue_offset: int) -> Copy:
    """Return the record that the half message at a queue offset is finished, for brokers of 4.9 and 5.x."""
    return Message(OP_TOPIC, b"%d" % queue_offset, queue=0, wait=False), _REMOVAL_TEXT


def removed_by(message: StoredMessage) -> list[int]:
    """Return the queue offsets that a removal names: one, or many of a broker of 5.x; none if it is not a removal."""
    if message.tag != _REMOVAL_TAG:
        return []
    return [int(part) for part in message.body.split(b",") if _NUMBER.fullmatch(part)]


def is_commit_of(message: StoredMessage, log_offset: int) -> bool:
    """Return whether a message is the commit of the half message at a log offset."""
    is_commit = message.sys_flag & _TYPE_BITS == _COMMIT_TYPE
    return is_commit and message.prepared_offset == log_offset


def _copy(half: StoredMessage, topic: str, queue: int, sys_flag: int) -> Message:
    return Message(
        topic, half.body, queue=queue, flag=half.flag, sys_flag=sys_flag,
        born_time_ms=half.born_time_ms, born_host=half.born_host,
        reconsume_times=half.reconsume_times, wait=False,
    )  # fmt: skip


def _destination(text: bytes) -> tuple[str, int]:
    pairs = pairs_of(text)
    named, number = pairs.get(REAL_TOPIC, b""), pairs.get(REAL_QUEUE, b"")
    try:
        topic = check_topic(named.decode())
    except UnicodeDecodeError:
        raise MessageError(f"its REAL_TOPIC {named!r} is not UTF-8; nothing was stored") from None
    if is_waiting(topic):
        raise MessageError(
            f"its REAL_TOPIC is {topic}, to which nothing is committed; nothing was stored"
        )
    if not _NUMBER.fullmatch(number):
        raise MessageError(
            f"its REAL_QID {number!r} is not the number of a queue; nothing was stored"
        )
    return topic, check_queue(int(number))
