"""Staged files: records that were encoded without the store, in files whose records are appended unchanged later.

Encoding needs no open store; appending only sets a few fields and copies. Layout (little-endian)::

    file   := header batch* end
    header := "PSTKSTG1"  flags u32            # 1: records have room for a CRC property
              host_size u32  host 20s  zero u32  crc32c u32
    batch  := "SBAT"  group u32  rows u32  cursors u32  cursor_bytes u32  crc32c u32  data_bytes u64
              (queue u32  topic_size u32  topic){cursors}  size u32{rows}  cursor u32{rows}  data
    end    := "SEND"  batches u32  rows u64  crc32c u32

A checksum covers its whole part except itself; the end detects a truncated file. `group` is a number of the caller.
Records are complete except for the fields that an append sets: offsets, store time, the CRC property's value.

Bytes from disk are not trusted: besides the checksums, every length is bounded, and every record is checked
against the format and against its cursor before any byte is appended to a log.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import attrs

from penstock._kernel import Batch, RecordEncoder
from penstock.errors import CorruptionError, MessageError, StorageError
from penstock.files import File, Files
from penstock.format.arrays import Int64s, np
from penstock.format.columns import RecordColumns
from penstock.format.hashes import crc32c
from penstock.format.names import check_queue, check_topic
from penstock.format.record import CRC_PROPERTY_SIZE, FIXED_SIZE, host_flags
from penstock.log.commit_log import CommitLog

MAGIC = b"PSTKSTG1"
_HEADER = struct.Struct("<8sII20sII")
_BATCH = struct.Struct("<4sIIIIIQ")
_BATCH_CRC_AT = 20
_LANE = struct.Struct("<II")
_END = struct.Struct("<4sIQI")
_CRC = struct.Struct("<I")
_SEALED = 1
_HOST_SIZES = (8, 20)
# The field otherwise holds log offsets, which are much smaller.
MARK_MIN = 1 << 62
MARK_MAX = (1 << 63) - (1 << 40)


@attrs.frozen(eq=False)
class StagedBatch:
    """One checked batch of a staged file; `data` is a view of the mapped file.

    Attributes:
        group: the number that the writer gave it.
        cursors: topic and queue of each cursor.
        cursor_rows: for each record the index of its cursor.
        sizes: the size of each record in bytes.
        data: the records, one after the other.
        host_size: size in bytes of each host in them.
        crc_property: whether the records have room for the CRC property.
    """

    group: int
    cursors: list[tuple[str, int]]
    cursor_rows: Int64s
    sizes: Int64s
    data: memoryview
    host_size: int
    crc_property: bool

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """The size of the largest record in bytes."""
        return int(self.sizes.max())

    def behind(self, rows: int) -> "StagedBatch":
        """Return the batch without its first `rows` records."""
        skipped = int(self.sizes[:rows].sum())
        return attrs.evolve(
            self,
            cursor_rows=self.cursor_rows[rows:],
            sizes=self.sizes[rows:],
            data=self.data[skipped:],
        )

    def encoded(self, encoder: RecordEncoder) -> Batch:
        """Return a copy that can be appended, whose records have a CRC of the whole record if the store's do."""
        cursors = [encoder.cursor_of(topic, queue) for topic, queue in self.cursors]
        batch, end = Batch(encoder), 0
        for size, row in zip(self.sizes.tolist(), self.cursor_rows.tolist(), strict=True):
            start, end = end, end + size
            batch.add_record(cursors[row], self.data[start:end], has_crc=self.crc_property)
        return batch

    def check_mark(self, first: int) -> int:
        """Return `first`; raises `ValueError` unless the marks of all records are distinct from log offsets."""
        if not MARK_MIN <= first <= MARK_MAX + (1 << 40) - len(self):
            raise ValueError(
                f"the first mark is {first}; all marks must be at least {MARK_MIN} and less than {1 << 63}"
            )
        return first


class StagedWriter:
    """Writes one staged file, which is valid once `finish` has returned. Not thread-safe."""

    def __init__(self, files: Files, path: Path, host: bytes, *, crc_property: bool) -> None:
        self._files = files
        self.path = path
        self._file = files.create(path)
        self._at = self.batches = self.rows = 0
        head = _HEADER.pack(MAGIC, crc_property * _SEALED, len(host), host, 0, 0)[: -_CRC.size]
        self._put(head + _CRC.pack(crc32c(head)))

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._at

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._file.pwrite(data, self._at)
        self._at += len(data)

    def add(self, batch: Batch, group: int = 0) -> None:
        """Write one batch; an empty batch is skipped."""
        rows = len(batch)
        if rows == 0:
            return
        _, _, sizes, cursor_rows = (np.frombuffer(column, np.int64) for column in batch.columns())
        data = memoryview(batch)
        cursors = b"".join(
            _LANE.pack(cursor.queue, len(cursor.topic_bytes)) + cursor.topic_bytes
            for cursor in batch.cursors
        )
        numbers = sizes.astype("<u4").tobytes() + cursor_rows.astype("<u4").tobytes()
        parts = [rows, len(batch.cursors), len(cursors), 0, len(data)]
        head = bytearray(_BATCH.pack(b"SBAT", group, *parts)) + cursors + numbers
        _CRC.pack_into(head, _BATCH_CRC_AT, crc32c(data, crc32c(head)))
        self._put(head)
        self._put(data)
        self.batches += 1
        self.rows += rows

    def finish(self) -> None:
        """Write the end, and make the file and its directory entry durable."""
        end = _END.pack(b"SEND", self.batches, self.rows, 0)[: -_CRC.size]
        self._put(end + _CRC.pack(crc32c(end)))
        self._file.sync_all()
        self._file.close()
        self._files.sync_folder(self.path.parent)

    def discard(self) -> None:
        """Delete the file."""
        self._file.close()
        self._files.remove(self.path)


@attrs.define(eq=False)
class StagedFile:
    """A completely checked staged file. The data of a batch stays valid as long as it is referenced."""

    path: Path
    batches: list[StagedBatch]

    @classmethod
    def read(cls, files: Files, path: Path) -> Self:
        """Read and check a file; raises `CorruptionError` with the position of the first invalid part."""
        with files.open(path) as file:
            return cls(path, list(_Reading(path, file).batches()))

    @property
    def rows(self) -> int:
        """Number of records in the file."""
        return sum(len(batch) for batch in self.batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.batches.clear()


class _Reading:
    """Reads and checks one file, once."""

    def __init__(self, path: Path, file: File) -> None:
        self._path = path
        self._size = file.size
        if self._size < _HEADER.size + _END.size:
            raise self._bad(0, "a staged file", f"{self._size} bytes")
        self._data = memoryview(file.map(self._size, writable=False))
        magic, flags, size, host, zero, crc = _HEADER.unpack_from(self._data)
        if magic != MAGIC or crc != crc32c(self._data[: _HEADER.size - _CRC.size]):
            raise self._bad(0, "the header of a staged file", f"{bytes(self._data[:8])!r}")
        if flags & ~_SEALED or zero or size not in _HOST_SIZES or any(host[size:]):
            raise self._bad(8, "flags and host of this version", f"{flags}, {size} bytes")
        self._host_size = int(size)
        self._host_flags = host_flags(host[:size], host[:size])
        self._crc_property = bool(flags & _SEALED)

    def _bad(self, position: int, expected: str, found: str) -> CorruptionError:
        return CorruptionError(self._path, position, expected, found, "write the staged file again")

    def batches(self) -> Iterator[StagedBatch]:
        at, count, rows = _HEADER.size, 0, 0
        while bytes(self._data[at : at + 4]) == b"SBAT":
            batch, at = self._batch(at)
            count += 1
            rows += len(batch)
            yield batch
        end = self._data[at:]
        if (
            len(end) != _END.size
            or bytes(end[:4]) != b"SEND"
            or crc32c(end[:-4]) != _crc_in(end, 16)
        ):
            raise self._bad(at, "a batch or the end", f"{len(end)} bytes {bytes(end[:4])!r}")
        if _END.unpack(end)[1:3] != (count, rows):
            raise self._bad(at, f"an end after {count} batches, {rows} rows", "another one")

    def _batch(self, at: int) -> tuple[StagedBatch, int]:
        """Return the checked batch at a position, and the position after it."""
        if self._size - at < _BATCH.size:
            raise self._bad(at, "the head of a batch", f"{self._size - at} bytes")
        _, group, rows, cursors, cursor_bytes, crc, data_bytes = _BATCH.unpack_from(self._data, at)
        cursors_at = at + _BATCH.size
        numbers_at = cursors_at + cursor_bytes
        data_at = numbers_at + 8 * rows
        stop = data_at + data_bytes
        if stop > self._size or not rows or rows * FIXED_SIZE > data_bytes:
            raise self._bad(at, f"a batch within {self._size} bytes", f"{rows} rows to byte {stop}")
        head = bytes(self._data[at : at + _BATCH_CRC_AT]) + bytes(_CRC.size)
        rest = self._data[at + _BATCH_CRC_AT + _CRC.size : stop]
        if crc32c(rest, crc32c(head)) != crc:
            raise self._bad(at, f"CRC-32C {crc:08x}", "another one")
        numbers = np.frombuffer(self._data[numbers_at:data_at], "<u4").astype(np.int64)
        batch = StagedBatch(
            group, self._cursors(cursors_at, cursor_bytes, cursors), numbers[rows:], numbers[:rows],
            self._data[data_at:stop], self._host_size, self._crc_property,
        )  # fmt: skip
        self._check_records(batch, at)
        return batch, stop

    def _cursors(self, at: int, size: int, count: int) -> list[tuple[str, int]]:
        """Return topic and queue of each cursor of a batch; raises `CorruptionError` for invalid ones."""
        found: list[tuple[str, int]] = []
        stop, start = at + size, at
        while at < stop and len(found) < count and stop - at >= _LANE.size:
            queue, length = _LANE.unpack_from(self._data, at)
            at += _LANE.size + length
            try:
                topic = bytes(self._data[at - length : min(at, stop)]).decode()
                found.append((check_topic(topic), check_queue(queue)))
            except (UnicodeDecodeError, MessageError) as error:
                raise self._bad(start, "topics and queues", str(error)) from error
        if at != stop or len(found) != count:
            raise self._bad(start, f"{count} cursors in {size} bytes", f"{len(found)} to byte {at}")
        return found

    def _check_records(self, batch: StagedBatch, at: int) -> None:
        """Raise `CorruptionError` unless every record matches the format, its cursor and the file's header."""
        ends = np.cumsum(batch.sizes)
        columns = RecordColumns.parse(batch.data, ends - batch.sizes, 0)
        valid = bool(ends[-1] == len(batch.data) and batch.cursor_rows.max() < len(batch.cursors))
        # The columns may be used as indexes only if these checks succeeded.
        valid = valid and bool(batch.sizes.min() >= FIXED_SIZE and columns.valid.all())
        if valid:
            queues = np.array([queue for _, queue in batch.cursors], np.int64)
            valid = bool((columns.sizes == batch.sizes).all())
            valid &= bool((columns.sys_flags == self._host_flags).all())
            valid &= bool((columns.queues == queues[batch.cursor_rows]).all())
            valid &= all(_is_of(columns, *each) for each in _by_topic(batch))
        if valid and self._crc_property:
            valid = bool((columns.property_sizes >= CRC_PROPERTY_SIZE).all())
        if not valid:
            raise self._bad(at, f"{len(batch)} records of their cursors", "others")


def _by_topic(batch: StagedBatch) -> Iterator[tuple[str, Int64s | slice]]:
    """Yield each topic with the rows whose cursors have that topic."""
    topics = [topic for topic, _ in batch.cursors]
    distinct = list(dict.fromkeys(topics))
    if len(distinct) == 1:
        yield distinct[0], slice(None)
        return
    own = np.array([distinct.index(topic) for topic in topics], np.int64)[batch.cursor_rows]
    for number, topic in enumerate(distinct):
        yield topic, np.flatnonzero(own == number)


def _is_of(columns: RecordColumns, topic: str, rows: Int64s | slice) -> bool:
    """Return whether the records in `rows` have the given topic."""
    raw = topic.encode()
    if (columns.topic_sizes[rows] != len(raw)).any():
        return False
    text = columns.raw[columns.topic_starts[rows][:, None] + np.arange(len(raw))]
    return bool((text == np.frombuffer(raw, np.uint8)).all())


def _crc_in(data: memoryview, at: int) -> int:
    return int(_CRC.unpack_from(data, at)[0])


def count_marked(log: CommitLog, log_offset: int, first_mark: int, most: int) -> int:
    """Return how many records numbered from `first_mark` the log has from `log_offset` on, to `most`.

    Other records, before, between and after them, are stepped over. The log is read until `most` are found, else to
    its end: it costs a pass over what was appended after `log_offset`.
    """
    low, end = log.log.min_offset, log.end_offset
    if not low <= log_offset <= end:
        raise StorageError(
            f"records from log offset {log_offset} on cannot be counted: the log has offsets {low} to {end}"
        )
    count = 0
    for batch in log.batches(log_offset, end):
        if count == most:
            break
        marks = batch.columns.prepared_offsets
        own = marks[(marks >= first_mark) & (marks < first_mark + most)][: most - count]
        wrong = np.flatnonzero(own != first_mark + count + np.arange(len(own), dtype=np.int64))
        if len(wrong):
            raise StorageError(
                f"record {count + int(wrong[0])} of the batch after log offset {log_offset} is missing: record "
                f"{int(own[wrong[0]]) - first_mark} is in its place; run `penstock verify`"
            )
        count += len(own)
    return count
