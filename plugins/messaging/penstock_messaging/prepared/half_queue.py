"""Which half messages are open, read from the two queues of a store, also one that another process writes.

A broker, and Penstock, keep how far both queues are done as offsets of the group `CID_RMQ_SYS_TRANS`. From there on, a
half message is open unless

* a removal names its queue offset, or that of its first copy;
* or a later copy of it counts more checks: a process was killed after it wrote the copy.
"""

from collections.abc import Iterator

import attrs

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock_messaging.prepared.half_message import (
    HALF_TOPIC,
    OP_TOPIC,
    PROGRESS_GROUP,
    HalfFacts,
    facts_of,
    removed_by,
)

NEVER = 1 << 62
# Records that are read at once.
_BATCH = 256


@attrs.define(eq=False)
class OpenHalf:
    """A half message that is not finished, as its newest copy. Guarded by `OpenHalves`.

    Attributes:
        facts: what its properties say; `checks` is that of the newest copy.
        born_time_ms: when it was born, or stored, whichever is less.
        offset: its queue offset.
        log_offset: where its record begins.
        due_ms: when it is checked next, in monotonic milliseconds; never until that is known.
        outcome: what became of it, "" while it is open.
        in_block: how many `with` blocks of the program it is in.
        blocks: how many have begun.
    """

    facts: HalfFacts
    born_time_ms: int
    offset: int
    log_offset: int
    due_ms: int = NEVER
    outcome: str = ""
    in_block: int = 0
    blocks: int = 0


def half_of(message: StoredMessage) -> OpenHalf:
    """Return a half message that was read."""
    born_ms = min(message.born_time_ms, message.store_time_ms)
    return OpenHalf(facts_of(message), born_ms, message.queue_offset, message.log_offset)


def progress(store: OpenStore, topic: str) -> int:
    """Return how far one of the two queues is done, within its bounds."""
    low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
    return min(max(store.committed_offset(PROGRESS_GROUP, topic, 0) or 0, low), high)


def messages_from(store: OpenStore, topic: str, at: int, queue: int = 0) -> Iterator[StoredMessage]:
    """Yield the messages of a queue from an offset to its end; what is gone or corrupt is left out."""
    while True:
        found = store.read(topic, queue, at, _BATCH)
        yield from found.messages
        if found.next_offset <= at or found.at_end:
            return
        at = found.next_offset


def read_open(store: OpenStore) -> list[OpenHalf]:
    """Return the open half messages, in the order of their queue."""
    # In this order: of a half message that another process finishes meanwhile, the removal is read, too.
    removals = progress(store, OP_TOPIC)
    start = progress(store, HALF_TOPIC)
    # The time as it is stored: all copies have that one, whatever the clock said when they were written.
    halves = [
        (half_of(message), message.born_time_ms) for message in messages_from(store, HALF_TOPIC, start)]  # fmt: skip
    removed = {
        offset
        for message in messages_from(store, OP_TOPIC, removals)
        for offset in removed_by(message)
    }
    found = []
    latest: dict[tuple[object, ...], int] = {}
    for half, born_ms in reversed(halves):
        facts = half.facts
        same = (facts.transaction_id, facts.group, facts.topic, facts.queue, born_ms)
        is_replaced = latest.get(same, 0) > facts.checks
        latest[same] = max(latest.get(same, 0), facts.checks)
        if not (is_replaced or half.offset in removed or facts.first_offset in removed):
            found.append(half)
    return found[::-1]


def removals_done(store: OpenStore, start: int, half_progress: int) -> int:
    """Return the offset of the first removal from `start` on that names a half message at or after `half_progress`."""
    at = start
    for message in messages_from(store, OP_TOPIC, start):
        if any(offset >= half_progress for offset in removed_by(message)):
            return message.queue_offset
        at = message.queue_offset + 1
    return at
