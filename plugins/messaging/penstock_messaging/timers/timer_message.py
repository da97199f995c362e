"""A timer message as it waits, as it goes on waiting, and as it is delivered: the forms of RocketMQ 5. Pure functions.

A message with a time waits in `rmq_sys_wheel_timer`, queue 0, with these properties:

* REAL_TOPIC and REAL_QID: where it is to go.
* TIMER_DELIVER_MS: when, in Unix milliseconds.
* TIMER_OUT_MS: the second before that, always earlier: of 5000 ms it is 4000. A broker delivers at its end.
* UNIQ_KEY: by which a broker can cancel it. A UNIQ_KEY that the caller has given is kept.

The delivered copy has them, too, and TIMER_ENQUEUE_MS (when it was taken in) and TIMER_DEQUEUE_MS (when it was
delivered). To cancel a message, another one is put to the same topic with the same TIMER_OUT_MS and REAL_TOPIC; its
TIMER_DEL_UNIQKEY names it: by topic and UNIQ_KEY, as in 5.3 and 5.4, or by UNIQ_KEY alone, as in others. Both are put.

Every property may have been written by another program, or by a caller. A number is believed only if it is one; a time
that does not fit TIMER_OUT_MS is not used; and nothing is delivered to a topic in which messages wait.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock import Message, StoredMessage
from penstock.errors import MessageError, PropertyError
from penstock.format.properties import encode_properties
from penstock.format.record import CRC_PROPERTY_SIZE, PROPERTIES_BYTES_MAX
from penstock_messaging.delays.schedule import destination
from penstock_messaging.properties_text import (
    REAL_QUEUE,
    REAL_TOPIC,
    TIMER_TOPIC,
    check_later,
    flags_for_copy,
    pairs_of,
    stored_pairs,
    stored_text,
    text_of,
)

# A second of the wheel: the unit of TIMER_OUT_MS.
SECOND_MS = 1000
DELIVER_MS, OUT_MS = b"TIMER_DELIVER_MS", b"TIMER_OUT_MS"
ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES = b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_ROLL_TIMES"
DELETE_KEY, UNIQ_KEY = b"TIMER_DEL_UNIQKEY", b"UNIQ_KEY"
# The tag and the body that a broker writes for a message that cancels another one.
_CANCEL_TEXT, _CANCEL_BODY = b"TAGS\x01_RECALL_TAG_\x02", b"0"
# A delivered message may be put again with its properties; these do not go along.
_OF_THE_STORE = frozenset(
    name.decode() for name in (REAL_TOPIC, REAL_QUEUE, OUT_MS, ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES)
)
_TIME = re.compile(rb"[0-9]{1,15}")
_ROLLS = re.compile(rb"[0-9]{1,9}")
_NO_PROPERTIES: MappingProxyType[str, str] = MappingProxyType({})


class Timer(NamedTuple):
    """The request of a message in `rmq_sys_wheel_timer`.

    Attributes:
        out_ms: its TIMER_OUT_MS.
        due_ms: when it is delivered; always after `out_ms`.
        topic: the topic to which it is to go, as bytes; empty if it names none.
        key: by what it can be cancelled; empty if by nothing.
        cancels: the key of the messages that it cancels; empty for a message that is to be delivered.
    """

    out_ms: int
    due_ms: int
    topic: bytes
    key: bytes
    cancels: bytes

    @property
    def second_ms(self) -> int:
        """The second of `out_ms`; a broker may be configured to write parts of seconds."""
        return self.out_ms // SECOND_MS * SECOND_MS


def out_ms_of(due_ms: int) -> int:
    """Return the second that is over before a time, as a broker has it: strictly earlier than the time."""
    return (due_ms - 1) // SECOND_MS * SECOND_MS


def timed(message: Message, due_ms: int, check: Callable[..., None]) -> tuple[Message, bytes]:
    """Return what is stored in place of a message with a time: the copy that waits, and its properties text.

    Args:
        message: has a queue number; its `delay` and `deliver_at` are not looked at.
        due_ms: when it is to be delivered.
        check: raises a `MessageError` for a message that could not be put without a delay, and for a copy with its
            properties text that does not fit; see `LowLevelStore.check`.

    Raises:
        MessageError: the message could not be put without a delay, or has a property that would cancel other messages;
            or the copies that are made when it goes on waiting, and when it is delivered, would not fit.
    """
    plain = message.__replace__(delay_level=0, delay=0, deliver_at=None)
    check(plain)
    properties = plain.properties or _NO_PROPERTIES
    if DELETE_KEY.decode() in properties:
        raise PropertyError(
            DELETE_KEY.decode(), "it cancels another message; use Store.cancel_delayed"
        )
    given = {name: value for name, value in properties.items() if name not in _OF_THE_STORE}
    pairs = pairs_of(encode_properties(plain.tag, plain.keys, given))
    pairs.setdefault(UNIQ_KEY, secrets.token_hex(16).upper().encode())
    pairs[DELIVER_MS], pairs[OUT_MS] = b"%d" % due_ms, b"%d" % out_ms_of(due_ms)
    pairs[REAL_TOPIC], pairs[REAL_QUEUE] = plain.topic.encode(), b"%d" % plain.queue
    waiting = plain.__replace__(topic=TIMER_TOPIC, queue=0, tag="", keys=(), properties={})
    text = text_of(pairs)
    check_later(
        check, waiting, text, (TIMER_TOPIC, plain.topic), ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES
    )
    return waiting, text


def timer_of(message: StoredMessage) -> Timer:
    """Return what a message of the timer topic requests; raises `MessageError` if it has no time."""
    return timer_in(stored_pairs(message))


def timer_in(pairs: Mapping[bytes, bytes]) -> Timer:
    """Do as `timer_of`, for the properties of a message."""
    out_ms = _number(pairs, OUT_MS, _TIME)
    if out_ms is None:
        raise MessageError(f"its TIMER_OUT_MS {pairs.get(OUT_MS)!r} is not a time")
    exact_ms = _number(pairs, DELIVER_MS, _TIME)
    if exact_ms is None or not 0 < exact_ms - out_ms <= SECOND_MS:
        # Never early: of another program's message only the second is known.
        exact_ms = out_ms + SECOND_MS
    topic, own = pairs.get(REAL_TOPIC, b""), pairs.get(UNIQ_KEY, b"")
    key = cancel_key(topic, own) if topic and own else b""
    cancels = pairs.get(DELETE_KEY, b"")
    if cancels and not cancels.startswith(topic + b"+"):
        # Brokers before 5.3 name no topic.
        cancels = cancel_key(topic, cancels)
    return Timer(out_ms, exact_ms, topic, key, cancels)


def cancel_key(topic: bytes, unique_key: bytes) -> bytes:
    """Return the TIMER_DEL_UNIQKEY that cancels a message of a topic."""
    return topic + b"+" + unique_key


def copied(
    message: StoredMessage,
    *,
    due_ms: int,
    enqueue_ms: int,
    now_ms: int,
    destination_of: Callable[[Mapping[bytes, bytes]], tuple[str, int]] = destination,
) -> tuple[Message, bytes]:
    """Return what is put in place of a waiting message at the time at which it is handled, and its properties text.

    If its second has come then, the copy goes to its own topic; if not, to the timer topic again, so that retention
    does not delete the message while it waits.

    Args:
        message: waits.
        due_ms: when it is to be handled: its own time, or an earlier one.
        enqueue_ms: when it was taken in.
        now_ms: the time now.
        destination_of: returns topic and queue to which a message with some properties goes.

    Raises:
        MessageError: the message has no time, or no topic to go to.
    """
    pairs = stored_pairs(message)
    out_ms = _number(pairs, OUT_MS, _TIME)
    if out_ms is None or out_ms // SECOND_MS * SECOND_MS > due_ms:
        topic, queue = TIMER_TOPIC, 0
        # Raises for a message without a time.
        timer_in(pairs)
        pairs[ROLL_TIMES] = b"%d" % ((_number(pairs, ROLL_TIMES, _ROLLS) or 0) + 1)
    else:
        topic, queue = destination_of(pairs)
    pairs[ENQUEUE_MS], pairs[DEQUEUE_MS] = b"%d" % enqueue_ms, b"%d" % now_ms
    text = text_of(pairs)
    if len(text) > PROPERTIES_BYTES_MAX - CRC_PROPERTY_SIZE:
        # Another program has stored it, and left no room for what only informs.
        text = stored_text(message)
    copy = Message(
        topic, message.body, queue=queue, flag=message.flag, sys_flag=flags_for_copy(message),
        born_time_ms=message.born_time_ms, born_host=message.born_host,
        reconsume_times=message.reconsume_times, wait=False,
    )  # fmt: skip
    return copy, text


def cancelling(timer: Timer) -> list[tuple[Message, bytes]]:
    """Return the messages that cancel a timer message that has a key, in each form of which brokers read one."""
    pairs = pairs_of(_CANCEL_TEXT)
    pairs |= {
        DELIVER_MS: b"%d" % timer.due_ms, OUT_MS: b"%d" % timer.out_ms,
        REAL_TOPIC: timer.topic, REAL_QUEUE: b"0",
    }  # fmt: skip
    message = Message(TIMER_TOPIC, _CANCEL_BODY, queue=0)
    keys = timer.key, timer.key.removeprefix(cancel_key(timer.topic, b""))
    return [(message, text_of(pairs | {DELETE_KEY: key})) for key in keys]


def _number(pairs: Mapping[bytes, bytes], name: bytes, form: re.Pattern[bytes]) -> int | None:
    text = pairs.get(name, b"")
    return int(text) if form.fullmatch(text) else None
