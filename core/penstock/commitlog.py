"""The commit log: records appended under one lock, rolled over segments, read back as batches.

An append takes the lock, stamps store time, log offset and queue offset, and hands the bytes to the
segment's channel; nothing else happens under the lock, except that the next segment is obtained when
the record does not fit. A batch is encoded before the lock is taken; then only its stamps are
written into it, and it is copied in one piece for each segment it lies in.

Invariants:
    * A record ends at least 8 bytes before its segment does; the blank record takes the rest.
    * Store times never decrease along the log; queue offsets of a queue count up by one.
    * When an append raises, nothing of it counts, and a later append goes to the same place.
"""

import errno
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.batch import DispatchBatch
from penstock.clock import Clock
from penstock.columns import Buffer
from penstock.contracts import Allocator, SegmentWriter
from penstock.errors import (
    DiskFullError,
    MessageError,
    MessageTooLargeError,
    OffsetError,
    PenstockError,
    StoreClosedError,
)
from penstock.files import Files
from penstock.javatext import Int64s
from penstock.lane import Lane, RecordParts
from penstock.log import SegmentedLog
from penstock.record import (
    BLANK,
    BLANK_SIZE,
    CRC_MASK,
    MAGIC_BLANK,
    PREPARED,
    ROLLBACK,
    TRANSACTION_MASK,
    crc32,
    host_flags,
    seal_crc_property,
)
from penstock.scan import read_batches
from penstock.segment import Segment
from penstock.stamps import count_up, seal_all, stamp


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


class CommitLog:
    """The log as records. One append at a time; any number of readers."""

    def __init__(
        self,
        log: SegmentedLog,
        writer: SegmentWriter,
        allocator: Allocator,
        *,
        files: Files,
        clock: Clock,
        store_host: bytes,
        crc_property: bool,
    ) -> None:
        self.log = log
        self._writer = writer
        self._allocator = allocator
        self._files = files
        self._now = clock.time_ms
        self.store_host = store_host
        self._own_flags = host_flags(store_host, store_host)
        self.crc_property = crc_property
        self._lock = threading.Lock()
        self._last_time_ms = 0
        self._tail: Segment | None = None
        self._is_stopped = False
        self._commits_at_once = writer.commits_at_once
        self.sealed: list[Segment] = []

    def resume(self, end_offset: int, last_time_ms: int) -> None:
        """Begin appending at `end_offset`, the end that recovery found."""
        self._last_time_ms = last_time_ms
        segment = self.log.find(end_offset)
        if segment is None:
            return
        file = self._files.open(segment.path, writable=True)
        if self._writer.needs_allocated_file:
            # Java makes sparse files; a store through a map into a hole may kill the process.
            file.allocate(segment.capacity)
        position = end_offset - segment.base_offset
        segment.start_writing(self._writer.open(file, segment.capacity, position), position)
        self._tail = segment

    def stop(self) -> None:
        """Take no more records: whoever comes after this is refused, whoever came before is done."""
        with self._lock:
            self._is_stopped = True

    @property
    def end_offset(self) -> int:
        """Log offset behind the last record, committed or not."""
        tail = self._tail
        return self.log.committed_offset if tail is None else tail.base_offset + tail.wrote_position

    @property
    def last_time_ms(self) -> int:
        """Store time of the last record; 0 for none."""
        return self._last_time_ms

    # --- one record

    def encode(
        self,
        lane: Lane,
        parts: RecordParts,
        size: int,
        queue_offset: int,
        log_offset: int,
        now_ms: int,
    ) -> bytes:
        """Return the bytes of one record of `size` bytes, its CRC property still empty."""
        body, properties, flag, born, born_host, sys_flag, reconsume_times, prepared_offset = parts
        host = self.store_host
        if born_host is None:
            born_host, flags = host, sys_flag | self._own_flags
        else:
            flags = sys_flag | host_flags(born_host, host)
        topic = lane.topic_bytes
        pack = lane.shape(len(born_host), len(host), len(body), len(properties))
        return pack(
            size, lane.magic, crc32(body) & CRC_MASK, lane.queue, flag, queue_offset, log_offset, flags,
            now_ms if born is None else born, born_host, now_ms, host, reconsume_times, prepared_offset,
            len(body), body, len(topic), topic, len(properties), properties,
        )  # fmt: skip

    def now_ms(self) -> int:
        """Return the wall-clock time, never before the last record's."""
        return max(self._now(), self._last_time_ms)

    def encode_unsealed(self, lane: Lane, parts: RecordParts, now_ms: int) -> bytes:
        """Return a record for a batch: its offsets and store time are stamped when it is appended."""
        return self.encode(lane, parts, self.size_of(lane, parts), 0, 0, now_ms)

    def size_of(self, lane: Lane, parts: RecordParts) -> int:
        """Return TOTALSIZE of the record that these parts make."""
        hosts = len(parts.born_host or self.store_host) + len(self.store_host)
        return lane.base_size + hosts + len(parts.body) + len(parts.properties)

    def append(self, lane: Lane, parts: RecordParts) -> Appended:
        """Append one record; when this returns, readers of this process see it once committed."""
        size = self.size_of(lane, parts)
        self._check_size(size)
        counts = parts.sys_flag & TRANSACTION_MASK not in (PREPARED, ROLLBACK)
        self._lock.acquire()
        try:
            if self._is_stopped:
                raise StoreClosedError
            now = self.now_ms()
            tail = self._tail
            if tail is None or size + BLANK_SIZE > tail.capacity - tail.wrote_position:
                tail = self._roll()
            position = tail.wrote_position
            log_offset = tail.base_offset + position
            queue_offset = lane.next_offset if counts else 0
            data = self.encode(lane, parts, size, queue_offset, log_offset, now)
            if self.crc_property:
                data = seal_crc_property(data)
            self._write(tail, position, data)
            tail.wrote_position = position + size
            tail.last_append_ms = self._last_time_ms = now
            if self._commits_at_once:
                tail.committed_position = position + size
            lane.next_offset += counts
        except struct.error as error:
            raise MessageError(
                f"a number of the message does not fit its field: {error}"
            ) from error
        finally:
            self._lock.release()
        return Appended(log_offset, queue_offset, now, size)

    def _check_size(self, size: int) -> None:
        limit = self.log.segment_bytes - BLANK_SIZE
        if size > limit:
            raise MessageTooLargeError(
                "the record", size, limit, "a record must fit into one segment: shorten the message"
            )

    @staticmethod
    def _write(segment: Segment, position: int, data: Buffer) -> None:
        assert segment.channel is not None
        try:
            segment.channel.write(position, data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(segment.path, len(data)) from error
            raise

    def _roll(self) -> Segment:
        """Return a fresh tail; the old one is filled with a blank record only once there is one."""
        tail = self._tail
        fresh = self._obtain(self.log.next_free_base())
        self._turn_to(tail, fresh)
        return fresh

    def _obtain(self, base_offset: int) -> Segment:
        path = self.log.path_of(base_offset)
        capacity = self.log.segment_bytes
        try:
            file = self._allocator.obtain(
                path, capacity, allocated=self._writer.needs_allocated_file
            )
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(path, capacity) from error
            raise
        segment = Segment(self._files, path, base_offset, capacity)
        segment.start_writing(self._writer.open(file, capacity, 0), 0)
        return segment

    def _turn_to(self, tail: Segment | None, fresh: Segment) -> None:
        if tail is not None:
            position = tail.wrote_position
            self._write(tail, position, BLANK.pack(tail.capacity - position, MAGIC_BLANK))
            tail.wrote_position = tail.capacity
            if self._commits_at_once:
                tail.committed_position = tail.capacity
            self.sealed.append(tail)
        self.log.add(fresh)
        self._tail = fresh

    # --- many records

    def append_batch(
        self,
        data: bytearray,
        sizes: Int64s,
        lanes: list[Lane],
        lane_rows: Int64s,
        *,
        store_time_at: Int64s | int,
        atomic: bool = False,
    ) -> AppendedBatch:
        """Append encoded records whose stamps are still zero, one behind the other, under one lock.

        Args:
            data: the records, in order.
            sizes: TOTALSIZE of each.
            lanes: the queues they go to.
            lane_rows: for each record the index of its queue in `lanes`.
            store_time_at: where STORETIMESTAMP stands in each record.
            atomic: all in one segment, or an error.
        """
        if len(sizes) == 0:
            none = np.zeros(0, np.int64)
            return AppendedBatch(none, none, self._last_time_ms, none)
        self._check_size(int(sizes.sum() if atomic else sizes.max()))
        self._lock.acquire()
        try:
            if self._is_stopped:
                raise StoreClosedError
            now = self.now_ms()
            pieces, log_offsets = self._plan(sizes, atomic=atomic)
            queue_offsets, nexts = count_up(lanes, lane_rows)
            stamp(data, sizes, queue_offsets, log_offsets, now, store_time_at)
            if self.crc_property:
                seal_all(data, sizes)
            self._write_pieces(pieces, data, now)
            for lane, following in zip(lanes, nexts, strict=True):
                lane.next_offset = following
        finally:
            self._lock.release()
        return AppendedBatch(log_offsets, queue_offsets, now, sizes)

    def _plan(
        self, sizes: Int64s, *, atomic: bool
    ) -> tuple[list[tuple[Segment, int, int]], Int64s]:
        """Say which bytes of the batch go to which segment; all segments are made before any write."""
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        log_offsets = np.empty(len(sizes), np.int64)
        pieces: list[tuple[Segment, int, int]] = []
        fresh: list[Segment] = []
        segment, position = self._tail, self._tail.wrote_position if self._tail else 0
        row = done = 0
        try:
            while row < len(sizes):
                room = segment.capacity - position - BLANK_SIZE if segment else -1
                fits = int(np.searchsorted(ends, done + room, side="right"))
                if segment is None or fits <= row or (atomic and total > room):
                    segment = self._obtain(self.log.next_free_base(len(fresh)))
                    fresh.append(segment)
                    position = 0
                    continue
                stop = int(ends[fits - 1])
                start = segment.base_offset + position - done
                log_offsets[row:fits] = start + ends[row:fits] - sizes[row:fits]
                pieces.append((segment, done, stop))
                position += stop - done
                row, done = fits, stop
        except (OSError, PenstockError):
            for segment in fresh:
                segment.close()
                self._allocator.discard(segment.path)
            raise
        return pieces, log_offsets

    def _write_pieces(
        self, pieces: list[tuple[Segment, int, int]], data: bytearray, now: int
    ) -> None:
        whole = memoryview(data)
        for segment, start, stop in pieces:
            if segment is not self._tail:
                self._turn_to(self._tail, segment)
            position = segment.wrote_position
            self._write(segment, position, whole[start:stop])
            segment.wrote_position = position + stop - start
            segment.last_append_ms = self._last_time_ms = now
            if self._commits_at_once:
                segment.committed_position = segment.wrote_position

    # --- copies

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes copied from another log of the same geometry, blank records included.

        They must begin at this log's end and lie within one segment, as a master sends them; they are
        taken as they are. Queue offsets of lanes do not follow: nothing else may be appended to such a log.
        """
        with self._lock:
            if log_offset != self.end_offset:
                raise OffsetError(
                    log_offset, self.end_offset, self.end_offset + 1, "copied log offset"
                )
            tail = self._tail
            if tail is None or tail.wrote_position == tail.capacity:
                fresh = self._obtain(log_offset)
                self.log.add(fresh)
                self._tail = tail = fresh
            if len(data) > tail.capacity - tail.wrote_position:
                raise MessageTooLargeError(
                    "the copied piece", len(data), tail.capacity - tail.wrote_position,
                    "cut it where the segment ends",
                )  # fmt: skip
            self._write(tail, tail.wrote_position, data)
            tail.wrote_position += len(data)
            if self._commits_at_once:
                tail.committed_position = tail.wrote_position

    # --- reading in bulk

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop) as batches; `start` must begin a record.

        Ends early where the bytes are no sound record; the last batch's `end_offset` says where.
        """
        return read_batches(self.log, start, stop)
