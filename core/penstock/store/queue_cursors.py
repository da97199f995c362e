"""The cursor of each queue that messages are put to, and what extensions say of such puts. Safe from any thread."""

import threading
from collections.abc import Sequence

import attrs

from penstock._kernel import QueueCursor
from penstock.contracts import Extension, QueueIndex, QueueReader
from penstock.errors import MessageError, PluginError, StorageError, SystemLimitError
from penstock.format.names import QUEUE_MAX, check_queue, check_topic
from penstock.log.commit_log import LIMITS
from penstock.message import Message
from penstock.store.consumer_offsets import ConsumerOffsets


@attrs.define(eq=False)
class QueueCursors:
    """The cursors of one store; the encoder calls them for the first message to a queue.

    Attributes:
        guard: while it is held, no cursor is made.
    """

    _index: QueueIndex
    _offsets: ConsumerOffsets
    _extensions: Sequence[Extension]
    _long_topics: bool
    _made: dict[tuple[str, int], QueueCursor] = attrs.Factory(dict)
    guard: threading.Lock = attrs.Factory(threading.Lock)

    def of(self, topic: str, queue: int) -> QueueCursor:
        """Return the cursor of a queue; topic and queue are checked the first time."""
        is_known = type(topic) is str and type(queue) is int
        cursor = self._made.get((topic, queue)) if is_known else None
        if cursor is None:
            topic, queue = check_topic(topic, long=self._long_topics), check_queue(queue)
            with self.guard:
                cursor = self._made.get((topic, queue))
                if cursor is None:
                    cursor = make_cursor(self._index, topic, queue)
                    self._offsets.queue_begins(topic, queue, cursor.next_offset)
                    self._made[topic, queue] = cursor
        return cursor

    def for_put(self, topic: str, queue: int) -> QueueCursor:
        """Return the cursor of a queue for messages that callers put; extensions may refuse them."""
        cursor = self.of(topic, queue)
        for each in self._extensions:
            each.check_put(cursor.topic, cursor.queue)
        return cursor

    def restart(self, topic: str) -> None:
        """Let the queues of a topic begin at offset 0; called under `guard` and the append lock."""
        for (name, _), cursor in self._made.items():
            if name == topic:
                cursor.next_offset = 0

    def turns_of(self, topic: str) -> tuple[int, int]:
        """Return how many queues of a topic take turns, as extensions know, and the first: after the last opening's."""
        given = (each.queues_of(topic) for each in self._extensions)
        count = min(next((count for count in given if count is not None), 1), QUEUE_MAX + 1)
        return count, sum(self._end_of(topic, queue) for queue in range(count)) % count

    def _end_of(self, topic: str, queue: int) -> int:
        cursor = self._made.get((topic, queue))
        return self._index.max_offset(topic, queue) if cursor is None else cursor.next_offset

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes]:
        """Return what an extension stores in place of a message that requests more than to be stored."""
        for each in self._extensions:
            made = each.rewrite(message)
            if made is not None:
                return made
        raise MessageError(
            "a message with a delay or a partition_key is refused: no extension of this store handles it; nothing was "
            "stored. Add one that does to extensions.use: `penstock plugins` lists them"
        )


_OFFSET_END = 1 << 63


def make_cursor(index: QueueReader, topic: str, queue: int) -> QueueCursor:
    """Return the cursor of a queue whose topic and number were checked.

    Raises `PluginError` if the queue index returns an impossible offset, `StorageError` if it cannot read its files,
    and `SystemLimitError` if the system has no resources left for that.
    """
    following = _next_offset(index, topic, queue)
    # The queue index is a plugin, and its answer is written to the log permanently.
    if not (isinstance(following, int) and 0 <= following < _OFFSET_END):
        raise PluginError(
            f"the queue index returned {following!r} as the next offset of queue {topic}/{queue}, which is not a "
            f"valid offset; nothing was stored. Fix or replace that plugin, see penstock plugins"
        )
    return QueueCursor(str(topic), queue, following)


def _next_offset(index: QueueReader, topic: str, queue: int) -> object:
    """Return the next offset from the index, which may now read the queue's files for the first time."""
    try:
        return index.max_offset(topic, queue)
    except OSError as error:
        if error.errno in LIMITS:
            raise SystemLimitError(str(error)) from error
        raise StorageError(
            f"the files of queue {topic}/{queue} cannot be read ({error}), so the next offset of the queue is not "
            f"known; nothing was stored. Other queues are not affected; check the disk, and try again"
        ) from error
