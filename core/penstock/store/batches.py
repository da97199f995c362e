"""Batches of a store that is open for writing: encoded ones, and those to which messages are added one by one."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from penstock._kernel import Batch, BatchProducer
from penstock.errors import (
    MessageError,
    MessageTooLargeError,
    TopicQueueError,
    TransactionEndedError,
)
from penstock.format.arrays import np
from penstock.format.record import BLANK_SIZE
from penstock.log.commit_log import CommitLog
from penstock.log.scan import batch_marks, read_mark
from penstock.message import Durability, Message, PutStatus, Receipt
from penstock.store.engine import Engine
from penstock.write.validation import (
    add_copy,
    check_messages,
    check_wait,
    is_plain,
    listed,
    rewritten,
)


def append_encoded(
    engine: Engine,
    batch: Batch,
    *,
    atomic: bool = False,
    decision: int | None = None,
    wait: bool = False,
    first_mark: int = 0,
) -> tuple[int, tuple[PutStatus, Durability]]:
    """Append an encoded batch and apply the flush policy; returns its store time, and its status and durability."""
    size, room = batch.size, engine.log.log.segment_bytes - 8
    if atomic and size > room:
        raise MessageTooLargeError(
            "the batch", size, room,
            "an atomic batch must fit into one segment: use a smaller batch, or do not set atomic",
        )  # fmt: skip
    if atomic and batch.has_prepared:
        raise prepared_refused()
    try:
        time_ms = engine.log.append_batch(
            batch, atomic=atomic, decision=decision, first_mark=first_mark
        )
    except OSError as error:
        raise engine.flusher.failed_append(error) from error
    known = PutStatus.PUT_OK, Durability.ACCEPTED
    return time_ms, engine.apply_policy(batch.end_offset, wait) if len(batch) else known


Result = TypeVar("Result")


def with_queues(
    add_queue: Callable[[str, int], None], places: Iterable[tuple[str, int | None]], append: Callable[[], Result]
) -> Result:  # fmt: skip
    """Return what `append` returns; adds the queues that it puts to, where messages have created the topic.

    For messages whose queues were picked elsewhere: imported ones, and those of a parallel job.
    """
    grown = set[str]()
    while True:
        try:
            return append()
        except TopicQueueError as error:
            if error.topic in grown:
                raise
            grown.add(error.topic)
            add_queue(
                error.topic, max(queue or 0 for topic, queue in places if topic == error.topic)
            )


def prepared_refused() -> MessageError:
    """Return the error for a message in an atomic batch that has a PREPAREDTRANSACTIONOFFSET of its own."""
    return MessageError(
        "a message with a prepared_offset cannot be part of an atomic batch, whose marks are in the same field: put it "
        "by itself; nothing was stored"
    )


class StoreBatch(BatchProducer):
    """A `MessageBatch`, stored whole or not at all (see `log.scan`); the kernel has `put`. Safe from any thread."""

    def __init__(self, writer: Callable[[], Engine]) -> None:
        """`writer` returns the store's writing half, or raises if messages may not be put."""
        log = writer().log
        self._writer = writer
        self._batch = batch = Batch(log.encoder)
        self._room = log.log.segment_bytes - BLANK_SIZE
        self._produce_into(batch, log.appender, self._room)
        # A signal handler may put while its thread does.
        self._lock = threading.RLock()
        self._is_over = False
        # The queues of copies, to which callers must not put.
        self._copied = set[tuple[str, int]]()

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._batch.size

    @property
    def log_end(self) -> int:
        """See `MessageBatch.log_end`."""
        return self._writer().log.end_offset

    def add(self, message: Message) -> None:
        """See `MessageBatch.add`."""
        waits = check_wait(message.wait)
        self._hold()
        try:
            with self._lock:
                self._check_open("put")
                self._add(message)
                self._waits |= waits
        finally:
            self._release()

    def add_many(self, messages: Iterable[Message]) -> None:
        """See `MessageBatch.add_many`."""
        self._writer()
        given = listed(messages)
        check_messages(given)
        waits = True in [check_wait(each.wait) for each in given]
        # Until all are added, another thread must not add one: it would be removed after an error.
        self._hold()
        try:
            with self._lock:
                self._check_open("put_many")
                self._add_all(given)
                self._waits |= waits
        finally:
            self._release()

    def _check_open(self, call: str) -> None:
        if self._is_over:
            raise TransactionEndedError(call)
        self._writer()

    def _add_all(self, given: Iterable[Message]) -> None:
        count = len(self._batch)
        try:
            for message in given:
                self._add(message)
        except BaseException as error:
            number = len(self._batch) - count
            self._batch.shorten(count)
            if isinstance(error, MessageError):
                error.add_note(f"it is message {number} of the call; none of them was added")
            raise

    def _add(self, message: Message) -> None:
        batch = self._batch
        count = len(batch)
        if message.prepared_offset:
            raise prepared_refused()
        batch.set_born_time()
        if is_plain(message):
            batch.add(message)
        else:
            made = rewritten(batch, message)
            if isinstance(made, tuple):
                add_copy(batch, *made)
                self._copied.add((made[0].topic, int(made[0].queue)))
            else:
                batch.add(made)
        if batch.size > self._room:
            size = batch.size
            batch.shorten(count)
            raise MessageTooLargeError(
                f"the batch with message {count}", size, self._room,
                "messages that are stored together must fit into one segment: store fewer or shorter ones together, or "
                "use a store with a larger geometry.segment_bytes; this message was not added",
            )  # fmt: skip

    def end(self) -> None:
        """See `MessageBatch.end`."""
        self._hold()
        with self._lock:
            self._is_over = True

    def append(self, *, wait: bool | None = None, decision: int | None = None) -> Sequence[Receipt]:
        """See `MessageBatch.append`."""
        self.end()
        engine, batch = self._writer(), self._batch
        engine.log.check_put(batch.largest)
        for cursor in batch.cursors:
            if (cursor.topic, cursor.queue) not in self._copied:
                # Asks the extensions again if the topic was changed or deleted since.
                engine.log.encoder.cursor_of(cursor.topic, cursor.queue)
        wait = self._waits if wait is None else wait
        time_ms, known = append_encoded(engine, batch, atomic=True, decision=decision, wait=wait)
        return batch.receipts(time_ms, *known)


def decided_batches(log: CommitLog, log_offset: int) -> set[int]:
    """Return the decisions, low 30 bits each, of the whole atomic batches that begin at `log_offset` or after it.

    A record begins at `log_offset`, or the log ends there. Recovery has cut off a batch whose end is missing; but a
    broker may have opened the store before, and kept a part of a batch, which does not count.
    """
    found = set[int]()
    decision = other = reached = end = 0
    for number, at, size in _marked(log, max(log_offset, log.log.min_offset)):
        if end and at == reached and number == other:
            reached += size
        else:
            reached, end, mark, segment = at + size, 0, read_mark(number), log.log.find(at)
            if mark is None or segment is None or not (mark.is_first and mark.is_decided):
                continue
            base, decision = segment.base_offset, mark.decision
            if not reached <= base + mark.end <= segment.end_offset:
                continue
            end, other = base + mark.end, batch_marks(at - base, mark.end, decision)[1]
        if reached == end:
            found.add(decision)
            end = 0
    return found


def _marked(log: CommitLog, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield mark, log offset and size of each record that has a mark, well-formed or not."""
    for batch in log.batches(start, log.end_offset):
        columns = batch.columns
        rows = np.flatnonzero(columns.prepared_offsets < 0)
        parts = columns.prepared_offsets, columns.log_offsets, columns.sizes
        yield from zip(*(part[rows].tolist() for part in parts), strict=True)
