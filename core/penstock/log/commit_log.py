"""The commit log: records appended under one lock, rolled over segments, read back as batches.

A record that fits goes straight into the segment's memory, if its channel lends that, by the kernel
(`Appender`): stamped, copied, counted, in one stretch in which nothing else runs. Else the lock is taken: the
next segment is obtained, or the record goes by the channel's `write`. A batch is encoded before the lock is
taken; then only its stamps are written into it, and it is written in one piece for each segment it lies in.

Invariants:
    * A record ends at least 8 bytes before its segment does; the blank record takes the rest.
    * Store times never decrease along the log; queue offsets of a queue count up by one.
    * When an append raises, nothing of it counts, and a later append goes to the same place. Only an
      interrupt (Ctrl-C) leaves open whether it counts; if it does it counts wholly, queue offset and all.
"""

import errno
from collections.abc import Callable, Iterator

import numpy as np

from penstock._kernel import Appender, AppendLock, Batch, Draft, RecordEncoder
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.errors import MessageTooLargeError, OffsetError, StoreClosedError
from penstock.format.columns import Buffer
from penstock.format.record import BLANK_SIZE
from penstock.log.batches import read_batches
from penstock.log.direct_feed import DirectFeed
from penstock.log.log_tail import BatchSlice, LogTail
from penstock.log.segment import Segment, lends
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import Clock

# Reasons for which single puts ask first whether they may; see `Appender.refuse`.
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
        hand_over: DirectFeed | None = None,
    ) -> None:
        self.log = log
        self.tail = tail
        self.encoder = encoder
        self._record_max = log.segment_bytes - BLANK_SIZE
        self.lock = AppendLock(busy_ms, clock.monotonic_ns)
        self.appender = Appender(encoder, self.lock, self._append_slowly)
        self.appender.refuse(NOT_STARTED)
        self._floor_ms = self._found_ms = self._writing_ms = 0
        # Hears, under the lock, that the log may have another segment.
        self.on_segment: Callable[[], None] = lambda: None
        # What an append that failed in the system means; set by the engine.
        self.failed_append: Callable[[OSError], Exception] = lambda error: error
        # Why nothing may be appended, though the log is open; set by the engine.
        self.refusal: Callable[[], Exception | None] = lambda: None
        self._is_stopped = False
        # Whether pieces were copied from another log, which may end within a record.
        self.has_copies = False
        # With the direct feed, where appended records go as well.
        self.hand_over = hand_over
        # Until the store is open what is dispatched was written by a process that has ended.
        self.checks_crc = True

    def resume(self, end_offset: int, least_time_ms: int, newest_ms: int = 0) -> None:
        """Begin appending at `end_offset`, the end that recovery found.

        Nothing is stamped earlier than `least_time_ms`; the newest record that is there is of `newest_ms`.
        """
        self.appender.last_time_ms = self._floor_ms = least_time_ms
        self._found_ms = newest_ms
        self.tail.resume(end_offset)
        with self.lock:
            self._attach()

    def stop(self) -> None:
        """Take no more records: whoever comes after this is refused, whoever came before is done."""
        self._is_stopped = True
        self.appender.refuse(STOPPED)
        if self.lock.is_owned():
            # A signal handler that closes within an append of its own thread.
            return
        try:
            # However long that takes: a close is not turned away.
            self.lock.acquire(for_ever=True)
            self.appender.detach()
        finally:
            if self.lock.is_owned():
                self.lock.release()

    @property
    def end_offset(self) -> int:
        """Log offset behind the last record, committed or not."""
        tail = self.tail.segment
        return self.log.committed_offset if tail is None else tail.base_offset + tail.wrote_position

    @property
    def last_time_ms(self) -> int:
        """The time that no record is later than, and no next one earlier; 0 for none."""
        # A record counts a moment before its time does.
        return max(self.appender.last_time_ms, self._writing_ms)

    @property
    def newest_time_ms(self) -> int:
        """Store time of a record that is there, the newest or one before it: what the checkpoint may say."""
        last_ms = self.appender.last_time_ms
        return self._found_ms if last_ms == self._floor_ms else last_ms

    def _now_ms(self) -> int:
        """Return the wall-clock time, never before the last record's."""
        return max(self.encoder.now_ms(), self.appender.last_time_ms)

    def _attach(self) -> None:
        """Let single puts go on where the tail is."""
        self.on_segment()
        segment = self.tail.segment
        if segment is None or segment.channel is None or self._is_stopped:
            self.appender.detach()
            return
        memory = gathered = None
        end = 0
        if self.hand_over is None:
            end, gathered = segment.channel.memory_end, segment.gathered
            # Only what is readable at once needs nobody's help afterwards.
            is_readable = end and self.tail.writer.commits_at_once
            if is_readable and lends(type(segment.channel), "memory", "write"):
                memory = segment.channel.memory
        self.appender.attach(
            segment.extent, segment.base_offset, segment.capacity, memory, end, gathered
        )

    # --- one record

    def _append_slowly(self, draft: Draft) -> None:
        """Append one record that does not simply fit into memory; the draft knows then where it went."""
        self.lock.refuse_within()
        self._check_size(draft.size)
        tail, data, following, now = None, b"", 0, 0
        try:
            self.lock.acquire()
            self._check_may()
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
            if self.hand_over is not None:
                self.hand_over.add_one(log_offset, data)
            self._attach()
            self.lock.release()
        except BaseException as error:
            self._put_right(tail, data, draft, following, now, error)
            if isinstance(error, OSError):
                raise self.failed_append(error) from error
            raise

    def _put_right(
        self,
        tail: Segment | None,
        data: bytes,
        draft: Draft,
        following: int,
        now: int,
        error: BaseException,
    ) -> None:
        """After an exception: a record that an interrupt cut through is ended; the lock is let go."""
        if not self.lock.is_owned():
            return
        try:
            self.tail.settle()
            if data and tail is not None and not isinstance(error, Exception):
                # However far the write had come: done again it does no harm, left half done it might.
                if tail.base_offset + tail.wrote_position == draft.log_offset:
                    self.tail.write(tail, data)
                draft.cursor.next_offset = following
                self.appender.last_time_ms = now
            self._attach()
        finally:
            self.lock.release()

    def _check_may(self) -> None:
        """Under the lock: raise if the store was closed or has failed since the caller looked."""
        if self._is_stopped or self.appender.refusals & STOPPED:
            raise StoreClosedError
        if self.appender.refusals & (FAILED | NO_MESSAGES):
            refusal = self.refusal()
            if refusal is not None:
                raise refusal

    def _check_size(self, size: int) -> None:
        limit = self._record_max
        if size > limit:
            raise MessageTooLargeError(
                "the record", size, limit, "a record must fit into one segment: shorten the message"
            )

    # --- many records

    def append_batch(self, batch: Batch, *, atomic: bool = False, first_mark: int = 0) -> int:
        """Append encoded records, one behind the other, under one lock; returns their store time.

        Args:
            batch: the records; it knows afterwards where each went.
            atomic: all in one segment, or an error.
            first_mark: from there on they are numbered in the field that only transactions use; 0 leaves it.
        """
        if len(batch) == 0:
            return self.last_time_ms
        # Before anything is undone below: the lock would be that of the append which this one interrupted.
        self.lock.refuse_within()
        self._check_size(batch.size if atomic else batch.largest)
        planned, pieces, now = list[BatchSlice](), list[BatchSlice](), 0
        with memoryview(batch) as data:
            try:
                self.lock.acquire()
                self._check_may()
                now = self._now_ms()
                planned = self.tail.plan(batch, atomic=atomic)
                places = [
                    (piece.first, piece.segment.base_offset + piece.position) for piece in planned
                ]
                batch.stamp(places, now, first_mark)
                pieces = planned
                self._writing_ms = now
                self.tail.write_pieces(pieces, data)
                self._count(batch, now)
                if self.hand_over is not None:
                    offsets, _, sizes, _ = (
                        np.frombuffer(each, np.int64) for each in batch.columns()
                    )
                    self.hand_over.add_batch(offsets, sizes, memoryview(bytes(data)))
                self._attach()
                self.lock.release()
            except BaseException as error:
                if not pieces and self.lock.is_owned():
                    self.tail.forget(planned)
                self._finish(pieces, data, batch, now, error)
                raise
        return now

    def _count(self, batch: Batch, now: int) -> None:
        # The records' own time: the checkpoint must not be ahead of them.
        self.appender.last_time_ms = now
        batch.count_up()

    def _finish(
        self,
        pieces: list[BatchSlice],
        data: memoryview,
        batch: Batch,
        now: int,
        error: BaseException,
    ) -> None:
        """After an exception: a batch that an interrupt cut through is ended; the lock is let go."""
        if not self.lock.is_owned():
            return
        try:
            self.tail.settle()
            if pieces and not isinstance(error, Exception):
                self.tail.write_pieces(pieces, data)
                self._count(batch, now)
            elif self.tail.has_begun(pieces):
                # Queue offsets went into the log that no cursor knows of: nothing may follow.
                raise OSError(errno.EIO, f"only part of a batch was written: {error}") from error
            else:
                self.tail.forget(pieces)
            self._attach()
        finally:
            self.lock.release()

    # --- copies

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes copied from another log of the same geometry, blank records included.

        They must begin at this log's end and lie within one segment, as a master sends them; they are
        taken as they are. Queue offsets of cursors do not follow: nothing else may be appended to such a log.
        """
        self.lock.refuse_within()
        try:
            self.lock.acquire()
            self.has_copies = True
            if log_offset != self.end_offset:
                raise OffsetError(
                    log_offset, self.end_offset, self.end_offset + 1, "copied log offset"
                )
            tail = self.tail.segment
            if tail is None or tail.wrote_position == tail.capacity:
                tail = self.tail.obtain(log_offset)
                self.tail.take(tail)
                self.on_segment()
            if len(data) > tail.capacity - tail.wrote_position:
                raise MessageTooLargeError(
                    "the copied piece", len(data), tail.capacity - tail.wrote_position,
                    "cut it where the segment ends",
                )  # fmt: skip
            self.tail.write_batch(tail, data)
        finally:
            if self.lock.is_owned():
                self.lock.release()

    # --- reading in bulk

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop) as batches; `start` must begin a record.

        Ends early where the bytes are no sound record; the last batch's `end_offset` says where.
        """
        return read_batches(self.log, start, stop, check_crc=self.checks_crc)
