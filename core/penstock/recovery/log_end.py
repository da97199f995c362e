"""What happens between taking the lock and the first write: finding the log's end, and saying why.

    1. Who wrote last? Our own clean close with no file changed since: everything is believed.
       Our own crash: the log is believed up to the flushed offset, and walked with all checks from
       there. Anyone else (the Java store): walked from where the Java store would begin.
    2. The walk stops at the first bytes that are not a valid record (see `validity`, `queue_continuity`). After them, look
       for a survivor: a later valid record with a witness (see `resync`).
    3. No survivor: a torn tail (or just the end). Cut there, erase the bytes behind, go on: normal.
    4. A survivor, and a sector before it was never written, or not since records were added to it: the
       machine stopped between writes that were never promised. The same as 3, but what is cut off is kept
       in the side folder.
    5. A survivor otherwise: damage. Nothing is changed, and opening for writing is refused.
    6. After a crash, what was not known durable is written again and synced before it is believed:
       the page cache may hold bytes that a failed sync never got to the disk.

Torn tail and damage never share a code path. Running any step twice changes nothing.
"""

from pathlib import Path

import attrs

from penstock.durability.checkpoint import Times
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.record import FIXED_SIZE, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, decode_record
from penstock.format.validity import is_valid
from penstock.log.queue_continuity import QueueLives
from penstock.log.resync import find_next_valid, used_windows
from penstock.log.scan import SECTOR_BYTES, Checks, StopReason, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

_REWRITE_BYTES = 1 << 20
_IS_FULL = "the log's last segment is full"
# So many zeros at a sector's end say that it was not written, where nothing was promised to be.
_TORN_BYTES = 8
_TELLING_ZEROS = 3
# Java begins an abnormal recovery this long before the checkpoint's times.
_CHECKPOINT_SLACK_MS = 3000
_NORMAL_SEGMENTS = 3


@attrs.frozen(kw_only=True)
class RecoveryReport:
    """What opening a store for writing found and did.

    Attributes:
        state: "new", "clean" (nothing had to be looked at), "abnormal" (our own crash) or
            "foreign" (another program wrote last).
        log_end: log offset behind the last record.
        cut_bytes: bytes that were no record and were erased behind the end; 0 for none.
        reason: why the walk ended there.
        saved_to: where cut bytes that held whole records were kept, or None.
        rewritten_bytes: bytes written and synced again because their durability was in doubt.
        dispatched_from: log offset from which queues and index were brought up again.
        mended: one sentence for each thing that was put right.
        duration_ms: how long it took.
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


@attrs.frozen(kw_only=True)
class LogEnd:
    """Where the sound records end.

    `survivor` is the log offset of a sound record behind the end, None for none; `dirty_bytes`
    counts from the end to the last byte that is not zero.
    """

    offset: int
    last_time_ms: int
    reason: str
    dirty_bytes: int
    survivor: int | None


def foreign_start(log: SegmentedLog, times: Times, *, was_abnormal: bool) -> int:
    """Return where the Java store would begin its walk (spec section 6.6)."""
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
    lives: QueueLives | None = None,
) -> LogEnd:
    """Walk from `start`, which begins a record or is the end, to the end of the valid records.

    `torn_from`: our own writer had synced what lies before that log offset, and perhaps nothing after it. `queue_continuity`
    counts the records, where they do not end in a CRC of their own.
    """
    at, reason = start, _IS_FULL
    while (segment := log.find(at)) is not None:
        at, stop, time_ms = _walk_segment(log, segment, at, lives, torn_from)
        last_time_ms = max(last_time_ms, time_ms)
        if stop is not StopReason.FILLER:
            reason = (StopReason.CUT if stop is StopReason.END else stop).value
            break
        at = segment.end_offset
        reason = _IS_FULL
    rejected = {} if lives is None else lives.finish().rejected
    if rejected:
        first = min(rejected)
        following = first + rejected[first].size
        survivor = following if following < at else None
        return LogEnd(
            offset=first, last_time_ms=last_time_ms, reason=rejected[first].reason,
            dirty_bytes=at - first, survivor=survivor,
        )  # fmt: skip
    survivor, dirty = _look_after(log, at)
    return LogEnd(
        offset=at, last_time_ms=last_time_ms, reason=reason, dirty_bytes=dirty, survivor=survivor
    )


def _walk_segment(
    log: SegmentedLog, segment: Segment, start: int, lives: QueueLives | None, torn_from: int | None
) -> tuple[int, StopReason, int]:
    """Return where the valid records of one segment end, why, and the greatest store time."""
    at, reason, time_ms = start, StopReason.END, 0
    checks = Checks(log.coverage, torn_from=torn_from)
    for records, at, reason in scan_segment(log, segment, start, segment.end_offset, checks):  # noqa: B007 - the last one counts
        if len(records):
            time_ms = max(time_ms, int(records.store_times_ms.max()))
            if lives is not None:
                lives.add(records)
    return at, reason, time_ms


def _look_after(log: SegmentedLog, end: int) -> tuple[int | None, int]:
    """Return the first valid record with a witness after `end`, and how far bytes that are not zero reach."""
    dirty = 0
    for segment in log.segments:
        if segment.end_offset <= end:
            continue
        before = dirty
        for at, window in used_windows(log, segment, max(end, segment.base_offset)):
            dirty = at + len(window.rstrip(b"\0")) - end
        survivor = find_next_valid(log, segment, end) if dirty > before else None
        if survivor is not None:
            return survivor, max(dirty, survivor - end)
    return None, dirty


def check_damage(
    log: SegmentedLog,
    end: LogEnd,
    *,
    was_abnormal: bool,
    is_ours: bool,
    is_still_ours: bool = True,
    durable: int = 0,
) -> None:
    """Raise if what lies behind the end is damage rather than a torn tail; see the module, 4 and 5.

    Args:
        log: the log.
        end: what the walk found.
        was_abnormal: the last writer did not close the store.
        is_ours: our own writer had synced everything below `durable`, so all after it may be torn.
        is_still_ours: no other program has written the store since.
        durable: log offset below which nothing may be missing.
    """
    lacks_only_crc = not is_still_ours and _lacks_only_its_crc(log, end.offset)
    may_be_torn = end.survivor is None or (was_abnormal and is_torn(log, end, is_ours=is_ours))
    if end.offset >= durable and may_be_torn and not lacks_only_crc:
        return
    path, position = _place(log, end.offset)
    why = f"records up to log offset {durable} were made durable"
    if lacks_only_crc:
        why = "it is valid but for the CRC of the whole record, which another program would not have written"
    elif end.survivor is not None:
        why = f"a later record at log offset {end.survivor} is valid"
    raise CorruptionError(
        path,
        position,
        "a valid record",
        f"none ({end.reason}), though {why}",
        "the store is not opened for writing and nothing was changed; open it with read_only=True to "
        "read all other records, copy it, and let penstock repair decide",
    )


def _lacks_only_its_crc(log: SegmentedLog, at: int) -> bool:
    """Return whether a record would be valid if its log offset were not covered: it may be another program's."""
    segment = log.find(at) if log.coverage.has(at) else None
    if segment is None or segment.end_offset - at < FIXED_SIZE:
        return False
    size = SIZE_AND_MAGIC.unpack(log.read(at, SIZE_AND_MAGIC.size))[0]
    if not FIXED_SIZE <= size <= segment.end_offset - at:
        return False
    record = bytes(log.read(at, size))
    return is_valid(record, at) and not is_valid(record, at, is_covered=True)


def is_torn(log: SegmentedLog, end: LogEnd, *, is_ours: bool) -> bool:
    """Return whether what lies after the end are writes that never reached the disk whole; see the module, 3 and 4."""
    if end.survivor is None:
        return True
    least = _TORN_BYTES if is_ours else SECTOR_BYTES
    return _has_all(log, end) and _has_unwritten(log, end.offset, end.survivor, least)


def _has_all(log: SegmentedLog, end: LogEnd) -> bool:
    """Say whether no segment is missing between the end and the survivor."""
    assert end.survivor is not None
    bases = range(end.offset, end.survivor, log.segment_bytes)
    return all(log.find(base) is not None for base in bases)


def _place(log: SegmentedLog, log_offset: int) -> tuple[Path, int]:
    """Return file and position of a log offset; the start of the next file where the segment is missing."""
    segment = log.find(log_offset)
    if segment is None:
        following = log.next_base(log_offset)
        return (log.folder if following is None else log.path_of(following)), 0
    return segment.path, log_offset - segment.base_offset


def check_reached(log: SegmentedLog, reached: int, end: LogEnd) -> None:
    """Raise if queues and index could not be brought to the log's end, because the walk met damage before it.

    The damage may lie before what was walked to find the end. Queues that stop there would give the
    offsets of the records behind it away a second time.
    """
    if reached >= end.offset:
        return
    path, position = _place(log, reached)
    raise CorruptionError(
        path,
        position,
        "a sound record",
        f"none, though the log goes on to {end.offset}",
        "the store is not opened for writing: queues and index cannot be brought up past it; open it "
        "with read_only=True to read all other records, copy it, and see penstock repair",
    )


def _has_unwritten(log: SegmentedLog, start: int, stop: int, least: int) -> bool:
    """Say whether a sector of [start, stop) ends with `least` zeros, or with nothing but zeros behind `start`.

    Sectors reach the disk whole. One that did not was written up to some record's end when it last did,
    and is zero from there on. Fewer than three zeros may be the head of a record's size.
    """
    # A size begins with zeros, too, so the survivor's own may be all that stands in a sector.
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
    """Write bytes [start, stop) again over themselves and sync them; returns how many."""
    done = 0
    for segment in log.segments:
        low, high = max(start, segment.base_offset), min(stop, segment.end_offset)
        if low >= high:
            continue
        file = files.open(segment.path, writable=True)
        try:
            for at in range(low, high, _REWRITE_BYTES):
                size = min(_REWRITE_BYTES, high - at)
                position = at - segment.base_offset
                file.pwrite(file.pread(size, position), position)
                done += size
            file.sync()
        finally:
            file.close()
    return done
