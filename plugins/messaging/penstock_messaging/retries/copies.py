"""A refused message as a retry or a dead letter: what a broker stores for a send-back. Pure functions.

A retry waits in `SCHEDULE_TOPIC_XXXX` at its level, then goes to `%RETRY%group`. A dead letter goes to `%DLQ%group` at
once. The copy keeps body, flags, birth and properties; its properties name the topic and the id of the first message,
which later retries keep; and it counts one delivery more.
"""

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock import Message, StoredMessage
from penstock.format.names import is_waiting
from penstock.format.record import PROPERTIES_BYTES_MAX
from penstock_messaging.delays.levels import clamped
from penstock_messaging.delays.schedule import waiting_copy
from penstock_messaging.properties_text import (
    COPY_BYTES,
    DELAY,
    ORIGIN_ID,
    REAL_TOPIC,
    REASON,
    RETRY_TOPIC,
    WAIT,
    flags_for_copy,
    pairs_of,
    stored_text,
    text_of,
)

RETRY_PREFIX, DEAD_LETTER_PREFIX = "%RETRY%", "%DLQ%"
# A first retry waits for level 3, the second for level 4, and so on.
_FIRST_LEVEL = 3
_COUNT_MAX = (1 << 31) - 1
# Levels that make a message a dead letter.
DEAD_LETTER, CONSUMER_DIED = -1, -2
_DIED_TEXT = b"consumer died"
# The group whose dead letters are delayed messages that could not be delivered.
UNDELIVERED = "penstock-undelivered"
_REASON_BYTES_MAX = 200
_OF_GROUP = re.compile(r"%RETRY%([%|a-zA-Z0-9_-]{1,120})", re.ASCII)
_NO_ROOM, _NO_BODY = b"no room for a retry", b"no room for the body"


class Origin(NamedTuple):
    """The identity of one retry of one message of a group.

    Attributes:
        message_id: the id of the message as it was first stored.
        retries: how often it had been delivered before this copy was made.
    """

    message_id: str
    retries: int


def retry_topic(group: str) -> str:
    """Return the topic of a group's retries."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of a group's dead letters; it has one queue."""
    return DEAD_LETTER_PREFIX + group


def retry_copy(
    message: StoredMessage,
    group: str,
    *,
    level: int | None = None,
    max_tries: int = 16,
    count: int = 1,
    retry_queues: int = 1,
    message_id: str | None = None,
    reason: bytes = b"",
) -> tuple[Message, bytes] | None:
    """Return what is stored when a group refuses a message: the copy, and its properties text for `put_copies`.

    Args:
        message: the message that was refused, from its topic or from `%RETRY%group`.
        group: the group's name.
        level: the delay level of the retry; None or 0 for 3 plus the number of retries so far, below 0 for a dead
            letter. A level above 18 becomes 18. `CONSUMER_DIED` is given as the dead letter's reason.
        max_tries: how many retries there are before the message becomes a dead letter.
        count: how many tries of this message have ended: more than one if consumers died with it.
        retry_queues: the number of queues of `%RETRY%group`.
        message_id: the id that the copy names as its origin unless the message already names one; None for its own.
        reason: why the group refused it; if empty, or too long for a retry, an earlier one stays.

    Returns:
        None if the group has no queue for retries: then a broker stores nothing, either.
    """
    if retry_queues <= 0:
        return None
    copy, pairs = _letter(message, group, message_id, count)
    if reason and len(text_of(pairs)) + COPY_BYTES <= PROPERTIES_BYTES_MAX:
        # Read from a file: whatever it is, it is one value.
        pairs[REASON] = reason.translate(None, bytes(range(32)))
    tries, wanted = message.reconsume_times + count - 1, level or 0
    if tries >= max_tries or wanted < 0:
        if wanted == CONSUMER_DIED:
            pairs[REASON] = _DIED_TEXT
        return copy, text_of(pairs)
    # Always the same queue for the same message, so that a retry made again after a crash is the same record.
    copy.topic, copy.queue = retry_topic(group), zlib.crc32(pairs[ORIGIN_ID]) % retry_queues
    return waiting_copy(copy, text_of(pairs), retry_level(tries, wanted))


def lesser_letters(
    message: StoredMessage, group: str, given: tuple[Message, bytes]
) -> Iterator[tuple[Message, bytes]]:
    """Yield the dead letter of a message, then the same with one added property less each time.

    For a message that leaves no room for `given`, its retry or its dead letter. The first topic, which a replay needs,
    is kept longest. If there is not even room for the message's own properties, or for its body, which another program
    stored, the last forms have none of them: the id leads to the message.
    """
    copy, pairs = _letter(message, group, None)
    copy.reconsume_times = given[0].reconsume_times
    why = pairs_of(given[1]).get(REASON, b"" if given[0].topic == copy.topic else _NO_ROOM)
    least = {RETRY_TOPIC: pairs[RETRY_TOPIC], ORIGIN_ID: pairs[ORIGIN_ID], REASON: why or _NO_ROOM}
    if why:
        pairs[REASON] = why
    yield copy, text_of(pairs)
    own = pairs_of(stored_text(message))
    for name in (WAIT, DELAY, REASON, ORIGIN_ID, RETRY_TOPIC):
        if name in own:
            pairs[name] = own[name]
        else:
            pairs.pop(name, None)
        yield copy, text_of(pairs)
    yield copy, stored_text(message)
    yield copy, text_of(least)
    yield copy.__replace__(body=b""), text_of({**least, REASON: _NO_BODY})


def undelivered(message: StoredMessage, why: str) -> Iterator[tuple[Message, bytes]]:
    """Yield the dead letter of a delayed message that cannot be delivered, in forms that take less and less room.

    That of a retry is one of its group; any other is one of the group `UNDELIVERED`.
    """
    target = pairs_of(stored_text(message)).get(REAL_TOPIC, b"").decode("utf-8", "replace")
    found = _OF_GROUP.fullmatch(target)
    group = UNDELIVERED if found is None else found[1]
    reason = why.encode()[:_REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    given = Message(dead_letter_topic(group), b"", queue=0, reconsume_times=message.reconsume_times)
    yield from lesser_letters(message, group, (given, text_of({REASON: reason})))


def _letter(
    message: StoredMessage, group: str, message_id: str | None, count: int = 1
) -> tuple[Message, dict[bytes, bytes]]:
    """Return the dead letter of a message, and its properties."""
    pairs = pairs_of(stored_text(message))
    # The topic to which a delayed message that is given up was to go.
    first = pairs.get(REAL_TOPIC, b"") if is_waiting(message.topic) else b""
    pairs.setdefault(RETRY_TOPIC, first or message.topic.encode())
    # As RocketMQ: an origin of blanks is none.
    if not pairs.get(ORIGIN_ID, b"").strip():
        pairs[ORIGIN_ID] = (message_id or message.message_id).encode()
    pairs[WAIT], pairs[DELAY] = b"false", b"0"
    copy = Message(
        dead_letter_topic(group), message.body, queue=0, flag=message.flag, sys_flag=flags_for_copy(message),
        born_time_ms=message.born_time_ms, born_host=message.born_host,
        reconsume_times=min(message.reconsume_times + count, _COUNT_MAX), wait=False,
    )  # fmt: skip
    return copy, pairs


def retry_level(tries: int, level: int = 0) -> int:
    """Return the delay level of a retry, 1 to 18.

    Args:
        tries: how many retries there were before.
        level: the level that was requested; 0 for one that grows with the tries.
    """
    return clamped(level or _FIRST_LEVEL + max(tries, 0))


def reason(message: StoredMessage) -> str:
    """Return why a message was refused, or given up as a dead letter; "" if nobody has said."""
    return pairs_of(stored_text(message)).get(REASON, b"").decode("utf-8", "replace")


def has_body(message: StoredMessage) -> bool:
    """Return whether a dead letter has the message's body; its id leads to the message if not."""
    # Whatever reason a consumer gives, its dead letters have WAIT.
    pairs = pairs_of(stored_text(message))
    return bool(message.body) or WAIT in pairs or pairs.get(REASON) != _NO_BODY


def origin(message: StoredMessage) -> Origin:
    """Return what identifies a copy: two copies of one message with the same origin were made twice by a crash."""
    named = pairs_of(stored_text(message)).get(ORIGIN_ID, b"").decode("utf-8", "replace").strip()
    return Origin(named or message.message_id, message.reconsume_times)


def first_topic(message: StoredMessage) -> str:
    """Return the topic that a message was first stored in."""
    named = pairs_of(stored_text(message)).get(RETRY_TOPIC)
    return message.topic if named is None else named.decode("utf-8", "replace")
