"""Reads on after corruption: the next valid record, segments and batches that continue, errors for wrong offsets.

A record states its own log offset, so a later valid record can be recognised. That alone is no proof: a body may hold
the bytes of a complete valid record that states the log offset at which it will be stored. If the outer record is
truncated or has a flipped bit in its head, the inner record must not become a message. So a valid record after
corruption counts only with a witness, in this order:

    1. The corrupt record's own head: a valid record begins where that record ends by its size, or by the lengths of its
       parts. Everything before that end is the record's content. If valid records begin at both ends, 2 and 3 decide.
    2. A queue entry that points at the record.
    3. A chain: consecutive valid records lead from the record to the segment's blank record or to the end of the log,
       and its queue offset is plausible. No chain within another record's body gets there, because the rest of that
       body, its topic and its properties follow. If the corrupt record's head says that it is the last record, only a
       queue entry counts.

Everything else in between is content of the corrupt record, or lost: it is reported and not changed. The bytes may be
hostile: a place that only looks like a record's head costs a read of that head, and a chain that does not reach the end
is scanned once.

A record that its queue's offsets show to be corrupt (`SegmentedLog.rejected`, see `queue_evidence`) is not valid
either.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock import _kernel
from penstock.contracts.dispatcher import DispatchBatch
from penstock.errors import NoRecordError, OffsetError
from penstock.escape import get_logger
from penstock.format.arrays import np
from penstock.format.columns import Buffer, RecordColumns, ScannedColumns
from penstock.format.record import (
    BLANK_SIZE,
    BORN_IPV6,
    FIXED_SIZE,
    IPV6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED,
    ROLLBACK,
    SIZE_AND_MAGIC,
    STORE_IPV6,
    TRANSACTION_MASK,
    decode_record,
)
from penstock.format.validity import is_valid
from penstock.log.queue_evidence import Due, Note, QueueGenerations
from penstock.log.scan import (
    CORRUPT,
    Checks,
    Scanned,
    StopReason,
    is_filler,
    is_torn_filler,
    quarantined_at,
    scan_segment,
    scan_window,
)
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)


_SEARCH_BYTES = 1 << 20
# Windows overlap, so that the bytes that are compared without another read may span two windows.
_OVERLAP = 64
_NOTHING = bytes(_SEARCH_BYTES + _OVERLAP)
_MAGIC_HEAD = b"\xda\xa3\x20"
_OFFSET_AT = slice(28, 36)
# The bytes before the body of a record with two IPv6 hosts.
_HEAD_BYTES = 88 + 2 * IPV6_EXTRA
_WALK_BYTES = 1 << 20


def used_windows(log: SegmentedLog, segment: Segment, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (log offset, bytes) of the windows of a segment, from `start` on, that are not all zero."""
    end = _used_end(segment)
    for at in range(start, end, _SEARCH_BYTES):
        size = min(_SEARCH_BYTES + _OVERLAP, segment.end_offset - at)
        window = bytes(log.read(at, size))
        if window != _NOTHING[:size]:
            yield at, window


def _used_end(segment: Segment) -> int:
    """Return the log offset after the last byte of a segment that was ever written."""
    # A preallocated file is read only as far as it was written. A deleted file raises later, when it is read.
    with contextlib.suppress(FileNotFoundError):
        return min(segment.base_offset + segment.data_end(), segment.end_offset)
    return segment.end_offset


class _Head(NamedTuple):
    """The fields of the bytes at a log offset, read as a record's head."""

    size: int
    magic: int
    stored_offset: int
    body_at: int
    body_size: int


class Resync:
    """Finds the next valid record in one segment. Not thread-safe."""

    def __init__(self, log: SegmentedLog, segment: Segment) -> None:
        self._log = log
        self._segment = segment
        # By log offset of the valid records of all scanned chains: whether the chain reaches the end of the records.
        self._leads: dict[int, bool] = {}

    def next_valid(self, after: int) -> int | None:
        """Return the first valid record with a witness after the corrupt bytes at `after`, or None."""
        if after < self._segment.base_offset:
            return self._search(after, self._counts)
        head = self._head_at(after)
        claims = () if head is None else self._claims(after, head)
        following = [end for end in claims if self._record_at(end) is not None]
        named = [end for end in following if self._is_named(end)]
        if named:
            # No content of a record has a queue entry.
            return min(named)
        leading = [end for end in following if self._counts(end)]
        if leading or len(following) == 1:
            # Everything before the later one is content of the corrupt record.
            return max(leading or following)
        if head is not None and self._is_last(after, head, claims):
            return self._search(after, self._is_named)
        return self._search(after, self._counts)

    def _search(
        self, after: int, counts: Callable[[int], bool], stop: int | None = None
    ) -> int | None:
        """Return the first offset after `after` and before `stop` that states itself and for which `counts` is true."""
        start = max(after, self._segment.base_offset)
        for at, window in used_windows(self._log, self._segment, start):
            # A head that begins in the overlap is handled in the next window.
            found = window.find(_MAGIC_HEAD, 4)
            while 0 <= found - 4 < _SEARCH_BYTES:
                offset, place = at + found - 4, found - 4 + _OFFSET_AT.start
                if stop is not None and offset >= stop:
                    return None
                # A place that does not state its own log offset needs no further read.
                is_place = window.startswith(offset.to_bytes(8, "big"), place)
                if is_place and offset > after and counts(offset):
                    return offset
                found = window.find(_MAGIC_HEAD, found + 1)
        return None

    def unvouched(self, start: int, stop: int) -> list[int]:
        """Return the log offsets within a corrupt range at which valid records begin, with or without a witness."""
        found: list[int] = []

        def collect(offset: int) -> bool:
            if self._record_at(offset) is not None:
                found.append(offset)
            return False

        self._search(start, collect, stop)
        return found

    def is_record_at(self, offset: int) -> bool:
        """Return whether a whole valid record begins at `offset`, with or without a witness."""
        return self._record_at(offset) is not None

    # --- the head of the corrupt record

    def _claims(self, at: int, head: _Head) -> tuple[int, ...]:
        """Return where the record at `at` ends by its size, and by the lengths of its parts.

        If only one field is wrong, one of the two is right.
        """
        left = self._segment.end_offset - at
        sizes = {head.size, self._length_of_parts(at, head)}
        return tuple(at + size for size in sizes if FIXED_SIZE <= size <= left)

    def _is_last(self, at: int, head: _Head, claims: tuple[int, ...]) -> bool:
        """Return whether a head says that its record is the segment's last one, complete or partly written.

        Then everything after the head is its content. Either both ends agree, or the head's other fields are intact.
        """
        is_whole = head.stored_offset == at and head.magic in (MAGIC_V1, MAGIC_V2)
        return (is_whole or len(claims) == 1) and any(self._is_end(end) for end in claims)

    def _head_at(self, at: int) -> _Head | None:
        left = self._segment.end_offset - at
        if left < FIXED_SIZE:
            return None
        data = bytes(self._log.read(at, min(left, _HEAD_BYTES)))
        size, magic = _i32(data, 0), _i32(data, 4)
        stored = int.from_bytes(data[_OFFSET_AT], "big", signed=True)
        # Magic or stated log offset must be right; otherwise nothing shows that a record began here.
        if stored != at and magic not in (MAGIC_V1, MAGIC_V2):
            return None
        flags = _i32(data, 36)
        body_at = 88 + IPV6_EXTRA * (bool(flags & BORN_IPV6) + bool(flags & STORE_IPV6))
        return _Head(size, magic, stored, body_at, _i32(data, body_at - 4))

    def _length_of_parts(self, at: int, head: _Head) -> int:
        """Return the sum of the lengths of a record's parts; 0 if that would not fit into the segment."""
        left = self._segment.end_offset - at
        end = head.body_at + head.body_size
        width = 2 if head.magic == MAGIC_V2 else 1
        if head.body_size < 0 or end + width + 2 > left:
            return 0
        end += width + self._number(at + end, width)
        if end + 2 > left:
            return 0
        end += 2 + self._number(at + end, 2)
        return end if FIXED_SIZE <= end <= left else 0

    def _number(self, at: int, width: int) -> int:
        return int.from_bytes(self._log.read(at, width), "big")

    # --- candidates

    def _counts(self, offset: int) -> bool:
        """Return whether a valid record with a witness begins at `offset`."""
        if offset in self._leads:
            return self._leads[offset]
        return self._is_named(offset) or (self._may_continue(offset) and self._leads_to_end(offset))

    def _record_at(self, offset: int) -> bytes | None:
        """Return the valid record that begins at `offset`, or None; the lengths are checked before it is read."""
        log, left = self._log, self._segment.end_offset - offset
        if left < FIXED_SIZE:
            return None
        head = self._head_at(offset)
        if head is None or head.stored_offset != offset or not FIXED_SIZE <= head.size <= left:
            return None
        if self._length_of_parts(offset, head) != head.size:
            return None
        # Memory for a large stated size is allocated only if the file is that long.
        place = offset - self._segment.base_offset
        if head.size > _WALK_BYTES and not self._segment.has(place, head.size):
            return None
        record = bytes(log.read(offset, head.size))
        return record if is_valid(record, offset, is_covered=log.coverage.has(offset)) else None

    def _is_named(self, offset: int) -> bool:
        """Return whether a queue entry points at a valid record that begins at `offset`."""
        record = None if self._log.witness is None else self._record_at(offset)
        if record is None or self._log.witness is None:
            return False
        fields = decode_record(record)
        place = self._log.witness.place(fields.topic, fields.queue, fields.queue_offset)
        return place == (offset, len(record))

    def _may_continue(self, offset: int) -> bool:
        """Return whether a valid record begins at `offset` whose queue offset is plausible."""
        record = self._record_at(offset)
        if record is None:
            return False
        fields = decode_record(record)
        is_counted = fields.sys_flag & TRANSACTION_MASK not in (PREPARED, ROLLBACK)
        if self._log.witness is None or not is_counted:
            return True
        most = (offset - self._log.min_offset) // FIXED_SIZE + 1
        end = self._log.witness.end(fields.topic, fields.queue)
        return 0 <= fields.queue_offset <= end + most

    def _leads_to_end(self, offset: int) -> bool:
        """Return whether consecutive valid records lead from `offset` to the end of the segment's records."""
        records, end = self._chain(offset)
        leads = self._leads.get(end, False) or self._is_end(end)
        self._leads.update(dict.fromkeys(records, leads))
        return leads

    def _chain(self, at: int) -> tuple[list[int], int]:
        """Return the log offsets of consecutive valid records from `at` on, and where they end."""
        log, segment, found = self._log, self._segment, list[int]()
        checks = Checks(log.coverage)
        for scanned in scan_segment(
            log, segment, at, segment.end_offset, checks, window_bytes=_WALK_BYTES
        ):
            for offset in scanned.records.log_offsets.tolist():
                if offset in self._leads:
                    return found, offset
                found.append(offset)
            at = scanned.end_offset
        return found, at

    def _is_end(self, at: int) -> bool:
        """Return whether the segment's records end at `at`: with a blank record, or with nothing after it."""
        left = self._segment.end_offset - at
        if left <= 0:
            return True
        if left >= BLANK_SIZE:
            head = bytes(self._log.read(at, BLANK_SIZE))
            if _i32(head, 4) == MAGIC_BLANK and _i32(head, 0) == left:
                return True
        return _used_end(self._segment) <= at or not any(
            window.strip(b"\0") for _, window in used_windows(self._log, self._segment, at)
        )


def _i32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big", signed=True)


class Valid(NamedTuple):
    """Valid records in [start, stop); their memory is valid only until the next part is requested."""

    columns: RecordColumns
    start: int
    stop: int


class Corrupt(NamedTuple):
    """A range [start, stop) in which no valid record begins; at `stop` one begins, or the segment's records end.

    `reason` is empty if the bytes themselves are not valid records. `is_noted`: the range is quarantined.
    """

    start: int
    stop: int
    reason: str = ""
    is_noted: bool = False


class End(NamedTuple):
    """The records of a segment end at `start`, with a blank record or without one."""

    start: int
    is_blank: bool


Piece = Valid | Corrupt | End


def walk_segment(log: SegmentedLog, segment: Segment) -> Iterator[Piece]:
    """Yield the parts of a segment in log order, all checks made for every record; the last one is an `End`.

    A torn tail (`SegmentedLog.torn_at`) is not scanned.
    """
    at, resync = segment.base_offset, Resync(log, segment)
    limit = segment.end_offset if log.torn_at is None else min(segment.end_offset, log.torn_at)
    while at < limit:
        reason = StopReason.END
        for records, end, reason in scan_segment(log, segment, at, limit, Checks(log.coverage)):
            if reason is StopReason.QUARANTINED:
                yield Corrupt(at, end, is_noted=True)
            else:
                yield from _without_rejected(log, records, at, end)
            at = end
        is_damaged = reason is StopReason.FILLER and not is_filler(log, segment, at)
        if is_damaged or is_torn_filler(log, segment, at):
            # Readers go on all the same, but a copy of the log takes no other size.
            is_noted = quarantined_at(log, at) is not None
            yield Corrupt(at, segment.end_offset, is_noted=is_noted)
            break
        is_blank = reason in (StopReason.FILLER, StopReason.QUARANTINED)
        following = None if is_blank else resync.next_valid(at)
        if following is None or following >= limit:
            yield End(at, is_blank)
            return
        yield Corrupt(at, following)
        at = following
    yield End(max(limit, segment.base_offset), is_blank=limit == segment.end_offset)


def _without_rejected(
    log: SegmentedLog, columns: RecordColumns, start: int, stop: int
) -> Iterator[Valid | Corrupt]:
    """Yield valid records, and as corrupt ranges those records that were rejected by their queues' offsets."""
    offsets = columns.log_offsets
    rejected = [r for r in sorted(log.rejected) if start <= r < stop] if log.rejected else []
    rows = np.searchsorted(offsets, np.array(rejected, np.int64))
    first = 0
    for offset, row in zip(rejected, rows.tolist(), strict=True):
        if row >= len(offsets) or int(offsets[row]) != offset:
            continue
        size, reason = log.rejected[offset]
        yield Valid(columns.rows(slice(first, row)), start, offset)
        yield Corrupt(offset, offset + size, reason)
        first, start = row + 1, offset + size
    yield Valid(columns.rows(slice(first, None)), start, stop)


def needs_counts(log: SegmentedLog) -> bool:
    """Return whether `reject_by_counts` scans the log: not if all records end in a CRC of their own bytes."""
    spans = log.spans()
    return bool(spans) and not log.coverage.has_all(spans[0][0], spans[-1][1])


def reject_by_counts(
    log: SegmentedLog,
    is_own: Callable[[int], bool],
    gaps: Sequence[tuple[int, int]],
    on_read: Callable[[Segment], None] = lambda _: None,
) -> list[Note]:
    """Set `log.rejected` to the records that their queues' offsets show to be corrupt; return notes on new generations.

    Nothing is scanned unless `needs_counts`. `on_read` is called with each segment after it was scanned.
    """
    log.rejected = {}
    if not needs_counts(log):
        return []
    free = log.min_offset > 0
    generations = QueueGenerations(log, lambda _queue: None if free else Due(0), is_own, gaps)
    expected = log.min_offset
    for segment in log.segments:
        if segment.base_offset > expected:
            generations.lose(expected, segment.base_offset)
        for piece in walk_segment(log, segment):
            if isinstance(piece, Valid):
                generations.add(piece.columns)
            elif isinstance(piece, Corrupt):
                generations.lose(piece.start, piece.stop)
            elif not piece.is_blank:
                generations.lose(piece.start, segment.end_offset)
        expected = segment.end_offset
        on_read(segment)
    found = generations.finish()
    log.rejected = found.rejected
    return found.notes


# The maximum bytes of log in a batch: smaller batches stay in a core's cache, larger ones hold the GIL less often.
BATCH_BYTES = 4 << 20
# What a follower that keeps up finds: a record, or some.
SHORT_BYTES = 64 << 10
# Larger if CRCs are checked, as at an opening: work that is done for each queue in each batch is done less often.
_CHECKED_BATCH_BYTES = 8 << 20


def read_batches(
    log: SegmentedLog,
    start: int,
    stop: int,
    *,
    check_crc: bool = False,
    is_copied: bool = False,
) -> Iterator[DispatchBatch]:
    """Return the records in [start, stop) as batches; a record must begin at `start`.

    The lengths and the stated log offset of every record are checked, CRCs only with `check_crc`. If a batch meets
    corrupt bytes, its range extends to the next valid record that has a witness (see `resync`), or to the segment's
    end, so that no record after the corrupt bytes is skipped. A mapped log is copied only with `is_copied` (see
    `scan`).
    """
    at, size = start, _CHECKED_BATCH_BYTES if check_crc else BATCH_BYTES
    while at < stop:
        with log.lease(at) as segment:
            limit = min(stop, segment.end_offset)
            checks = Checks(log.coverage, crc=check_crc)
            scanned = scan_window(
                log, segment, at, limit, checks, window_bytes=size, is_copied=is_copied
            )
            end = _end_of(log, segment, scanned, stop)
            yield DispatchBatch(scanned.records, at, end)
        at = end


def read_short(
    log: SegmentedLog, segment: Segment, start: int, stop: int, *, check_crc: bool
) -> DispatchBatch | None:
    """Return the records in [start, stop) as `read_batches` does, without a copy; None if it is not just valid records.

    For ranges of up to `SHORT_BYTES`. The caller holds the segment until the batch is dispatched.
    """
    if stop > segment.end_offset:
        return None
    window = log.read_from(segment, start, stop - start)
    checks = _kernel.CRC if check_crc else 0
    rows, size, _, _ = _kernel.scan(window, start, checks, log.coverage.packed)
    if size != stop - start:
        return None
    return DispatchBatch(ScannedColumns(window, rows, stop), start, stop)


def _end_of(log: SegmentedLog, segment: Segment, scanned: Scanned, stop: int) -> int:
    """Return where the next records begin: after the scanned ones, and after filler or corrupt bytes there."""
    at = scanned.end_offset
    if scanned.stop is StopReason.FILLER:
        return segment.end_offset
    if scanned.stop not in CORRUPT:
        return at
    if (noted := quarantined_at(log, at)) is not None:
        return min(noted.stop, stop)
    following = Resync(log, segment).next_valid(at)
    end = segment.end_offset if following is None else following
    logger.error(
        "%s: %d bytes at log offset %d are not a valid record; they are skipped, other records are not affected; see "
        "penstock verify", segment.path, end - at, at,
    )  # fmt: skip
    return min(end, stop)


class RecoveredLog:
    """The log as dispatchers may read it while they load (`contracts.LogView`)."""

    def __init__(self, log: SegmentedLog, end_offset: int) -> None:
        self._log = log
        self.end_offset = end_offset

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that the log still has."""
        return self._log.min_offset

    def read(self, log_offset: int, size: int) -> Buffer:
        """See `contracts.LogView`."""
        return self._log.read(log_offset, size)

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """See `contracts.LogView`."""
        stop = min(stop, self.end_offset)
        return read_batches(self._log, start, stop, check_crc=True, is_copied=True)

    def spans(self) -> list[tuple[int, int]]:
        """See `contracts.LogView`."""
        return [(a, min(b, self.end_offset)) for a, b in self._log.spans() if a < self.end_offset]


def explain(log: SegmentedLog, log_offset: int) -> OffsetError | None:
    """Return why no record begins at `log_offset`; None if the log is corrupt there, or a record can be read after all.

    A wrong offset from a caller must not be reported as corruption. Called only after a read has failed: the segment is
    scanned from its start with all checks.
    """
    segment = log.find(log_offset)
    if segment is None or log_offset < log.min_offset or not segment.lease.hold():
        return None
    try:
        return _explain_in(log, segment, log_offset)
    finally:
        segment.lease.release()


def _explain_in(log: SegmentedLog, segment: Segment, log_offset: int) -> OffsetError | None:
    """Return why no record begins at an offset of a segment; see `explain`."""
    before: int | None = None
    for piece in walk_segment(log, segment):
        if isinstance(piece, End):
            if piece.start > log_offset:
                return None
            return _explain_after_records(log, segment, piece, log_offset, before)
        if isinstance(piece, Valid):
            if piece.start <= log_offset < piece.stop:
                return _explain_inside(piece.columns, piece.stop, log_offset)
            if len(piece.columns):
                before = int(piece.columns.log_offsets[-1])
        elif log_offset < piece.stop:
            return None
    return None


def _explain_inside(records: RecordColumns, stop: int, log_offset: int) -> OffsetError | None:
    """Return the error for an offset within a range that valid records fill."""
    offsets = records.log_offsets.tolist()
    row = int((records.log_offsets <= log_offset).sum()) - 1
    if row < 0 or offsets[row] == log_offset:
        # The record can be read after all: it was written, or repaired, meanwhile.
        return None
    after = offsets[row + 1] if row + 1 < len(offsets) else stop
    return NoRecordError(log_offset, offsets[row], after, "the offset is inside a record")


def _explain_after_records(
    log: SegmentedLog, segment: Segment, piece: End, log_offset: int, before: int | None
) -> OffsetError | None:
    """Return the error for an offset at or after the end of a segment's records."""
    if piece.is_blank:
        why = "the rest of that segment is filler"
        return NoRecordError(log_offset, before, log.next_base(log_offset), why)
    room = min(SIZE_AND_MAGIC.size, segment.end_offset - piece.start)
    if bytes(log.read(piece.start, room)).strip(b"\0") or log.next_base(log_offset) is not None:
        # Bytes that are not a record, or a hole before later segments: corruption.
        return None
    return OffsetError(log_offset, log.min_offset, piece.start)
