"""Finds the end of the log, and the reason for it, between taking the lock and the first write.

    1. Who wrote last? After a clean close by Penstock with no file changed since, everything is trusted.
       After a crash of Penstock, the log is trusted up to the flushed offset, and scanned with all checks from
       there. After any other program (the Java store), it is scanned from where the Java store would begin.
    2. The scan stops at the first bytes that are not a valid record (see `validity`, `queue_evidence`). After them, it
       searches for a survivor: a later valid record with a witness (see `resync`).
    3. Without a survivor, the end is a torn tail, or simply the end. The log is cut there and the bytes after it are
       erased. This is normal.
    4. If there is a survivor, and a sector before it was never written, or not since records were added to it, the
       machine stopped between writes that were not yet durable. The log is cut as in 3, but the bytes cut off are saved
       in the side folder. In 3 and 4, if the last records before the end belong to an atomic batch whose end is
       missing, the log is cut where the batch begins (see `scan`), unless a part of the batch is known to be durable.
    5. In all other cases, a survivor means corruption. Nothing is changed, and opening for writing is refused.
    6. After a crash, bytes not known to be durable are rewritten and synced before they are trusted:
       the page cache may hold bytes that a failed sync never wrote to the disk. Filler whose head is torn is completed.
       Of a sector that is itself torn this covers the last bytes of a segment only: sectors reach the disk whole.

Torn tail and corruption never share a code path. Running any step twice changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import attrs

from penstock.contracts.dispatcher import CORRUPT_LOG, CUT_END, ONLY_CUT
from penstock.durability.progress import Times
from penstock.errors import CorruptionError, OffsetError
from penstock.files import Files
from penstock.format.record import (
    BLANK,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    decode_record,
)
from penstock.format.validity import is_valid
from penstock.log.queue_evidence import QueueGenerations, messages_within
from penstock.log.resync import Resync, used_windows
from penstock.log.scan import (
    SECTOR_BYTES,
    TORN_BYTES,
    Checks,
    StopReason,
    find_incomplete,
    is_torn_filler,
    scan_segment,
)
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

_REWRITE_BYTES = 1 << 20
_IS_FULL = "the log's last segment is full"
_TELLING_ZEROS = 3
# Java begins an abnormal recovery this long before the checkpoint's times.
_CHECKPOINT_SLACK_MS = 3000
_NORMAL_SEGMENTS = 3
_REFUSED = "the store is not opened for writing; read_only=True reads all other records"


@attrs.frozen(kw_only=True)
class RecoveryReport:
    """The findings and actions of the recovery at an opening for writing.

    Attributes:
        state: "new", "clean" (nothing had to be scanned), "abnormal" (Penstock crashed) or
            "foreign" (another program wrote last).
        log_end: log offset after the last record.
        cut_bytes: number of bytes after the end that were not a record and were erased; 0 for none.
        reason: why the scan ended there.
        saved_to: where the bytes cut off were saved; None if nothing was cut.
        rewritten_bytes: bytes written and synced again because their durability was in doubt.
        dispatched_from: log offset from which records were dispatched to queues and index again.
        mended: one sentence for each repair that was made.
        duration_ms: duration of the open.
        newest_time_ms: the store time of the newest record; no record has a later one.
    """

    state: str
    log_end: int
    cut_bytes: int = 0
    reason: str = ""
    saved_to: str | None = None
    rewritten_bytes: int = 0
    dispatched_from: int = 0
    mended: tuple[str, ...] = ()
    duration_ms: int = 0
    newest_time_ms: int = 0


@attrs.frozen(kw_only=True)
class LogEnd:
    """Where the valid records end.

    `survivor` is the log offset of a valid record after the end, None for none; `dirty_bytes` is the
    number of bytes from the end to the last byte that is not zero. `last` is the last valid record that was scanned:
    its log offset and its PREPAREDTRANSACTIONOFFSET; None for none. `cuts_batch` is true if valid records are after the
    end: those of an atomic batch that is not whole. `torn_fillers` are the log offsets of filler with a torn head.
    """

    offset: int
    last_time_ms: int
    reason: str
    dirty_bytes: int
    survivor: int | None
    last: tuple[int, int] | None = None
    cuts_batch: bool = False
    torn_fillers: tuple[int, ...] = ()


def foreign_start(log: SegmentedLog, times: Times, *, was_abnormal: bool) -> int:
    """Return where the Java store would begin its scan (spec section 6.6)."""
    segments = log.segments
    if not segments:
        return 0
    if not was_abnormal:
        return segments[max(len(segments) - _NORMAL_SEGMENTS, 0)].base_offset
    limit = min(times.log_ms, times.queues_ms) - _CHECKPOINT_SLACK_MS
    for segment in reversed(segments):
        first = _first_time_ms(log, segment)
        if first is not None and 0 < first <= limit:
            return segment.base_offset
    return segments[0].base_offset


def _first_time_ms(log: SegmentedLog, segment: Segment) -> int | None:
    size, magic = SIZE_AND_MAGIC.unpack(log.read(segment.base_offset, SIZE_AND_MAGIC.size))
    if magic not in (MAGIC_V1, MAGIC_V2) or not FIXED_SIZE <= size <= segment.capacity:
        return None
    record = log.read(segment.base_offset, size)
    if not is_valid(record, segment.base_offset, is_covered=log.coverage.has(segment.base_offset)):
        return None
    return decode_record(record).store_time_ms


def find_end(
    log: SegmentedLog,
    start: int,
    last_time_ms: int,
    *,
    torn_from: int | None = None,
    was_killed: bool = False,
    generations: QueueGenerations | None = None,
) -> LogEnd:
    """Scan from `start`, the beginning of a record or the end, and return the end of the valid records.

    `torn_from`: Penstock had synced everything before that log offset, and possibly nothing after it. `was_killed`: the
    last writer did not close the store. `generations` checks the queue offsets of records that do not end with a CRC of
    the whole record.
    """
    at, reason, last, torn = start, _IS_FULL, None, list[int]()
    while (segment := log.find(at)) is not None:
        at, stop, time_ms, last = _scan_to_end(log, segment, at, generations, torn_from)
        if was_killed and is_torn_filler(log, segment, at):
            stop = StopReason.FILLER
            torn.append(at)
        last_time_ms = max(last_time_ms, time_ms)
        if stop not in (StopReason.FILLER, StopReason.QUARANTINED):
            reason = (StopReason.CUT if stop is StopReason.END else stop).value
            break
        at = segment.end_offset
        reason = _IS_FULL
    # Entries may speak of records after the place where the scan has stopped: these are no end of the log.
    found = {} if generations is None else generations.finish().rejected
    rejected = {first: record for first, record in found.items() if first < at}
    if rejected:
        first = min(rejected)
        following = first + rejected[first].size
        survivor = following if following < at else None
        return LogEnd(
            offset=first, last_time_ms=last_time_ms, reason=rejected[first].reason,
            dirty_bytes=at - first, survivor=survivor, last=_last_before(log, start, first),
            torn_fillers=tuple(torn),
        )  # fmt: skip
    survivor, dirty = _find_survivor(log, at)
    return LogEnd(
        offset=at, last_time_ms=last_time_ms, reason=reason, dirty_bytes=dirty, survivor=survivor, last=last,
        torn_fillers=tuple(torn),
    )  # fmt: skip


def without_part_of_batch(
    log: SegmentedLog, end: LogEnd, start: int, least_time_ms: int, durable: int
) -> LogEnd:
    """Return the end, moved to where an atomic batch begins if the log has only its first part.

    Args:
        log: the log.
        end: the result of a scan from `start`.
        start: the log offset from which was scanned.
        least_time_ms: the store time from which the scan began.
        durable: log offset below which all batches are whole.
    """
    begin = None if end.last is None else find_incomplete(log, end.last[0], end.offset, end.last[1])
    if begin is None or begin < max(start, durable):
        return end
    cut = end.offset - begin
    return attrs.evolve(
        end, offset=begin, dirty_bytes=end.dirty_bytes + cut, last=None, cuts_batch=True,
        last_time_ms=_last_time_ms(log, start, begin, least_time_ms),
        reason=f"messages that are stored together or not at all begin there, and only {cut} bytes of them are valid",
    )  # fmt: skip


def _last_before(log: SegmentedLog, start: int, stop: int) -> tuple[int, int] | None:
    """Return the last valid record in [start, stop), as in `LogEnd`."""
    last = None
    for segment in log.segments:
        low, high = max(start, segment.base_offset), min(stop, segment.end_offset)
        if low < high:
            for records, _, _ in scan_segment(log, segment, low, high, Checks(log.coverage)):
                if len(records):
                    last = int(records.log_offsets[-1]), int(records.prepared_offsets[-1])
    return last


def _last_time_ms(log: SegmentedLog, start: int, stop: int, least_ms: int) -> int:
    """Return the greatest store time of the valid records in [start, stop), but not less than `least_ms`."""
    for segment in log.segments:
        low, high = max(start, segment.base_offset), min(stop, segment.end_offset)
        if low < high:
            for records, _, _ in scan_segment(log, segment, low, high, Checks(log.coverage)):
                if len(records):
                    least_ms = max(least_ms, int(records.store_times_ms.max()))
    return least_ms


def _scan_to_end(
    log: SegmentedLog,
    segment: Segment,
    start: int,
    generations: QueueGenerations | None,
    torn_from: int | None,
) -> tuple[int, StopReason, int, tuple[int, int] | None]:
    """Return where the valid records of one segment end, why, the greatest store time, and the last record.

    The record as in `LogEnd`.
    """
    at, reason, time_ms, last = start, StopReason.END, 0, None
    checks = Checks(log.coverage, torn_from=torn_from)
    for records, end, reason in scan_segment(log, segment, start, segment.end_offset, checks):
        if len(records):
            time_ms = max(time_ms, int(records.store_times_ms.max()))
            last = int(records.log_offsets[-1]), int(records.prepared_offsets[-1])
            if generations is not None:
                generations.add(records)
        elif reason is StopReason.QUARANTINED and generations is not None:
            generations.lose(at, end)
        at = end
    return at, reason, time_ms, last


def _find_survivor(log: SegmentedLog, end: int) -> tuple[int | None, int]:
    """Return the first valid record with a witness after `end`, and how far after `end` the last non-zero byte is."""
    dirty = 0
    for segment in log.segments:
        if segment.end_offset <= end:
            continue
        before = dirty
        for at, window in used_windows(log, segment, max(end, segment.base_offset)):
            dirty = at + len(window.rstrip(b"\0")) - end
        survivor = Resync(log, segment).next_valid(end) if dirty > before else None
        if survivor is not None:
            return survivor, max(dirty, survivor - end)
    return None, dirty


def check_corruption(
    log: SegmentedLog,
    end: LogEnd,
    *,
    was_abnormal: bool,
    is_ours: bool,
    is_still_ours: bool = True,
    durable: int = 0,
) -> None:
    """Raise if the bytes after the end are corruption rather than a torn tail; see the module docstring, 4 and 5.

    Args:
        log: the log.
        end: the result of the scan.
        was_abnormal: the last writer did not close the store.
        is_ours: Penstock had synced everything below `durable`, so all bytes after it may be torn.
        is_still_ours: no other program has written the store since.
        durable: log offset below which nothing may be missing.
    """
    lacks_only_crc = not is_still_ours and _lacks_only_its_crc(log, end.offset)
    may_be_torn = end.survivor is None or (was_abnormal and is_torn(log, end, is_ours=is_ours))
    if end.offset >= durable and may_be_torn and not lacks_only_crc:
        return
    path, position = _place(log, end.offset)
    why = f"records up to log offset {durable} were durable"
    if lacks_only_crc:
        why = "only the CRC of the whole record is missing or wrong, which a record of another program does not have"
    elif end.survivor is not None:
        why = f"a later record at log offset {end.survivor} is valid"
    names = messages_within(log, end.offset, end.survivor or max(end.offset + 1, durable))
    raise CorruptionError(
        path,
        position,
        "a valid record",
        f"corrupt bytes ({end.reason}{names}), although {why}",
        f"{_REFUSED}; {CUT_END if end.survivor is None else CORRUPT_LOG if _has_all(log, end) else ONLY_CUT}",
    )


def has_changed(log: SegmentedLog, start: int, durable: int) -> bool:
    """Return whether all bytes from a copy's log end, `start`, to a log offset were written, so have changed since.

    A log that was copied before its writer was done lacks them: it has zeros there, in whole or in part. If the size of
    the first record is zero, that record was not written.
    """
    last = log.find(durable - 1) if start < durable else None
    if last is None or log.find(start) is None:
        return False
    tail = max(start, last.base_offset, durable - TORN_BYTES)
    return (
        any(log.read(start, 4))
        and any(log.read(tail, durable - tail))
        and not _has_unwritten(log, start, durable, TORN_BYTES)
    )


def _lacks_only_its_crc(log: SegmentedLog, at: int) -> bool:
    """Return whether a record is valid except for its missing record CRC: another program may have written it."""
    segment = log.find(at) if log.coverage.has(at) else None
    if segment is None or segment.end_offset - at < FIXED_SIZE:
        return False
    size = SIZE_AND_MAGIC.unpack(log.read(at, SIZE_AND_MAGIC.size))[0]
    if not FIXED_SIZE <= size <= segment.end_offset - at:
        return False
    record = bytes(log.read(at, size))
    return is_valid(record, at) and not is_valid(record, at, is_covered=True)


def is_torn(log: SegmentedLog, end: LogEnd, *, is_ours: bool) -> bool:
    """Return whether the bytes after the end are writes that reached the disk only in part; see the module, 3 and 4."""
    if end.survivor is None:
        return True
    least = TORN_BYTES if is_ours else SECTOR_BYTES
    return _has_all(log, end) and _has_unwritten(log, end.offset, end.survivor, least)


def _has_all(log: SegmentedLog, end: LogEnd) -> bool:
    """Return whether all segments between the end and the survivor exist."""
    assert end.survivor is not None
    bases = range(end.offset, end.survivor, log.segment_bytes)
    return all(log.find(base) is not None for base in bases)


def _place(log: SegmentedLog, log_offset: int) -> tuple[Path, int]:
    """Return file and position of a log offset; the start of the next file if the segment is missing."""
    segment = log.find(log_offset)
    if segment is None:
        following = log.next_base(log_offset)
        return (log.folder if following is None else log.path_of(following)), 0
    return segment.path, log_offset - segment.base_offset


def check_reached(log: SegmentedLog, reached: int, end: LogEnd) -> None:
    """Raise if queues and index did not reach the log's end, because dispatching met corruption before it.

    The corruption may be before the range that was scanned to find the end. Queues that stop there would assign
    the queue offsets of the records after it a second time.
    """
    if reached >= end.offset:
        return
    path, position = _place(log, reached)
    raise CorruptionError(
        path,
        position,
        "a valid record",
        f"corrupt bytes, although the log ends only at {end.offset}",
        f"{_REFUSED}; {CORRUPT_LOG}",
    )


def _has_unwritten(log: SegmentedLog, start: int, stop: int, least: int) -> bool:
    """Return whether a sector of [start, stop) ends with `least` zeros, or has only zeros after `start`.

    Sectors are written atomically. If the last write of a sector is missing, the sector holds its previous content:
    records up to some record's end, then zeros. Fewer than three zeros may be the first bytes of a record's size.
    """
    # A record's size begins with zeros, too, so a sector may hold only those of the survivor's size.
    head = bytes(log.read(stop, SIZE_AND_MAGIC.size))
    stop += len(head) - len(head.lstrip(b"\0"))
    for segment in log.segments:
        low = max(start, segment.base_offset)
        high = min(stop, segment.end_offset)
        first = low + SECTOR_BYTES - (low - segment.base_offset) % SECTOR_BYTES
        for border in range(first, high + 1, SECTOR_BYTES):
            at = max(border - least, low)
            if border - at >= _TELLING_ZEROS and not any(log.read(at, border - at)):
                return True
    return False


def rewrite(files: Files, log: SegmentedLog, start: int, stop: int) -> int:
    """Rewrite bytes [start, stop) in place and sync them; returns how many."""
    done = 0
    for segment in log.segments:
        low, high = max(start, segment.base_offset), min(stop, segment.end_offset)
        if low >= high:
            continue
        with files.open(segment.path, writable=True) as file:
            for at in range(low, high, _REWRITE_BYTES):
                size = min(_REWRITE_BYTES, high - at)
                position = at - segment.base_offset
                file.pwrite(file.pread(size, position), position)
                done += size
            file.sync()
    return done


def complete_fillers(files: Files, log: SegmentedLog, end: LogEnd) -> list[str]:
    """Write the heads of torn filler; return what was mended.

    Where the magic is there, in the next sector, it is enough for a reader, RocketMQ's too; a copy of the log takes no
    other size.
    """
    mended = []
    for at in end.torn_fillers:
        segment = log.find(at)
        if at < end.offset and segment is not None:
            with files.open(segment.path, writable=True) as file:
                blank = BLANK.pack(segment.end_offset - at, MAGIC_BLANK)
                file.pwrite(blank, at - segment.base_offset)
                file.sync()
            mended.append(f"wrote the head of the filler at log offset {at} again: it was torn")
    return mended


@contextmanager
def named_gaps(log: SegmentedLog) -> Iterator[None]:
    """Turn the error of a read between segments into one that names the missing segment, and what to do."""
    try:
        yield
    except OffsetError as error:
        for before, after in pairwise(log.segments):
            if before.end_offset != after.base_offset:
                missing = f"{after.base_offset - before.end_offset} bytes missing before it"
                raise CorruptionError(after.path, 0, "the log without a gap", missing, ONLY_CUT) from error  # fmt: skip
        raise
