"""A delayed message as it waits, and as it is delivered: the same properties text in two topics.

A broker stores a delayed message in `SCHEDULE_TOPIC_XXXX`, with DELAY (the level), REAL_TOPIC and REAL_QID (where it is
to go) in its properties. The copy that it delivers has the same text, all of these included; so DELAY alone does not
say that a message still waits.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock import Message, StoredMessage
from penstock.errors import MessageError
from penstock.format.names import check_queue, check_topic
from penstock.format.properties import encode_properties
from penstock_messaging.delays.levels import LEVEL_MAX, SCHEDULE_TOPIC, queue_of
from penstock_messaging.properties_text import (
    DELAY,
    REAL_QUEUE,
    REAL_TOPIC,
    TIMER_TOPIC,
    flags_for_copy,
    pairs_of,
    stored_text,
    text_of,
)

# A message of a transaction that is not committed is not delivered, and one that goes to where it waits never would be.
_NOT_DELIVERED_TO = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"})
# Python refuses to convert numbers of some thousand digits.
_QUEUE = re.compile(rb"[0-9]{1,9}")
_OF_THE_STORE = frozenset({REAL_TOPIC.decode(), REAL_QUEUE.decode()})
_NO_PROPERTIES: MappingProxyType[str, str] = MappingProxyType({})


def scheduled(message: Message, check: Callable[[Message], None]) -> tuple[Message, bytes]:
    """Return what is stored in place of a message with a delay level: the copy that waits, and its properties text.

    Args:
        message: has a `delay_level` and a queue number.
        check: raises a `MessageError` for a message that could not be put without its delay; see `LowLevelStore.check`.

    Raises:
        MessageError: there is no such level, or the message could not be put without a delay.
    """
    if not 0 <= message.delay_level <= LEVEL_MAX:
        raise MessageError(
            f"delay_level {message.delay_level} is refused: it must be 0 (no delay) or 1 to {LEVEL_MAX}, for 1 second "
            "to 2 hours; nothing was stored"
        )
    level = message.delay_level
    plain = message.__replace__(delay_level=0)
    check(plain)
    properties = plain.properties or _NO_PROPERTIES
    given = {name: value for name, value in properties.items() if name not in _OF_THE_STORE}
    text = encode_properties(plain.tag, plain.keys, given)
    return waiting_copy(plain, text, level)


def waiting_copy(message: Message, text: bytes, level: int) -> tuple[Message, bytes]:
    """Return the copy of a message that waits for a level of 1 to 18, and its properties text.

    Args:
        message: with the topic and queue to which it is to go.
        text: its properties text.
        level: the level.
    """
    pairs = pairs_of(text)
    pairs[DELAY] = b"%d" % level
    pairs[REAL_TOPIC] = message.topic.encode()
    pairs[REAL_QUEUE] = b"%d" % message.queue
    waiting = message.__replace__(
        topic=SCHEDULE_TOPIC, queue=queue_of(level), tag="", keys=(), properties={}
    )
    return waiting, text_of(pairs)


def delivered(message: StoredMessage) -> tuple[Message, bytes]:
    """Return the copy of a waiting message that goes to its own topic, and its properties text.

    Raises `MessageError` for a message that has no topic to go to.
    """
    text = stored_text(message)
    topic, queue = destination(pairs_of(text))
    copy = Message(
        topic, message.body, queue=queue, flag=message.flag, sys_flag=flags_for_copy(message),
        born_time_ms=message.born_time_ms, born_host=message.born_host,
        reconsume_times=message.reconsume_times, wait=False,
    )  # fmt: skip
    return copy, text


def destination(pairs: Mapping[bytes, bytes]) -> tuple[str, int]:
    """Return topic and queue that a waiting message is to go to; raises `MessageError` if its properties name none."""
    named, number = pairs.get(REAL_TOPIC, b""), pairs.get(REAL_QUEUE, b"")
    try:
        topic = check_topic(named.decode())
    except UnicodeDecodeError:
        raise MessageError(f"its REAL_TOPIC {named!r} is not UTF-8") from None
    if topic in _NOT_DELIVERED_TO:
        raise MessageError(f"its REAL_TOPIC is {topic}, to which nothing is delivered")
    if not _QUEUE.fullmatch(number):
        raise MessageError(f"its REAL_QID {number!r} is not the number of a queue")
    return topic, check_queue(int(number))
