"""Reads one queue: by queue offset, as RocketMQ does, with its status. Changes nothing on disk."""

from collections.abc import Callable

from penstock.contracts import (
    Dispatcher,
    EntryChunk,
    KeyIndex,
    QueueReader,
)
from penstock.errors import (
    ArgumentError,
    CorruptionError,
    OffsetError,
    StorageError,
    StoreClosedError,
)
from penstock.escape import get_logger, shown
from penstock.format import arguments
from penstock.format.arrays import np
from penstock.format.names import check_queue, check_topic, is_hidden
from penstock.log.record_reader import Entries, QueuePosition, RecordReader
from penstock.log.scan import quarantined_at
from penstock.log.segmented_log import SegmentedLog
from penstock.message import ReadResult, ReadStatus, StoredMessage
from penstock.read.filters import (
    TagFilter,
    out_of_bounds,
    unknown_topic,
)
from penstock.read.spans import (
    ColumnReader,
    QueueSpan,
)
from penstock.runtime.waking import Wakes

logger = get_logger(__name__)

# As in the Java store: the maximum number of entries that one read inspects while nothing matches.
LOOKED_AT_MAX = 800
# The minimum number of entries read at once without a tag filter.
_NEAR = 8


class OneQueueReader:
    """The part of a store that reads its queues one by one. Safe from any thread."""

    def __init__(
        self,
        log: SegmentedLog,
        queue_index: QueueReader,
        key_index: KeyIndex | None,
        *,
        live: bool,
        published: Callable[[], int | None],
        wakes: Wakes,
        removed_before: Callable[[str], int] = lambda _topic: 0,
    ) -> None:
        self._removed_before = removed_before
        self._published = published
        self._wakes = wakes
        self._log = log
        self._queue_index = queue_index
        self._key_index = key_index
        self._records = RecordReader(log, live=live)
        self._columns = ColumnReader(log, queue_index, published)
        self._live = live
        self._closed = False
        # The reason why the store is closed, if it was not closed by the caller.
        self._why_closed: StorageError | None = None
        self._damaged_reads = 0

    def _make_readable(self, needed: Dispatcher | None = None) -> None:
        """Make the records written by this process readable through queues and index; `Store` overrides it.

        `needed` is the dispatcher that must have processed these records; the queue index if None.
        """
        self._check_open()

    def _show(self) -> None:
        """Make the records written by this process readable by log offset; needs no dispatcher."""
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise self._why_closed or StoreClosedError

    # --- queues

    def topics(self, *, system: bool = False) -> dict[str, list[int]]:
        """Return every topic that has, or had, messages, with the numbers of such queues; see also `topic_configs`.

        With `system` also topics that RocketMQ keeps for itself. Those hold delayed, prepared and retried messages, for
        example; dead letters (`%DLQ%...`) are always listed.
        """
        system = arguments.flag("topics", "system", system)
        self._make_readable()
        found: dict[str, list[int]] = {}
        for topic, queue in self._queue_index.queues():
            if system or not is_hidden(topic):
                found.setdefault(topic, []).append(queue)
        return found

    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset that can be read; 0 for a queue, or a topic, that does not exist yet."""
        self._make_readable()
        return self._queue_index.min_offset(check_topic(topic), check_queue(queue))

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset that the next message will get; 0 for a queue or topic that does not exist yet."""
        self._make_readable()
        return self._queue_index.max_offset(check_topic(topic), check_queue(queue))

    def read(
        self, topic: str, queue: int, offset: int = 0, limit: int = 32, tag: str = "*"
    ) -> ReadResult:
        """Read up to `limit` messages of a queue from `offset` on.

        Returns RocketMQ's status and the offset to continue with, even if nothing was found, or if a queue of the topic
        has no message yet. `tag` is `*`, one tag, or multiple tags joined by `||`. While nothing matches, one call
        inspects at most 800 entries. A corrupt record is skipped and counted in `stats()`.

        Args:
            topic: the topic.
            queue: the queue's number.
            offset: the queue offset to begin at. An offset outside of the queue is not an error: see
                `ReadResult.out_of_range`.
            limit: maximum number of messages, at least 1.
            tag: which messages to return.

        Raises:
            ArgumentError: an argument has a wrong type or value; nothing was read.
            UnknownTopicError: there is no such topic.
        """
        self._make_readable()
        # Compared here first, because a call costs as much as reading some messages.
        if type(offset) is not int:
            offset = arguments.whole("read", "offset", offset, arguments.INT64_MIN)
        if type(limit) is not int or limit < 1:
            limit = arguments.whole("read", "limit", limit, 1)
        if type(tag) is not str:
            tag = arguments.text("read", "tag", tag, "a string such as '*', 'a' or 'a || b'")
        low, high = self._queue_index.ends(check_topic(topic), check_queue(queue))
        refusal = out_of_bounds(offset, low, high)
        if refusal is not None:
            if not high:
                self._check_is_known("read", topic, queue)
            return ReadResult(refusal[0], [], refusal[1], low, high)
        stop = int(min(high, offset + limit))
        if (
            tag == "*"
            and offset < stop
            and (found := self._read_contiguous(topic, queue, offset, stop))
        ):
            return ReadResult(ReadStatus.FOUND, found, stop, low, high)
        span = QueueSpan(topic, queue, offset, min(high, offset + max(LOOKED_AT_MAX, limit)))
        nothing = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, [], offset, low, high)
        return self._read_span(span, limit, tag, nothing)

    def _read_contiguous(
        self, topic: str, queue: int, start: int, stop: int
    ) -> list[StoredMessage]:
        """Return all messages of [start, stop) if each is valid, and near the one before; else an empty list."""
        if stop - start == 1:
            return self._read_one(topic, queue, start)
        entries = self._queue_index.entries(topic, queue, start, stop)
        if len(entries.sizes) < stop - start:
            return []
        asked = Entries(np.arange(start, stop), entries.log_offsets, entries.sizes)
        found = self._leading(asked, QueuePosition.of(topic, queue), all_near=True)
        return found if len(found) == stop - start else []

    def _read_one(self, topic: str, queue: int, offset: int) -> list[StoredMessage]:
        """Return the message at an offset in a list, which is empty if it is not present and valid. Needs no numpy."""
        place = self._queue_index.place(topic, queue, offset)
        if place is None:
            return []
        try:
            return [self._records.message(*place, QueuePosition.of(topic, queue), offset)]
        except (OffsetError, CorruptionError):
            return []

    def _read_span(self, span: QueueSpan, limit: int, tag: str, result: ReadResult) -> ReadResult:
        """Return up to `limit` messages of a span that match, none after a missing queue file."""
        # Without a tag filter, usually every entry matches.
        chunk = max(limit, _NEAR) if tag == "*" else LOOKED_AT_MAX
        wanted, place = TagFilter(tag), QueuePosition.of(span.topic, span.queue)
        for entries in self._queue_index.iter_entries(*span, chunk):
            if entries.start > result.next_offset:
                break
            result = self._read_entries(entries, place, limit, wanted, result)
            if len(result.messages) >= limit:
                return result
        if result.next_offset > span.start:
            return result
        following = self._queue_index.resume_at(*span[:3])
        return result._replace(status=ReadStatus.OFFSET_FOUND_NULL, next_offset=following)

    def _read_entries(
        self,
        entries: EntryChunk,
        place: QueuePosition,
        limit: int,
        wanted: TagFilter,
        before: ReadResult,
    ) -> ReadResult:
        """Return the result `before`, extended by the messages of these entries."""
        status, messages, following, low, high = before
        end = following + len(entries.sizes)
        asked = Entries(np.arange(following, end), entries.log_offsets, entries.sizes)
        is_wanted = (entries.sizes != 0) & wanted.may_match(entries.tag_codes)
        if not is_wanted.all():
            asked = Entries(*(column[is_wanted] for column in asked))
        while len(messages) < limit and len(asked.sizes):
            count = limit - len(messages)
            inspected = Entries(*(column[:count] for column in asked))
            found, missing = self._messages(inspected, place)
            if missing:
                status = ReadStatus.MESSAGE_WAS_REMOVING
            messages += found if wanted.is_any else filter(wanted.matches, found)
            count = len(inspected.sizes)
            following, asked = int(inspected.ordinals[-1]) + 1, asked.after(count)
        if len(messages) < limit:
            following = end
        return ReadResult(ReadStatus.FOUND if messages else status, messages, following, low, high)

    def _messages(self, asked: Entries, place: QueuePosition) -> tuple[list[StoredMessage], int]:
        """Return the messages of entries, and how many are deleted or corrupt; logs corruption."""
        found: list[StoredMessage] = []
        missing = 0
        while len(asked.sizes):
            some = self._leading(asked, place)
            found += some
            asked = asked.after(len(some))
            if not some:
                ordinal, offset, size = (int(column[0]) for column in asked)
                message = self._try(offset, size, place, ordinal)
                if message is None:
                    missing += 1
                else:
                    found.append(message)
                asked = asked.after(1)
        return found, missing

    def _leading(
        self, asked: Entries, place: QueuePosition, *, all_near: bool = False
    ) -> list[StoredMessage]:
        """Return the first messages up to the first invalid record, possibly none; the caller then reads one by one."""
        try:
            return self._records.leading(asked, place, all_near=all_near)
        except (OffsetError, CorruptionError):
            return []

    def _try(
        self, log_offset: int, size: int, place: QueuePosition, ordinal: int
    ) -> StoredMessage | None:
        """Return a message, or None if it is deleted or corrupt; logs corruption."""
        try:
            return self._records.message(log_offset, size, place, ordinal)
        except OffsetError:
            return None
        except CorruptionError as error:
            topic = "" if place.topic is None else f"{place.topic.decode()}, "
            is_noted = quarantined_at(self._log, log_offset) is not None
            noted = "; it is quarantined" if is_noted else ""
            self._count_corrupt(error, f" ({topic}queue {place.queue}, offset {ordinal}){noted}")
            return None

    def _count_corrupt(self, error: CorruptionError, where: str = "") -> None:
        self._damaged_reads += 1
        logger.error("%s%s", error, where)

    # --- queues that there are

    def _check_is_known(self, call: str, topic: str, queue: int | None = None) -> None:
        """Like `_refuse_unknown`, in calls that an extension makes for topics which nobody has put to yet."""
        # Without a configuration, or before a reader sees it, a new topic may have a queue without a message.
        self._refuse_unknown(call, topic, queue if self._declared_queues(topic) else None)

    def _refuse_unknown(self, call: str, topic: str, queue: int | None) -> None:
        """Raise if a topic neither has this queue nor will by its configuration; with None, if no such topic exists."""
        known, declared = self.topics(system=True), self._declared_queues(topic)
        there = known.get(topic, [])
        if not there and not declared:
            raise unknown_topic(topic, known)
        if queue is not None and queue not in there and queue >= declared:
            numbers = shown(sorted({*there, *range(declared)}))
            raise ArgumentError(call, "queue", queue, f"a queue of topic {topic!r}: {numbers}")

    def _declared_queues(self, topic: str) -> int:
        """Return how many queues a topic has by its configuration, with messages or without; 0 if none is known."""
        return 0
