"""Dead letters: messages that a group gave up, in the topic `%DLQ%group`; listing them, and replaying them.

A replay puts a copy of each dead letter back, as a message that was never retried. The dead letters themselves stay
until retention deletes them. How far a group's dead letters are replayed is a committed offset of the group
`REPLAY_GROUP`, so the next replay continues there. A crash in between repeats at most the last batch.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock import Message, Store, StoredMessage
from penstock.errors import MessageError
from penstock.format.names import check_topic
from penstock_messaging.properties_text import (
    DELAY,
    ORIGIN_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    REASON,
    RETRY_TOPIC,
    WAIT,
    flags_for_copy,
    pairs_of,
    stored_text,
    text_of,
)
from penstock_messaging.retries.copies import (
    DEAD_LETTER_PREFIX,
    dead_letter_topic,
    first_topic,
    has_body,
    origin,
    retry_topic,
)

# The group whose committed offsets say how far dead letters are replayed.
REPLAY_GROUP = "penstock-dlq-replay"
# What the trips of a retried message left in its properties; the last two are those of a client that retried by itself.
_OF_TRIPS = (DELAY, REAL_TOPIC, REAL_QUEUE, WAIT, REASON, b"RECONSUME_TIME", b"MAX_RECONSUME_TIMES")
_BATCH = 100


class DeadLetterQueue(NamedTuple):
    """The dead letters of one group.

    Attributes:
        group: the group.
        total: how many there are.
        left: how many of them are not replayed.
        oldest_ms: when the oldest was given up, Unix milliseconds; None if there is none, or it cannot be read.
        newest_ms: the same of the newest.
    """

    group: str
    total: int
    left: int
    oldest_ms: int | None
    newest_ms: int | None


class Replayed(NamedTuple):
    """The result of a replay of one dead letter, or with `dry_run` what it would be.

    Attributes:
        offset: the dead letter's queue offset.
        message: the dead letter.
        topic: where its copy is; "" if there is none.
        queue: the number of the copy's queue.
        reason: why there is no copy; "" if there is one.
    """

    offset: int
    message: StoredMessage
    topic: str
    queue: int
    reason: str


def queues(store: Store) -> list[DeadLetterQueue]:
    """Return the dead letters of every group that has any, or had some that retention has deleted."""
    topics = [topic for topic in store.topics(system=True) if topic.startswith(DEAD_LETTER_PREFIX)]
    return [_queue_of(store, topic.removeprefix(DEAD_LETTER_PREFIX)) for topic in sorted(topics)]


def _queue_of(store: Store, group: str) -> DeadLetterQueue:
    topic = dead_letter_topic(group)
    low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
    oldest, newest = (store.read(topic, 0, at, 1).messages for at in (low, max(high - 1, low)))
    return DeadLetterQueue(
        group, high - low, high - replay_start(store, group),
        oldest[0].store_time_ms if oldest else None, newest[0].store_time_ms if newest else None,
    )  # fmt: skip


def replay_start(store: Store, group: str) -> int:
    """Return the queue offset of the first dead letter that is not replayed."""
    topic = dead_letter_topic(group)
    done = store.committed_offset(REPLAY_GROUP, topic, 0) or 0
    return min(max(done, store.min_offset(topic, 0)), store.max_offset(topic, 0))


def letters(store: Store, group: str, start: int | None = None) -> Iterator[StoredMessage]:
    """Return the dead letters of a group, the oldest first; those from queue offset `start` on if it is given."""
    topic = dead_letter_topic(group)
    return (
        store.scan(topic, queue=0, start=start) if topic in store.topics(system=True) else iter(())
    )


def replayed_copy(message: StoredMessage, group: str, *, to_topic: bool) -> tuple[Message, bytes]:
    """Return the copy of a dead letter that is put back, and its properties text.

    Body, flags, birth, tag, keys and the caller's properties are kept; the count of retries begins again.

    Args:
        message: the dead letter.
        group: its group.
        to_topic: put it back to the topic that it was first stored in, where every group gets it; otherwise to
            `%RETRY%group`, from which only this group gets it, under its first topic and id.

    Raises:
        MessageError: it does not name its first topic.
    """
    pairs = pairs_of(stored_text(message))
    if RETRY_TOPIC not in pairs:
        raise MessageError("it does not say in which topic it was first stored")
    if not has_body(message):
        raise MessageError(f"its body had no room: it is in message {origin(message).message_id}")
    topic = check_topic(first_topic(message))
    dropped = (*_OF_TRIPS, RETRY_TOPIC, ORIGIN_ID) if to_topic else _OF_TRIPS
    text = text_of({name: value for name, value in pairs.items() if name not in dropped})
    copy = Message(
        topic if to_topic else retry_topic(group), message.body, queue=0, flag=message.flag, wait=False,
        sys_flag=flags_for_copy(message), born_time_ms=message.born_time_ms, born_host=message.born_host,
    )  # fmt: skip
    return copy, text


def replay(
    store: Store,
    group: str,
    *,
    to_topic: bool = False,
    start: int | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    on_batch: Callable[[list[Replayed]], None] = lambda _: None,
) -> int:
    """Put dead letters of a group back; returns how many were put back, or with `dry_run` would be.

    Args:
        store: the store, open for writing; with `dry_run` it may be read-only.
        group: the group.
        to_topic: see `replayed_copy`.
        start: queue offset of the first one; None to continue after the last replay.
        limit: maximum number of dead letters to look at; None for all.
        dry_run: put nothing back.
        on_batch: called with what was done, once that is durable.
    """
    topic = dead_letter_topic(group)
    offset = replay_start(store, group) if start is None else max(start, store.min_offset(topic, 0))
    end = store.max_offset(topic, 0)
    if limit is not None:
        end = min(end, offset + limit)
    count = 0
    while offset < end:
        found = store.read(topic, 0, offset, min(_BATCH, end - offset))
        batch = [message for message in found.messages if message.queue_offset < end]
        done = _put_back(store, group, batch, to_topic=to_topic, dry_run=dry_run)
        if found.next_offset <= offset:
            break
        offset = min(found.next_offset, end)
        if not dry_run:
            store.flush()
            store.commit_offset(REPLAY_GROUP, topic, 0, offset=offset)
        on_batch(done)
        count += sum(not each.reason for each in done)
    return count


def _put_back(
    store: Store, group: str, batch: list[StoredMessage], *, to_topic: bool, dry_run: bool
) -> list[Replayed]:
    """Put the copies of some dead letters; returns what was done with each. A refused copy holds up no others."""
    numbers = store.topics(system=True)
    done = []
    copies = []
    for message in batch:
        try:
            copy, text = replayed_copy(message, group, to_topic=to_topic)
            known = numbers.get(copy.topic) or [0]
            copy.queue = known[zlib.crc32(origin(message).message_id.encode()) % len(known)]
            if not dry_run:
                if to_topic:
                    # As for a put: the topic may have been deleted.
                    store.lowlevel.check(Message(copy.topic, b"", queue=copy.queue))
                store.lowlevel.check(copy, text)
        except MessageError as error:
            done.append(Replayed(message.queue_offset, message, "", 0, str(error)))
            continue
        copies.append((copy, text))
        done.append(Replayed(message.queue_offset, message, copy.topic, copy.queue, ""))
    if copies and not dry_run:
        store.lowlevel.put_copies(copies)
    return done
