"""The commit log: records appended under one lock, rolled over segments, read back as batches.

If a record fits and the segment's channel provides its memory, the kernel (`Appender`) stamps the record, copies it
into that memory and counts it, without interruption by other threads. Otherwise the lock is taken: the next segment is
obtained, or the record is written by the channel's `write`. A batch is encoded before the lock is taken; under the
lock, only its offsets and times are filled in, and it is written with one call for each segment.

Invariants:
    * A record ends at least 8 bytes before its segment does; the blank record takes the rest.
    * Store times never decrease along the log; queue offsets of a queue count up by one.
    * A segment is obtained before the old one is filled up, and all segments of a batch before its first byte is
      written: if there is no room, nothing of the record or batch is in the log.
    * When an append raises, nothing of it is in the log, and a later append uses the same log offset. Only after an
      interrupt (Ctrl-C, or what a signal handler raises), the append may be in the log or not; if it is, it is
      complete, including its queue offset. After a failure that stops the store, a part of it may be in the log.

An interrupt may come between any two steps. So each step can be repeated, and takes effect by one assignment:
`wrote_position` for bytes, the log's list for a segment. `LogTail.repair_after_interrupt` updates the other fields
afterwards.
"""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock._kernel import Appender, AppendLock, Batch, Draft, RecordEncoder
from penstock.contracts import Allocator, SegmentChannel, SegmentWriter
from penstock.contracts.dispatcher import DispatchBatch
from penstock.errors import (
    DiskFullError,
    MessageTooLargeError,
    OffsetError,
    ReadOnlyError,
    StoreClosedError,
    SystemLimitError,
)
from penstock.escape import get_logger
from penstock.files import File, Files
from penstock.files.file import NO_ROOM
from penstock.format.columns import Buffer, ScannedColumns
from penstock.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from penstock.log.resync import read_batches
from penstock.log.scan import batch_marks
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import Clock
from penstock.runtime.workers import is_interrupt

logger = get_logger(__name__)

LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG)
# The allocator is informed of the next segment and of the one after it.
_EXPECTED = 2


class BatchSlice(NamedTuple):
    """Bytes [start, stop) of a batch, their segment and position, the first record's index, and all record sizes."""

    segment: Segment
    start: int
    stop: int
    position: int
    first: int
    sizes: Sequence[int]


class LogTail:
    """Writes at the end of a log. The append lock guards it."""

    def __init__(
        self, log: SegmentedLog, writer: SegmentWriter, allocator: Allocator, files: Files
    ) -> None:
        self._log = log
        self._files = files
        self.writer = writer
        self.allocator = allocator
        self._commits_at_once = writer.commits_at_once
        self.segment: Segment | None = None
        self._is_closed = False
        # Full segments that have not been reported yet.
        self.sealed: list[Segment] = []
        # The base offset of the first file that the allocator expects.
        self._expected: int | None = None

    def resume(self, end_offset: int) -> None:
        """Continue at `end_offset`, the end that recovery found."""
        segment = self._log.find(end_offset)
        if segment is None:
            return
        file = self._files.open(segment.path, writable=True)
        if self.writer.needs_allocated_file:
            # The file may be sparse: Java's files are, and those of writers that allocate ahead by themselves.
            file.allocate(segment.capacity)
        position = end_offset - segment.base_offset
        self._start(segment, file, position)
        self.segment = segment

    def expect(self) -> None:
        """Inform the allocator of the next files, unless they have not changed."""
        following = self._log.next_free_base()
        if following == self._expected:
            return
        paths = [self._log.path_of(self._log.next_free_base(ahead)) for ahead in range(_EXPECTED)]
        size, allocated = self._log.segment_bytes, self.writer.needs_allocated_file
        try:
            self.allocator.expect(paths, size, allocated=allocated)
        except Exception as error:
            if is_interrupt(error):
                raise
            # Files are obtained all the same, and a batch may be written already.
            logger.exception("allocator %r failed in expect", self.allocator.name)
        self._expected = following

    def roll(self) -> Segment:
        """Switch to a new segment, because a record did not fit; return it."""
        fresh = self.obtain(self._log.next_free_base())
        try:
            self.turn_to(fresh)
            self.expect()
        except BaseException:
            if fresh not in self._log.segments:
                self._forget(fresh)
            raise
        return fresh

    def write(self, segment: Segment, record: bytes) -> None:
        """Write one record after the records of `segment`; if this raises, nothing of it is in the log."""
        segment.write(record)
        segment.wrote_position = end = segment.wrote_position + len(record)
        if self._commits_at_once:
            segment.committed_position = end

    def write_batch(self, segment: Segment, data: Buffer, sizes: Sequence[int]) -> None:
        """Write multiple records after the records of `segment`; if this raises, nothing of them is in the log."""
        self._make_room(segment, segment.wrote_position + len(data))
        segment.write(data, sizes)
        segment.wrote_position += len(data)
        if self._commits_at_once:
            segment.committed_position = segment.wrote_position

    def repair_after_interrupt(self) -> None:
        """After an exception: update the fields that an interrupted step has left inconsistent."""
        last = self._log.segments[-1:]
        if last and last[0] is not self.segment and last[0].channel is not None:
            self.segment = last[0]
        for segment in self._log.segments[-2:]:
            if segment.channel is not None and self._commits_at_once:
                segment.committed_position = segment.wrote_position

    def obtain(self, base_offset: int) -> Segment:
        """Return a new segment that is not in the log yet."""
        path = self._log.path_of(base_offset)
        capacity = self._log.segment_bytes
        try:
            file = self.allocator.obtain(path, capacity, allocated=self.writer.needs_allocated_file)
        except OSError as error:
            raise _as_storage_error(error, path, capacity) from error
        segment = Segment(self._files, path, base_offset, capacity)
        try:
            channel = self._start(segment, file, 0)
            if channel.blocks is not None:
                # Allocates the first step; a first record that is larger reserves more.
                channel.blocks.reserve(1)
        except Exception as error:
            segment.close()
            file.close()
            self._expected = None
            self.allocator.discard(path)
            if isinstance(error, OSError):
                raise _as_storage_error(error, path, capacity) from error
            raise
        return segment

    def _start(self, segment: Segment, file: File, position: int) -> SegmentChannel:
        channel = self.writer.open(file, segment.capacity, position)
        segment.start_writing(
            channel, position, commits_at_once=self._commits_at_once, writer=self.writer.name
        )
        return channel

    def turn_to(self, fresh: Segment) -> None:
        """Fill the old segment with a blank record, and continue in `fresh`."""
        tail = self.segment
        if tail is not None:
            room = tail.capacity - tail.wrote_position
            if room:
                tail.write(BLANK.pack(room, MAGIC_BLANK))
                tail.wrote_position = tail.capacity
            if self._commits_at_once:
                tail.committed_position = tail.capacity
            if self.sealed[-1:] != [tail]:
                self.sealed.append(tail)
        self._log.add(fresh)
        self.segment = fresh

    def plan(self, batch: Batch, *, atomic: bool) -> list[BatchSlice]:
        """Return which bytes of a batch are written to which segment.

        All segments that the batch needs are obtained before any write.
        """
        pieces: list[BatchSlice] = []
        fresh: list[Segment] = []
        segment, position = self.segment, self.segment.wrote_position if self.segment else 0
        row = done = 0
        try:
            while row < len(batch):
                room = segment.capacity - position - BLANK_SIZE if segment else -1
                fits, size = batch.fit(row, room)
                if segment is None or fits == row or (atomic and batch.size > room):
                    segment = self.obtain(self._log.next_free_base(len(fresh)))
                    fresh.append(segment)
                    position = 0
                    continue
                sizes = batch.sizes(row, fits)
                pieces.append(BatchSlice(segment, done, done + size, position, row, sizes))
                position += size
                row, done = fits, done + size
        except BaseException:
            for segment in fresh:
                self._forget(segment)
            raise
        return pieces

    def write_pieces(self, pieces: list[BatchSlice], data: Buffer) -> None:
        """Write a batch as planned; slices that are already written are skipped."""
        self._reserve(pieces)
        for piece in pieces:
            if piece.segment.wrote_position > piece.position:
                continue
            if piece.segment is not self.segment:
                self.turn_to(piece.segment)
            self.write_batch(piece.segment, data[piece.start : piece.stop], piece.sizes)
        # Only now: between two slices, the allocator would create the segment that is planned for the next slice.
        self.expect()

    def _reserve(self, pieces: list[BatchSlice]) -> None:
        """Reserve room for a whole batch, including blank records after it, before its first byte is written."""
        wanted = [(piece.segment, piece.position + piece.stop - piece.start) for piece in pieces]
        if self.segment is not None and pieces[-1].segment is not self.segment:
            wanted.append((self.segment, self.segment.wrote_position))
        for segment, end in wanted:
            self._make_room(segment, min(end + BLANK_SIZE, segment.capacity))

    @staticmethod
    def _make_room(segment: Segment, stop: int) -> None:
        try:
            if segment.channel is not None and segment.channel.blocks is not None:
                segment.channel.blocks.reserve(stop)
        except OSError as error:
            size = stop - segment.wrote_position
            raise _as_storage_error(error, segment.path, size) from error

    def give_back(self) -> None:
        """Free the blocks that were allocated ahead, durably; called at a clean end of writing."""
        segment = self.segment
        if segment is None or segment.channel is None or segment.channel.blocks is None:
            return
        if segment.channel.blocks.give_back(segment.wrote_position):
            segment.channel.flush()

    @staticmethod
    def part_of(pieces: list[BatchSlice]) -> str:
        """Say how much of a batch is in the log; empty if nothing is."""
        written = [piece.segment.wrote_position > piece.position for piece in pieces]
        whole = "a batch is in the log" if all(written) else "only part of a batch was written"
        return whole if any(written) else ""

    def forget(self, pieces: list[BatchSlice]) -> None:
        """Close and discard segments that were obtained for a batch and are not in the log."""
        for piece in pieces:
            if piece.segment not in self._log.segments:
                self._forget(piece.segment)

    def _forget(self, segment: Segment) -> None:
        # The allocator expected this file to be used: inform it again.
        self._expected = None
        segment.close()
        self.allocator.discard(segment.path)

    def close(self) -> None:
        """Close writer and allocator; the segments must be closed before."""
        if not self._is_closed:
            self._is_closed = True
            self.writer.close()
            self.allocator.close()


def _as_storage_error(error: OSError, path: Path, size: int) -> Exception:
    """Return the error to raise if a segment could not be created or enlarged; nothing was stored."""
    if error.errno in NO_ROOM:
        return DiskFullError(path, size)
    if error.errno in LIMITS:
        return SystemLimitError(str(error))
    return error


# Reasons for which single puts are refused or take the slow path; see `Appender.refuse`.
STOPPED, FAILED, NO_MESSAGES, NOT_STARTED = 1, 2, 4, 8


class Syncer(Protocol):
    """What the log calls of its flusher: see `LogFlusher`."""

    def check(self) -> None:
        """Raise if the store has failed."""

    def failed_append(self, error: OSError) -> Exception:
        """Return the error to raise for an append that failed."""

    def take_in(self) -> None:
        """Called under the append lock when the log may have another segment."""


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
        # None until `start`: nothing is appended before.
        self._flusher: Syncer | None = None
        # Why a retention policy refuses messages; None if they are accepted.
        self.refusal: str | None = None
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

    def start(self, flusher: Syncer) -> None:
        """Tell the flusher from now on of new segments and of failures, and ask it for them."""
        with self.lock:
            self._flusher = flusher
            flusher.take_in()

    def refuse(self, reason: str | None) -> None:
        """Refuse messages from now on, for this reason; accept them again for None."""
        self.refusal = reason
        (self.appender.allow if reason is None else self.appender.refuse)(NO_MESSAGES)

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
        if self._flusher is not None:
            self._flusher.take_in()
        segment = self.tail.segment
        if segment is None or segment.channel is None or self._is_stopped:
            self.appender.detach()
            return
        end = segment.channel.buffer_end
        # What is larger goes the slow way, which checks it.
        capacity = segment.capacity - self._record_reserve
        self.appender.attach(
            segment.extent, segment.base_offset, capacity, segment.buffer if end else None, end
        )

    # --- one record

    def _append_slowly(self, draft: Draft) -> None:
        """Append one record that the kernel's appender cannot store; sets the draft's log offset."""
        try:
            self._append_one(draft)
        except OSError as error:
            if self._flusher is None:
                raise
            raise self._flusher.failed_append(error) from error

    def _append_one(self, draft: Draft) -> None:
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
        self.tail.repair_after_interrupt()
        if data and tail is not None:
            is_written = tail.base_offset + tail.wrote_position > draft.log_offset
            if is_interrupt(error) and not is_written:
                # Repeating a complete write is harmless; leaving a partial one is not.
                self.tail.write(tail, data)
                is_written = True
            if is_written:
                draft.cursor.next_offset = following
                self.appender.last_time_ms = now
            self._refuse_after(error, "the record is in the log" if is_written else "")
        self._attach()
        self.lock.release()

    def _refuse_after(self, error: BaseException, written: str) -> None:
        """Let nothing be appended to what an append has left, already before its caller notes the failure.

        `written` says what is in the log; empty for nothing. Raises `OSError` then: the caller must not repeat it.
        """
        if is_interrupt(error):
            return
        if written or (isinstance(error, OSError) and error.errno not in NO_ROOM):
            self.appender.refuse(FAILED)
        if written:
            raise OSError(errno.EIO, f"{written}: {error!r}") from error

    def _release_at_last(self) -> None:
        """Release the lock if the clean-up was cut short itself; nothing is appended to what it has left."""
        if self.lock.is_owned():
            self.appender.refuse(FAILED)
            self.lock.release()

    def _check_accepts(self) -> None:
        """Raise if the store takes no messages since the caller's check; called under the lock."""
        self._check_runs()
        if self.appender.refusals & NO_MESSAGES and (refusal := self.refusal) is not None:
            raise ReadOnlyError(refusal)

    def _check_runs(self) -> None:
        """Raise if the store was closed or has failed since the caller's check; called under the lock."""
        if self._is_stopped or self.appender.refusals & STOPPED:
            raise StoreClosedError
        if self.appender.refusals & FAILED and self._flusher is not None:
            self._flusher.check()

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

    def _count(self, batch: Batch | None, now: int) -> None:
        # The records' own time: the checkpoint must not be later than the records.
        self.appender.last_time_ms = now
        if batch is not None:
            batch.count_up()

    def _complete_or_undo_batch(
        self,
        pieces: list[BatchSlice],
        data: memoryview,
        batch: Batch | None,
        now: int,
        error: BaseException,
    ) -> None:
        """Exception cleanup: complete a batch that an interrupt cut short, or undo it; then release the lock."""
        if not self.lock.is_owned():
            return
        self.tail.repair_after_interrupt()
        if pieces and is_interrupt(error):
            self.tail.write_pieces(pieces, data)
            self._count(batch, now)
        else:
            # Of a batch in part, the log has queue offsets that no cursor has counted.
            self._refuse_after(error, self.tail.part_of(pieces))
            self.tail.forget(pieces)
        self._attach()
        self.lock.release()

    # --- bytes of another log

    def append_copied(
        self, log_offset: int, data: Buffer, records: ScannedColumns | None = None
    ) -> None:
        """Append bytes of another log of the same segment size at `log_offset`, where this log ends.

        They are not checked, and no queue cursor counts them: nothing else may be appended to such a log. A retention
        policy that refuses messages does not refuse them.

        Args:
            log_offset: of the first byte.
            data: whole records or filler, within one segment. Empty: the rest of the segment is filler of zeros, and
                the log continues in the next one.
            records: the records; None for filler.
        """
        sizes, newest_ms = [len(data)] if len(data) else [], 0
        if records is not None:
            newest_ms = records.last_time_ms
            if len(records) > 1:
                sizes, newest_ms = records.sizes.tolist(), int(records.store_times_ms.max())
        try:
            with memoryview(data) as view:
                self._append_piece(log_offset, view, sizes, newest_ms)
        except OSError as error:
            if self._flusher is None:
                raise
            raise self._flusher.failed_append(error) from error

    def land(self, frames: bytes, log_offset: int, size_max: int) -> tuple[int, int]:
        """Append the records in frames as they come most often, checked and without the lock; see `Appender.land`."""
        given = frames, log_offset, size_max, self.log.coverage.packed, NO_MESSAGES
        if self.appender.is_paused:
            with self.lock:
                self._attach()
        return self.appender.land(*given)

    def _append_piece(
        self, log_offset: int, data: memoryview, sizes: Sequence[int], newest_ms: int
    ) -> None:
        self.lock.refuse_within()
        pieces, now = list[BatchSlice](), max(newest_ms, self.appender.last_time_ms)
        try:
            self.lock.acquire()
            self._check_runs()
            self._check_ends_at(log_offset)
            segment = self.tail.segment
            if segment is None or not data or segment.wrote_position == segment.capacity:
                segment = self.tail.obtain(self.log.next_free_base())
            pieces = [BatchSlice(segment, 0, len(data), segment.wrote_position, 0, sizes)]
            self._writing_ms = now
            self.tail.write_pieces(pieces, data)
            self._count(None, now)
            self._attach()
            self.lock.release()
        except BaseException as error:
            try:
                self._complete_or_undo_batch(pieces, data, None, now, error)
            finally:
                self._release_at_last()
            raise

    def _check_ends_at(self, log_offset: int) -> None:
        end = self.end_offset
        if log_offset != end:
            raise OffsetError(log_offset, end, end + 1, "copied log offset")

    # --- reading in bulk

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop) as batches; a record must begin at `start`. See `read_batches`."""
        return read_batches(self.log, start, stop, check_crc=self.checks_crc)


def _marks_of(batch: Batch, position: int, decision: int | None) -> tuple[int, int]:
    """Return the marks of the first and the other records of an atomic batch; 0 if it needs none."""
    if len(batch) == 1 and decision is None:
        return 0, 0
    return batch_marks(position, position + batch.size, decision)
