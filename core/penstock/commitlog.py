"""The commit log: records appended under one lock, rolled over segments, read back as batches.

An append takes the lock, stamps store time, log offset and queue offset, and hands the bytes to the
tail; nothing else happens under the lock, except that the next segment is obtained when the record
does not fit. A batch is encoded before the lock is taken; then only its stamps are
written into it, and it is copied in one piece for each segment it lies in.

Invariants:
    * A record ends at least 8 bytes before its segment does; the blank record takes the rest.
    * Store times never decrease along the log; queue offsets of a queue count up by one.
    * When an append raises, nothing of it counts, and a later append goes to the same place. Only an
      interrupt (Ctrl-C) leaves open whether it counts; if it does it counts wholly, queue offset and all.
"""

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.appendlock import AppendLock
from penstock.batch import DispatchBatch
from penstock.batches import read_batches
from penstock.clock import Clock
from penstock.columns import Buffer
from penstock.errors import (
    MessageError,
    MessageTooLargeError,
    OffsetError,
    StoreClosedError,
)
from penstock.handover import HandOver
from penstock.javatext import Int64s
from penstock.lane import Lane, RecordForm, RecordParts
from penstock.log import SegmentedLog
from penstock.recent import Known, Recent
from penstock.record import (
    BLANK_SIZE,
    PREPARED,
    ROLLBACK,
    TRANSACTION_MASK,
    seal_crc_property,
)
from penstock.segment import Segment
from penstock.stamps import (
    LOG_OFFSET,
    LOG_OFFSET_AT,
    Marks,
    count_up,
    seal_all,
    stamp,
)
from penstock.tail import LogTail, Piece


class Appended(NamedTuple):
    """Where a record went."""

    log_offset: int
    queue_offset: int
    store_time_ms: int
    size: int


class AppendedBatch(NamedTuple):
    """Where the records of a batch went, as columns; all have one store time."""

    log_offsets: Int64s
    queue_offsets: Int64s
    store_time_ms: int
    sizes: Int64s


# What a NamedTuple's own constructor does, in half the time.
_new_appended: Callable[[type[Appended], tuple[int, ...]], Appended] = tuple.__new__
_UNCOUNTED = (PREPARED, ROLLBACK)


class CommitLog(RecordForm):
    """The log as records. One append at a time; any number of readers."""

    def __init__(
        self,
        log: SegmentedLog,
        tail: LogTail,
        *,
        clock: Clock,
        store_host: bytes,
        crc_property: bool,
        busy_ms: int,
        hand_over: HandOver | None = None,
    ) -> None:
        self.log = log
        self.tail = tail
        super().__init__(store_host, crc_property=crc_property, time_ms=clock.time_ms)
        self._record_max = log.segment_bytes - BLANK_SIZE
        self.lock = AppendLock(busy_ms, clock.monotonic_ns)
        self._last_time_ms = self._floor_ms = self._found_ms = 0
        self._is_stopped = False
        # Whether pieces were copied from another log, which may end within a record.
        self.has_copies = False
        # With the direct feed, where appended records go as well.
        self.hand_over = hand_over
        # With the other, what need not be read again.
        self._recent = Recent()
        # Until the store is open what is dispatched was written by a process that has ended.
        self.checks_crc = True

    def resume(self, end_offset: int, least_time_ms: int, newest_ms: int = 0) -> None:
        """Begin appending at `end_offset`, the end that recovery found.

        Nothing is stamped earlier than `least_time_ms`; the newest record that is there is of `newest_ms`.
        """
        self._last_time_ms = self._floor_ms = least_time_ms
        self._found_ms = newest_ms
        self.tail.resume(end_offset)

    def stop(self) -> None:
        """Take no more records: whoever comes after this is refused, whoever came before is done."""
        # However long that takes: a close is not turned away.
        try:
            self.lock.take()
            self._is_stopped = True
        finally:
            if self.lock.is_owned():
                self.lock.free()

    @property
    def end_offset(self) -> int:
        """Log offset behind the last record, committed or not."""
        tail = self.tail.segment
        return self.log.committed_offset if tail is None else tail.base_offset + tail.wrote_position

    @property
    def last_time_ms(self) -> int:
        """The time that no record is later than, and no next one earlier; 0 for none."""
        return self._last_time_ms

    @property
    def newest_time_ms(self) -> int:
        """Store time of a record that is there, the newest or one before it: what the checkpoint may say."""
        last_ms = self._last_time_ms
        return self._found_ms if last_ms == self._floor_ms else last_ms

    # --- one record

    def now_ms(self) -> int:
        """Return the wall-clock time, never before the last record's."""
        return max(self._now(), self._last_time_ms)

    def append(self, lane: Lane, parts: RecordParts) -> Appended:  # noqa: C901 - one path, without calls
        """Append one record; when this returns, readers of this process see it once committed."""
        body, properties, _, _, born_host, sys_flag, _, _ = parts
        # What `size_of` does, without calling it.
        size = lane.base_size + len(born_host or self.store_host) + self._host_size
        size += len(body) + len(properties)
        if size > self._record_max:
            self._check_size(size)
        counts = not sys_flag or sys_flag & TRANSACTION_MASK not in _UNCOUNTED
        lock = self.lock
        if lock.since_ns:
            lock.refuse_within()
        tail, data, following, now = None, b"", 0, 0
        # What `acquire` and `release` do, without calling them: this is the path of every single put.
        try:
            if not lock.take(False):
                lock.wait()
            lock.since_ns = began_ns = lock.now_ns()
            if self._is_stopped:
                raise StoreClosedError  # noqa: TRY301 - the handler lets the lock go
            now = self._now()
            if now < self._last_time_ms:  # noqa: PLR1730 - a call of max costs as much as the lock
                now = self._last_time_ms
            tail = self.tail.segment
            if tail is None or size + BLANK_SIZE > tail.capacity - tail.wrote_position:
                tail = self.tail.roll()
            log_offset = tail.base_offset + tail.wrote_position
            following = lane.next_offset + counts
            queue_offset = lane.next_offset if counts else 0
            record = self.encode(lane, parts, size, queue_offset, log_offset, now)
            # Only a finished record is `data`: an interrupt in between must not write one whose CRC is missing.
            data = seal_crc_property(record) if self.crc_property else record
            self.tail.write(tail, data)
            self._last_time_ms = now
            lane.next_offset = following
            if self.hand_over is not None:
                self.hand_over.add_one(log_offset, data)
            held_ns = lock.now_ns() - began_ns
            if held_ns > lock.longest_hold_ns:  # noqa: PLR1730 - as above
                lock.longest_hold_ns = held_ns
            lock.since_ns = 0
            lock.free()
        except BaseException as error:
            self._put_right(tail, data, lane, following, now, error)
            if isinstance(error, struct.error):
                raise MessageError(
                    f"a number of the message does not fit its field: {error}"
                ) from error
            raise
        return _new_appended(Appended, (log_offset, queue_offset, now, size))

    def _put_right(
        self,
        tail: Segment | None,
        data: bytes,
        lane: Lane,
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
                at = LOG_OFFSET.unpack_from(data, LOG_OFFSET_AT)[0] - tail.base_offset
                if tail.wrote_position == at:
                    self.tail.write(tail, data)
                lane.next_offset = following
                self._last_time_ms = now
        finally:
            self.lock.release()

    def _check_size(self, size: int) -> None:
        limit = self._record_max
        if size > limit:
            raise MessageTooLargeError(
                "the record", size, limit, "a record must fit into one segment: shorten the message"
            )

    # --- a few records

    def append_few(self, records: Sequence[tuple[Lane, RecordParts]]) -> list[Appended] | None:
        """Append a few records one behind the other, under one lock; None if they do not fit into this segment.

        Each is encoded as a single one is: over so few, columns cost more than they save.
        """
        sizes = [self.size_of(lane, parts) for lane, parts in records]
        self.lock.refuse_within()
        data, pieces, nexts, now = b"", list[Piece](), dict[Lane, int](), 0
        try:
            self.lock.acquire()
            if self._is_stopped:
                raise StoreClosedError  # noqa: TRY301 - the handler lets the lock go
            tail = self.tail.segment
            if tail is None or sum(sizes) + BLANK_SIZE > tail.capacity - tail.wrote_position:
                self.lock.release()
                return None
            now = self.now_ms()
            done, encoded = list[Appended](), list[bytes]()
            at = tail.base_offset + tail.wrote_position
            for (lane, parts), size in zip(records, sizes, strict=True):
                ordinal = nexts.get(lane, lane.next_offset)
                record = self.encode(lane, parts, size, ordinal, at, now)
                encoded.append(seal_crc_property(record) if self.crc_property else record)
                done.append(_new_appended(Appended, (at, ordinal, now, size)))
                nexts[lane] = ordinal + 1
                at += size
            data = b"".join(encoded)
            pieces = [Piece(tail, 0, len(data), tail.wrote_position, sizes)]
            self.tail.write_pieces(pieces, data)
            self._count(list(nexts), list(nexts.values()), now)
            if self.hand_over is not None:
                for appended, record in zip(done, encoded, strict=True):
                    self.hand_over.add_one(appended.log_offset, record)
            self.lock.release()
        except BaseException as error:
            lanes, following = list(nexts), list(nexts.values())
            self._finish(pieces, memoryview(data), lanes, following, now, error)
            raise
        return done

    # --- many records

    def append_batch(
        self, data: bytearray | memoryview, sizes: Int64s, lanes: list[Lane], lane_rows: Int64s, *,
        store_time_at: Int64s | int, atomic: bool = False,
        marks: Marks | None = None, tag_codes: Int64s | None = None,
    ) -> AppendedBatch:  # fmt: skip
        """Append encoded records whose stamps are still zero, one behind the other, under one lock.

        Args:
            data: the records, in order.
            sizes: TOTALSIZE of each.
            lanes: the queues they go to.
            lane_rows: for each record the index of its queue in `lanes`.
            store_time_at: where STORETIMESTAMP stands in each record.
            atomic: all in one segment, or an error.
            marks: numbers for the field that only transactions use; None leaves it.
            tag_codes: what queue entries say of their tags, if that is known and no record is of a transaction.
        """
        if len(sizes) == 0:
            none = np.zeros(0, np.int64)
            return AppendedBatch(none, none, self._last_time_ms, none)
        self._check_size(int(sizes.sum() if atomic else sizes.max()))
        self.lock.refuse_within()
        whole = memoryview(data)
        planned, pieces, nexts, now = list[Piece](), list[Piece](), list[int](), 0
        try:
            self.lock.acquire()
            if self._is_stopped:
                raise StoreClosedError  # noqa: TRY301 - the handler lets the lock go
            now = self.now_ms()
            queue_offsets, nexts = count_up(lanes, lane_rows)
            planned, log_offsets = self.tail.plan(sizes, atomic=atomic)
            stamp(data, sizes, queue_offsets, log_offsets, now, store_time_at, marks)
            if self.crc_property:
                seal_all(data, sizes)
            pieces = planned
            self.tail.write_pieces(pieces, whole)
            self._count(lanes, nexts, now)
            if self.hand_over is not None:
                self.hand_over.add_batch(log_offsets, sizes, whole)
            else:
                known = log_offsets, sizes, queue_offsets, lanes, lane_rows, now, tag_codes
                self._recent.add(Known(*known))
            self.lock.release()
        except BaseException as error:
            if not pieces and self.lock.is_owned():
                self.tail.forget(planned)
            self._finish(pieces, whole, lanes, nexts, now, error)
            raise
        return AppendedBatch(log_offsets, queue_offsets, now, sizes)

    def _count(self, lanes: list[Lane], nexts: list[int], now: int) -> None:
        # The records' own time: the checkpoint must not be ahead of them.
        self._last_time_ms = now
        for lane, following in zip(lanes, nexts, strict=True):
            lane.next_offset = following

    def _finish(
        self,
        pieces: list[Piece],
        data: memoryview,
        lanes: list[Lane],
        nexts: list[int],
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
                self._count(lanes, nexts, now)
            elif self.tail.has_begun(pieces):
                # Queue offsets went into the log that no lane knows of: nothing may follow.
                raise OSError(errno.EIO, f"only part of a batch was written: {error}") from error
            else:
                self.tail.forget(pieces)
        finally:
            self.lock.release()

    # --- copies

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes copied from another log of the same geometry, blank records included.

        They must begin at this log's end and lie within one segment, as a master sends them; they are
        taken as they are. Queue offsets of lanes do not follow: nothing else may be appended to such a log.
        """
        self.lock.acquire()
        try:
            self.has_copies = True
            if log_offset != self.end_offset:
                raise OffsetError(
                    log_offset, self.end_offset, self.end_offset + 1, "copied log offset"
                )
            tail = self.tail.segment
            if tail is None or tail.wrote_position == tail.capacity:
                tail = self.tail.obtain(log_offset)
                self.tail.take(tail)
            if len(data) > tail.capacity - tail.wrote_position:
                raise MessageTooLargeError(
                    "the copied piece", len(data), tail.capacity - tail.wrote_position,
                    "cut it where the segment ends",
                )  # fmt: skip
            self.tail.write_batch(tail, data)
        finally:
            self.lock.release()

    # --- reading in bulk

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop) as batches; `start` must begin a record.

        Ends early where the bytes are no sound record; the last batch's `end_offset` says where.
        """
        return read_batches(self.log, start, stop, self._recent, check_crc=self.checks_crc)
