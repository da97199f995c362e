"""Which copies of messages are in the log already: so that a kill between a copy and its mark makes no second one."""

from bisect import bisect
from collections.abc import Callable, Iterator
from hashlib import blake2b

from penstock import Message, StoredMessage
from penstock.contracts import OpenStore
from penstock_messaging.properties_text import pairs_of, stored_text

# When a timer was taken in and delivered: each copy of it has its own times.
_OF_ONE_COPY = frozenset({b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS"})
_AT_ONCE = 32
# Each copy has it, and hardly any other message.
_REAL_TOPIC = b"REAL_TOPIC\x01"

Copy = tuple[Message, bytes]


class CopiesMade:
    """The copies that earlier openings of the store put. Not thread-safe.

    A copy is known by its place, its body and its properties, with where and when the message was born, and comes after
    its message. Messages that are alike in all of these are counted: of three with two copies, one is left to deliver.

    Args:
        store: the store, just opened for writing.
        may_be_copy: whether a message was stored after the progress was saved; false for all before it.
    """

    def __init__(self, store: OpenStore, may_be_copy: Callable[[StoredMessage], bool]) -> None:
        self._store, self._may_be_copy = store, may_be_copy
        self._end = store.message_batch().log_end
        # Of each place and key, where the copies are, in their order.
        self._found: dict[tuple[str, int], dict[object, list[int]]] = {}
        # The log offsets of messages whose copies are counted out: one may be looked at again after a failure.
        self._done: set[int] = set()

    def count_out(self, source: StoredMessage, copy: Copy) -> bool:
        """Return whether a copy was made of a message that waits, and count it out."""
        message, text = copy
        if source.log_offset >= self._end or source.log_offset in self._done:
            return source.log_offset < self._end
        place = message.topic, message.queue or 0
        if place not in self._found:
            self._found[place] = self._copies_in(*place)
        copies = self._found[place].get(_key(message, text), [])
        at = bisect(copies, source.log_offset)
        if at == len(copies):
            return False
        del copies[at]
        self._done.add(source.log_offset)
        return True

    def _copies_in(self, topic: str, queue: int) -> dict[object, list[int]]:
        found: dict[object, list[int]] = {}
        for message in latest(self._store, topic, queue, self._may_be_copy):
            if message.log_offset < self._end and _REAL_TOPIC in message.record:
                key = _key(message, stored_text(message))
                found.setdefault(key, []).append(message.log_offset)
        for copies in found.values():
            copies.sort()
        return found


def _key(message: Message | StoredMessage, text: bytes) -> object:
    pairs = {name: value for name, value in pairs_of(text).items() if name not in _OF_ONE_COPY}
    return (
        blake2b(message.body, digest_size=16).digest(), frozenset(pairs.items()),
        message.born_time_ms, message.reconsume_times,
    )  # fmt: skip


def latest(
    store: OpenStore, topic: str, queue: int, is_wanted: Callable[[StoredMessage], bool]
) -> Iterator[StoredMessage]:
    """Yield the messages of a queue that were stored after the last one that is not wanted, the newest part first."""
    low, stop = store.min_offset(topic, queue), store.max_offset(topic, queue)
    while stop > low:
        start = max(stop - _AT_ONCE, low)
        read = _read(store, topic, queue, start, stop)
        new = [message for message in read if is_wanted(message)]
        yield from new
        if len(new) < len(read):
            return
        stop = start


def _read(store: OpenStore, topic: str, queue: int, start: int, stop: int) -> list[StoredMessage]:
    """Return the messages with the queue offsets [start, stop)."""
    found: list[StoredMessage] = []
    while start < stop:
        read = store.read(topic, queue, start, stop - start)
        found += [message for message in read.messages if message.queue_offset < stop]
        if read.next_offset <= start:
            break
        start = read.next_offset
    return found
