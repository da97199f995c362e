"""The commit log: records appended under one lock, rolled over segments, read back as batches.

If a record fits and the segment's channel provides its memory, the kernel (`Appender`) stamps the record, copies it into
that memory and counts it, without interruption by other threads. Otherwise the lock is taken: the next segment is
obtained, or the record is written by the channel's `write`. A batch is encoded before the lock is taken; under the
lock, only its offsets and times are filled in, and it is written with one call for each segment.

Invariants:
    * A record ends at least 8 bytes before its segment does; the blank record takes the rest.
    * Store times never decrease along the log; queue offsets of a queue count up by one.
    * When an append raises, nothing of it is in the log, and a later append uses the same log offset. Only after an
      interrupt (Ctrl-C), the append may be in the log or not; if it is, it is complete, including its queue offset.
"""

import errno
from collections.abc import Callable, Iterator

from penstock._kernel import Appender, AppendLock, Batch, Draft, RecordEncoder
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.errors import MessageTooLargeError, StoreClosedError
from penstock.format.record import BLANK_SIZE
from penstock.log.atomic_batches import batch_marks
from penstock.log.batches import read_batches
from penstock.log.log_tail import BatchSlice, LogTail
from penstock.log.segment import Segment, lends
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import Clock

# Reasons for which single puts are refused or take the slow path; see `Appender.refuse`.
STOPPED, FAILED, NO_MESSAGES, NOT_STARTED = 1, 2, 4, 8


class CommitLog:
    """The log as records. One append at a time; any number of readers."""

    def __init__(
        self,
        log: SegmentedLog,
        tail: LogTail,
        encoder: RecordEncoder,
        *,
        clock: Clock,
        busy_ms: int,
        record_reserve: int = 0,
    ) -> None:
        self.log = log
        self.tail = tail
        self.encoder = encoder
        self._record_max = log.segment_bytes - BLANK_SIZE
        self._record_reserve = record_reserve
        self.lock = AppendLock(busy_ms, clock.monotonic_ns)
        self.appender = Appender(encoder, self.lock, self._append_slowly)
        self.appender.refuse(NOT_STARTED)
        self._floor_ms = self._found_ms = self._writing_ms = 0
        # Called under the lock when the log may have another segment.
        self.on_segment: Callable[[], None] = lambda: None
        # Returns the exception to raise for an append that failed with `OSError`; set by the engine.
        self.failed_append: Callable[[OSError], Exception] = lambda error: error
        # Returns why nothing may be appended although the log is open, or None; set by the engine.
        self.refusal: Callable[[], Exception | None] = lambda: None
        self._is_stopped = False
        # True while the store is opened: the records to dispatch were written by a process that has ended.
        self.checks_crc = True

    def resume(self, end_offset: int, least_time_ms: int, newest_ms: int = 0) -> None:
        """Begin appending at `end_offset`, the end that recovery found.

        No record gets a store time before `least_time_ms`; the newest existing record has the store time `newest_ms`.
        """
        self.appender.last_time_ms = self._floor_ms = least_time_ms
        self._found_ms = newest_ms
        self.tail.resume(end_offset)
        with self.lock:
            self._attach()

    def stop(self) -> None:
        """Take no more records: later appends are refused, earlier ones are complete when this returns."""
        self._is_stopped = True
        self.appender.refuse(STOPPED)
        if self.lock.is_owned():
            # A signal handler closes the store during an append of the same thread.
            return
        try:
            # Without a time limit: a close must not fail with `BusyError`.
            self.lock.acquire(for_ever=True)
            self.appender.detach()
        finally:
            if self.lock.is_owned():
                self.lock.release()

    @property
    def end_offset(self) -> int:
        """Log offset after the last record, committed or not."""
        tail = self.tail.segment
        return self.log.committed_offset if tail is None else tail.base_offset + tail.wrote_position

    @property
    def last_time_ms(self) -> int:
        """The latest store time: no record is later, and no later append is earlier; 0 if there is no record."""
        # A record becomes visible a moment before its time is noted in the appender.
        return max(self.appender.last_time_ms, self._writing_ms)

    @property
    def newest_time_ms(self) -> int:
        """Store time of an existing record, the newest or an earlier one; safe to write to the checkpoint."""
        last_ms = self.appender.last_time_ms
        return self._found_ms if last_ms == self._floor_ms else last_ms

    def _now_ms(self) -> int:
        """Return the wall-clock time, but not less than the last record's time."""
        return max(self.encoder.now_ms(), self.appender.last_time_ms)

    def _attach(self) -> None:
        """Point the kernel's appender at the current end of the log."""
        self.on_segment()
        segment = self.tail.segment
        if segment is None or segment.channel is None or self._is_stopped:
            self.appender.detach()
            return
        memory, end = None, segment.channel.memory_end
        # The appender may store into memory only if records are readable without a later commit.
        is_readable = end and self.tail.writer.commits_at_once
        if is_readable and lends(type(segment.channel), "memory", "write"):
            memory = segment.channel.memory
        # What is larger goes the slow way, which checks it.
        capacity = segment.capacity - self._record_reserve
        self.appender.attach(
            segment.extent, segment.base_offset, capacity, memory, end, segment.gathered
        )

    # --- one record

    def _append_slowly(self, draft: Draft) -> None:
        """Append one record that the kernel's appender cannot store; sets the draft's log offset."""
        self.lock.refuse_within()
        self.check_put(draft.size)
        tail, data, following, now = None, b"", 0, 0
        try:
            self.lock.acquire()
            self._check_accepts()
            now = self._now_ms()
            tail = self.tail.segment
            if tail is None or draft.size + BLANK_SIZE > tail.capacity - tail.wrote_position:
                tail = self.tail.roll()
            log_offset = tail.base_offset + tail.wrote_position
            following = draft.cursor.next_offset + 1
            # Only a finished record is `data`: an interrupt in between must not write half of one.
            data = draft.encode(log_offset, now)
            self._writing_ms = now
            self.tail.write(tail, data)
            self.appender.last_time_ms = now
            draft.cursor.next_offset = following
            self._attach()
            self.lock.release()
        except BaseException as error:
            try:
                self._complete_or_undo(tail, data, draft, following, now, error)
            finally:
                self._release_at_last()
            if isinstance(error, OSError):
                raise self.failed_append(error) from error
            raise

    def _complete_or_undo(
        self,
        tail: Segment | None,
        data: bytes,
        draft: Draft,
        following: int,
        now: int,
        error: BaseException,
    ) -> None:
        """Exception cleanup: complete a write that an interrupt cut short, then release the lock."""
        if not self.lock.is_owned():
            return
        try:
            self.tail.settle()
            is_written = (
                bool(data)
                and tail is not None
                and tail.base_offset + tail.wrote_position > draft.log_offset
            )
            if data and tail is not None and (is_written or not isinstance(error, Exception)):
                # Repeating a complete write is harmless; leaving a partial one is not.
                if not is_written:
                    self.tail.write(tail, data)
                draft.cursor.next_offset = following
                self.appender.last_time_ms = now
            self._attach()
        finally:
            self.lock.release()

    def _release_at_last(self) -> None:
        """Release the lock if the clean-up was cut short itself; nothing is appended to what it has left."""
        if self.lock.is_owned():
            self.appender.refuse(FAILED)
            self.lock.release()

    def _check_accepts(self) -> None:
        """Raise if the store was closed or has failed since the caller's check; called under the lock."""
        if self._is_stopped or self.appender.refusals & STOPPED:
            raise StoreClosedError
        if self.appender.refusals & (FAILED | NO_MESSAGES):
            refusal = self.refusal()
            if refusal is not None:
                raise refusal

    def check_put(self, size: int) -> None:
        """Raise `MessageTooLargeError` if a record of this size may not be put: later copies of it would not fit."""
        self.check_size(size, self._record_reserve)

    def check_size(self, size: int, reserve: int = 0) -> None:
        """Raise `MessageTooLargeError` if a record of this size does not fit into a segment beside `reserve` bytes."""
        limit = self._record_max - reserve
        if size > limit:
            room = f", and leave {reserve} bytes for what copies of it have in addition" if reserve else ""  # fmt: skip
            raise MessageTooLargeError(
                "the record", size, limit,
                f"a record must fit into one segment{room}: shorten the message by {size - limit} bytes",
            )  # fmt: skip

    # --- many records

    def append_batch(
        self,
        batch: Batch,
        *,
        atomic: bool = False,
        decision: int | None = None,
        first_mark: int = 0,
    ) -> int:
        """Append encoded records, one after the other, under one lock; return their store time.

        Args:
            batch: the records; their log offsets are set in it.
            atomic: append all to one segment, marked so that recovery keeps all or none; or raise.
            decision: the number of the transaction's decision that belongs to an atomic batch, for its marks.
            first_mark: numbers the records, from this number on, in the field PREPAREDOFFSET; 0 leaves the field alone.
        """
        if len(batch) == 0:
            return self.last_time_ms
        # Checked before the `try`: otherwise the cleanup would release the lock of an append that this one interrupted.
        self.lock.refuse_within()
        self.check_size(batch.size if atomic else batch.largest)
        planned, pieces, now = list[BatchSlice](), list[BatchSlice](), 0
        with memoryview(batch) as data:
            try:
                self.lock.acquire()
                self._check_accepts()
                now = self._now_ms()
                planned = self.tail.plan(batch, atomic=atomic)
                places = [
                    (piece.first, piece.segment.base_offset + piece.position) for piece in planned
                ]
                marks = _marks_of(batch, planned[0].position, decision) if atomic else (first_mark,)
                batch.stamp(places, now, *marks)
                pieces = planned
                self._writing_ms = now
                self.tail.write_pieces(pieces, data)
                self._count(batch, now)
                self._attach()
                self.lock.release()
            except BaseException as error:
                if not pieces and self.lock.is_owned():
                    self.tail.forget(planned)
                try:
                    self._complete_or_undo_batch(pieces, data, batch, now, error)
                finally:
                    self._release_at_last()
                raise
        return now

    def _count(self, batch: Batch, now: int) -> None:
        # The records' own time: the checkpoint must not be later than the records.
        self.appender.last_time_ms = now
        batch.count_up()

    def _complete_or_undo_batch(
        self,
        pieces: list[BatchSlice],
        data: memoryview,
        batch: Batch,
        now: int,
        error: BaseException,
    ) -> None:
        """Exception cleanup: complete a batch that an interrupt cut short, or undo it; then release the lock."""
        if not self.lock.is_owned():
            return
        try:
            self.tail.settle()
            if pieces and not isinstance(error, Exception):
                self.tail.write_pieces(pieces, data)
                self._count(batch, now)
            elif self.tail.has_begun(pieces):
                # The log has queue offsets that no cursor has counted: nothing may be appended after them, already before
                # the caller learns of it and notes the failure.
                self.appender.refuse(FAILED)
                raise OSError(errno.EIO, f"only part of a batch was written: {error}") from error
            else:
                self.tail.forget(pieces)
            self._attach()
        finally:
            self.lock.release()

    # --- reading in bulk

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop) as batches; a record must begin at `start`. See `read_batches`."""
        return read_batches(self.log, start, stop, check_crc=self.checks_crc)


def _marks_of(batch: Batch, position: int, decision: int | None) -> tuple[int, int]:
    """Return the marks of the first and the other records of an atomic batch; 0 if it needs none."""
    if len(batch) == 1 and decision is None:
        return 0, 0
    return batch_marks(position, position + batch.size, decision)
