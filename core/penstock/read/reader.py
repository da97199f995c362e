"""Reads a store: by queue offset, in order, by key, by id, by time, as columns. Changes nothing on disk.

Works the same on a store that this process writes, on one that another process is writing, and on a
broker's directory. Every record read is checked (see `record_reader`). A corrupt record is left out and logged, and
`read` reports it in its status; all other records are returned.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    ArgumentError,
    ConfigError,
    CorruptionError,
    OffsetError,
)
from penstock.format import arguments
from penstock.format.arrays import np
from penstock.format.names import check_queue, check_topic, is_waiting
from penstock.log.record_reader import QueuePosition
from penstock.log.resync import explain
from penstock.message import StoredMessage
from penstock.read.filters import (
    Offsets,
    Place,
    RowFilter,
    TagFilter,
    by_queue,
    checked_columns,
    checked_offsets,
    checked_tags,
    checked_topics,
    has_key,
    out_of_line,
)
from penstock.read.key_search import KeySought, TimeSearch, find_keyed
from penstock.read.one_queue import OneQueueReader
from penstock.read.spans import (
    BATCH_BYTES_MAX,
    Limits,
    QueueSpan,
    begins_of,
    refuse_lost,
)
from penstock.runtime.waking import Waiter

if TYPE_CHECKING:
    import pyarrow as pa

_BOUNDARIES = ("lower", "upper")
# The maximum store time of a search; all records have a lesser one.
_TIME_MAX = 1 << 62
# The columns of this many rows fit into the cache of a core.
_TABLE_ROWS = 2048
# Maximum number of rows, and of bytes, of one batch that a caller may request.
ROWS_MAX = 1 << 31


class Reader(OneQueueReader):
    """The reading half of a store. Safe from any thread."""

    # --- in order

    def scan(
        self,
        topics: str | Iterable[str],
        *,
        queue: int | None = None,
        tag: str = "*",
        key: str | None = None,
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        start: Offsets | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[StoredMessage]:
        """Yield the messages of some topics in the order in which they were stored.

        Args:
            topics: one topic or more.
            queue: only this queue of each topic; all queues if None.
            tag: a tag, several joined by `||`, or `*` for all messages.
            key: only messages with this key; `find` is faster where they are few.
            since: only messages stored then or later: an aware `datetime`, Unix seconds, or a `timedelta`, so long ago.
            until: only messages stored at or before this time.
            start: the queue offset to begin at if one queue is read; otherwise a mapping of (topic, queue) to offset.
                Queues that are not in the mapping are read from their first message on.
            limit: maximum number of messages, at least 1.
            follow: at the end, wait for new messages, also of a topic that does not exist yet, or is made again.

        Raises:
            ArgumentError: an argument has a wrong type or value. The call itself raises.
            UnknownTopicError: there is no such topic.
        """
        call = "scan"
        wanted = checked_tags(call, tag)
        if key is not None:
            arguments.instance(call, "key", key, str, "a string")
        most = None if limit is None else arguments.whole(call, "limit", limit, 1)
        names = checked_topics(call, topics)
        since = arguments.fixed(call, "since", since)
        if arguments.flag(call, "follow", follow) and until is not None:
            raise ArgumentError(call, "until", until, "left out, since follow=True has no end")
        self._make_readable()
        removed, below = {n: self._removed_before(n) for n in names if follow}, self._complete_offset()  # fmt: skip
        spans = self._spans(call, names, queue, since=since, until=until, start=start, may_be_new=follow)  # fmt: skip
        if follow:
            found = self._scan_on(removed, queue, begins_of(names, queue, start, spans), since, wanted)  # fmt: skip
        else:
            found = self._scan_once(spans, wanted, below if len(spans) > 1 else None, {})
        if key is not None:
            found = (message for message in found if has_key(message, key))
        return found if most is None else itertools.islice(found, most)

    def _spans(
        self,
        call: str,
        topics: Sequence[str],
        queue: int | None,
        *,
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        start: Offsets | None = None,
        stop: Offsets | None = None,
        may_be_new: bool = False,
    ) -> list[QueueSpan]:
        """Return the ranges of queues that a read asks for, with what is there now."""
        after_ms = None if since is None else arguments.moment_ms(call, "since", since, up=True)
        before_ms = None if until is None else arguments.moment_ms(call, "until", until, up=False)
        starts, stops = checked_offsets(call, "start", start), checked_offsets(call, "stop", stop)
        places = self._places(call, topics, queue, may_be_new=may_be_new)
        firsts = by_queue(call, "start", starts, topics, places)
        lasts = by_queue(call, "stop", stops, topics, places)
        spans = []
        for span in self._ranges(places, firsts):
            first, last = span.start, min(lasts.get(span[:2], span.stop), span.stop)
            if after_ms is not None:
                first = max(first, self._first_from(*span[:2], after_ms))
            if before_ms is not None:
                last = min(last, self._first_from(*span[:2], before_ms + 1))
            spans.append(span._replace(start=first, stop=max(first, last)))
        return spans

    def _ranges(self, places: Iterable[Place], firsts: Mapping[Place, int]) -> Iterator[QueueSpan]:
        """Yield the messages that queues have now, from their first offsets on."""
        for place in places:
            low, high = self._queue_index.ends(*place)
            first = max(firsts.get(place, low), low)
            yield QueueSpan(*place, first, max(first, high))

    def _places(
        self, call: str, topics: Iterable[str], queue: int | None, *, may_be_new: bool
    ) -> list[Place]:
        """Return the queues of some topics, or the one with that number of each."""
        known = self.topics(system=True)
        queue = None if queue is None else check_queue(queue)
        places: list[Place] = []
        for topic in topics:
            there = known.get(topic, [])
            if not there:
                # Raises if the topic exists and the format of its queues is not understood.
                self._queue_index.max_offset(topic, 0)
            if not may_be_new:
                self._refuse_unknown(call, topic, queue)
            places += [(topic, number) for number in there if queue in (None, number)]
        return places

    def _scan_on(
        self,
        removed: dict[str, int],
        queue: int | None,
        reached: dict[Place, int],
        since: float | datetime | timedelta | None,
        wanted: TagFilter,
    ) -> Iterator[StoredMessage]:
        """Yield the present messages from the offsets in `reached` on, then new ones as they arrive, without end.

        `removed` has the log offset before which each topic was removed, before these offsets were determined: a topic
        that is removed later is read from its first message.
        """
        after_ms = arguments.INT64_MIN
        if since is not None:
            after_ms = arguments.moment_ms("scan", "since", since, up=True)
        waiter = Waiter(self._wakes)
        while True:
            # A message that is published after this ends `rest`, so the queues are looked at after it.
            waiter.ask()
            self._make_readable()
            # In this order: a queue that is new after `below` was read has no message below it.
            is_one = queue is not None and len(removed) == 1
            below = self._published() if is_one else self._complete_offset()
            for topic, known in removed.items():
                removed[topic] = self._removed_before(topic)
                if removed[topic] != known:
                    reached = {place: at for place, at in reached.items() if place[0] != topic}
            before, places = dict(reached), self._places("scan", removed, queue, may_be_new=True)
            for message in self._scan_once(
                [*self._ranges(places, reached)], wanted, below, reached
            ):
                if message.store_time_ms >= after_ms:
                    yield message
            if reached != before:
                waiter.go_on()
            else:
                waiter.rest()

    def _first_from(self, topic: str, queue: int, time_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time; the queue's end if none."""
        bounds = (
            self._queue_index.min_offset(topic, queue),
            self._queue_index.max_offset(topic, queue),
        )
        place = QueuePosition.of(topic, queue)
        search = TimeSearch(
            self._log, self._queue_index, (topic, queue), bounds,
            lambda log_offset, size, ordinal: self._try(log_offset, size, place, ordinal),
        )  # fmt: skip
        return search.first_from(time_ms)

    def _scan_once(
        self,
        spans: list[QueueSpan],
        wanted: TagFilter,
        below: int | None,
        reached: dict[Place, int],
    ) -> Iterator[StoredMessage]:
        """Yield the messages of ranges of queues, in log order, that begin below a log offset.

        `reached` gets the offset after the last one of each queue.
        """
        self._check_open()
        streams = [
            self._entries_of(number, span, wanted, below, reached)
            for number, span in enumerate(spans)
        ]
        places = [QueuePosition.of(span.topic, span.queue) for span in spans]
        for log_offset, size, number, ordinal in heapq.merge(*streams):
            message = self._try(log_offset, size, places[number], ordinal)
            if message is not None and wanted.matches(message):
                yield message

    def _complete_offset(self) -> int:
        """Return the log offset below which every queue has all its entries."""
        published = self._published()
        return self._queue_index.end_log_offset() if published is None else published

    def _entries_of(
        self,
        number: int,
        span: QueueSpan,
        wanted: TagFilter,
        below: int | None,
        reached: dict[Place, int],
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield (log offset, size, number of the span, ordinal) of the entries of a span that may match."""
        place = QueuePosition.of(span.topic, span.queue)
        for entries in self._queue_index.iter_entries(*span):
            is_there, at = entries.sizes != 0, entries.start
            if below is not None:
                is_there &= entries.log_offsets < below
            if is_there.any():
                reached[span[:2]] = at + int(np.nonzero(is_there)[0][-1]) + 1
            present = np.nonzero(is_there & wanted.may_match(entries.tag_codes))[0]
            offsets, sizes = entries.log_offsets[present], entries.sizes[present]
            doubted = out_of_line(offsets)
            for row, log_offset, size, is_doubted in zip(
                present.tolist(), offsets.tolist(), sizes.tolist(), doubted.tolist(), strict=True
            ):
                # One corrupt entry must not delay the entries after it in the merge.
                if not is_doubted or self._try(log_offset, size, place, at + row) is not None:
                    yield log_offset, size, number, at + row

    # --- by address, time and key

    def at(self, log_offset: int) -> StoredMessage:
        """Return the message whose record begins at `log_offset`.

        Raises `NoRecordError`, which names the nearest records, if none begins there, `CorruptionError` if the
        record is corrupt.
        """
        self._show()
        log_offset = arguments.whole("at", "log_offset", log_offset, arguments.INT64_MIN)
        if log_offset < 0:
            raise OffsetError(log_offset, self._log.min_offset, self._log.committed_offset)
        try:
            return self._records.message_at(log_offset)
        except (CorruptionError, OffsetError):
            # The offset may be wrong rather than the record corrupt.
            found = explain(self._log, log_offset)
            if found is None:
                raise
            raise found from None

    def get(self, message_id: str) -> StoredMessage:
        """Return the message with an offset message id (32 hexadecimal digits, 56 for an IPv6 host)."""
        expected = "a message id, which has 32 or 56 hexadecimal digits"
        arguments.text("get", "message_id", message_id, expected)
        try:
            raw = bytes.fromhex(message_id)
        except ValueError:
            raw = b""
        if len(raw) not in (16, 28):
            raise ArgumentError("get", "message_id", message_id, expected)
        message = self.at(int.from_bytes(raw[-8:], "big", signed=True))
        if message.message_id != message_id.upper():
            raise OffsetError(
                message.log_offset, self._log.min_offset, self._log.committed_offset,
                text=f"no message of the store has the id {message_id}; the one at its log offset has "
                f"{message.message_id}",
            )  # fmt: skip
        return message

    def offset_at(
        self, topic: str, queue: int, time: float | datetime | timedelta, *, boundary: str = "lower"
    ) -> int:
        """Return the queue offset at a store time, with the boundaries of RocketMQ 5.

        `lower`: the first message stored at or after `time`, or the maximum if all are older.
        `upper`: the last message stored at or before `time`, or the minimum if all are newer.

        Args:
            topic: the topic.
            queue: the queue's number.
            time: a `datetime` with a time zone, Unix seconds, or a `timedelta`: so long ago. A `datetime` without a
                zone is refused, since its zone would be a guess.
            boundary: `lower` or `upper`.

        Raises:
            ArgumentError: an argument has a wrong type or value.
            UnknownTopicError: there is no such topic.
        """
        expected = "'lower' or 'upper'"
        if arguments.instance("offset_at", "boundary", boundary, str, expected) not in _BOUNDARIES:
            raise ArgumentError("offset_at", "boundary", boundary, expected)
        time_ms = arguments.moment_ms("offset_at", "time", time, up=boundary == "lower")
        low = self.min_offset(topic, queue)
        if not self._queue_index.max_offset(topic, queue):
            self._check_is_known("offset_at", topic, queue)
        if boundary == "lower":
            return self._first_from(topic, queue, time_ms)
        return max(self._first_from(topic, queue, time_ms + 1) - 1, low)

    def find(
        self,
        key: str,
        topic: str | None = None,
        *,
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages with that key, in the order in which they were stored.

        Key and topic are compared as text, so hash collisions are not returned. UNIQ_KEY counts as a key. A key with
        spaces matches consecutive keys.

        Args:
            key: the key.
            topic: only messages of this topic; of all topics if None.
            since: only messages stored then or later: an aware `datetime`, Unix seconds, or a `timedelta`, so long ago.
            until: only messages stored at or before this time.
            limit: return only the newest `limit` messages.

        Raises:
            ArgumentError: an argument has a wrong type or value.
            UnknownTopicError: there is no such topic.
        """
        self._make_readable(self._key_index)
        # Not `text`: a key from a record need not be UTF-8, and is found as it is.
        arguments.instance("find", "key", key, str, "a string")
        most = arguments.INT64_MAX if limit is None else arguments.whole("find", "limit", limit, 1)
        low, high = 0, _TIME_MAX
        if since is not None:
            low = arguments.moment_ms("find", "since", since, up=True)
        if until is not None:
            high = arguments.moment_ms("find", "until", until, up=False)
        if self._key_index is None:
            raise ConfigError(
                "find needs a key index, and the store has none: add a dispatcher that is one to index.use; `penstock "
                "plugins` lists the installed ones"
            )
        found: list[StoredMessage] = []
        for name in self.topics(system=True) if topic is None else (check_topic(topic),):
            if low <= high and not (topic is None and is_waiting(name)):
                sought = KeySought(name, key, low, high)
                found += find_keyed(self._log, self._try_at, self._candidates(sought), sought, most)
        if topic is not None and not found:
            self._check_is_known("find", topic)
        return sorted(found, key=lambda message: message.log_offset)[-most:]

    def _candidates(self, sought: KeySought) -> Iterator[int]:
        assert self._key_index is not None
        topic, key, *times = sought
        # The index has each word of KEYS, and UNIQ_KEY as a whole.
        words = dict.fromkeys((next((word for word in key.split(" ") if word), ""), key))
        streams = [self._key_index.candidates(topic, word, *times) for word in words]
        found = heapq.merge(*streams, reverse=True) if len(streams) > 1 else streams[0]
        before = self._removed_before(sought.topic)
        return (log_offset for log_offset in found if log_offset >= before) if before else found

    def _try_at(self, log_offset: int) -> StoredMessage | None:
        try:
            return self._records.message_at(log_offset)
        except OffsetError:
            return None
        except CorruptionError as error:
            # An index may point to a record that the log does not have; the log takes precedence.
            if explain(self._log, log_offset) is None:
                self._count_corrupt(error)
            return None

    # --- by columns

    def to_arrow(
        self,
        topics: str | Iterable[str],
        columns: Sequence[str] | None = None,
        *,
        queue: int | None = None,
        tag: str = "*",
        key: str | None = None,
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        start: Offsets | None = None,
        stop: Offsets | None = None,
        verify: bool = True,
    ) -> "pa.Table":
        """Return the messages of some topics as an Arrow table, without a Python object per row.

        The arguments are those of `to_reader`.
        """
        reader = self._batches(
            "to_arrow", topics, columns, queue=queue, tag=tag, key=key, since=since, until=until,
            start=start, stop=stop, rows=_TABLE_ROWS, verify=verify,
        )  # fmt: skip
        return reader.read_all()

    def to_reader(
        self,
        topics: str | Iterable[str],
        columns: Sequence[str] | None = None,
        *,
        queue: int | None = None,
        tag: str = "*",
        key: str | None = None,
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        start: Offsets | None = None,
        stop: Offsets | None = None,
        rows: int = 65_536,
        verify: bool = True,
    ) -> "pa.RecordBatchReader":
        """Return the messages of some topics as a stream of Arrow record batches, in the order of storing.

        The stream reads each batch on request, reads the log once, and ends with the last message that is present at
        the call. Any consumer of Arrow streams can read it: `pyarrow`, DuckDB, Polars, pandas. The store must stay open
        until the end. A request for a batch may raise Penstock's errors.

        Args:
            topics: one topic or more.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            queue: only this queue of each topic; all queues if None.
            tag: a tag, several joined by `||`, or `*` for all messages.
            key: only messages with this key.
            since: only messages stored then or later: an aware `datetime`, Unix seconds, or a `timedelta`, so long ago.
            until: only messages stored at or before this time.
            start: the queue offset to begin at if one queue is read; otherwise a mapping of (topic, queue) to offset.
                Queues that are not in the mapping are read from their first message on.
            stop: the queue offset before which to end, in the same form.
            rows: maximum number of rows in a batch.
            verify: check every record's CRC, so that a corrupt one is left out and logged, as in `scan`; without, one
                that has the right lengths counts as valid.

        Raises:
            ArgumentError: an argument has a wrong type or value.
            UnknownTopicError: there is no such topic.
        """
        rows = arguments.whole("to_reader", "rows", rows, 1, ROWS_MAX)
        return self._batches(
            "to_reader", topics, columns, queue=queue, tag=tag, key=key, since=since, until=until,
            start=start, stop=stop, rows=rows, verify=verify,
        )  # fmt: skip

    def _batches(
        self,
        call: str,
        topics: str | Iterable[str],
        columns: Sequence[str] | None,
        *,
        queue: int | None,
        tag: str,
        key: str | None,
        rows: int,
        verify: bool,
        **limits: Any,
    ) -> "pa.RecordBatchReader":
        from penstock.format import arrow_schema  # noqa: PLC0415 - pyarrow is an extra, and slow to import

        names = checked_columns(call, columns)
        keys = () if key is None else (arguments.text(call, "key", key),)
        wanted = RowFilter(checked_tags(call, tag).tags, keys)
        verify = arguments.flag(call, "verify", verify)
        topics = checked_topics(call, topics)
        self._make_readable()
        # Before the queues are looked at: a queue that begins meanwhile has no message below it.
        complete, published = self._complete_offset(), self._published()
        spans = self._spans(call, topics, queue, **limits)
        # Of one queue, `to_reader` returns what is published, as `bounds` does, and `to_arrow` all.
        of_one = published if call == "to_reader" else None
        below = complete if len(spans) > 1 else of_one
        if below is not None:
            ends = [self._queue_index.bounds_of(*span[:2], below).max_offset for span in spans]
            spans = [
                span._replace(stop=max(span.start, min(span.stop, end)))
                for span, end in zip(spans, ends, strict=True)
            ]
        batches = self._columns.span_batches(
            spans,
            names,
            Limits(rows, BATCH_BYTES_MAX),
            verify=verify,
            wanted=wanted,
            lost=refuse_lost,
            corrupt=self._count_corrupt,
        )
        return arrow_schema.reader_of(self._while_open(batches), names)

    def _while_open(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Yield batches; raises once the store is closed."""
        self._check_open()
        for batch in batches:
            yield batch
            self._check_open()

    def close(self) -> None:
        """Close all files; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        for dispatcher in (self._queue_index, self._key_index):
            if dispatcher is not None:
                dispatcher.close()
        self._log.close()
        self._wakes.close()
