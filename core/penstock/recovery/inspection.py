"""Inspects a store before it is opened for writing, and decides which of its files to trust. Changes nothing."""

from collections.abc import Collection
from pathlib import Path

import attrs

from penstock.durability.checkpoint import Checkpoint, Times
from penstock.durability.manifest import summaries_for
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    is_copy,
    penstock_wrote_last,
    vouched_for,
)
from penstock.durability.written_ranges import NO_RANGES, Ranges, known_ranges
from penstock.errors import CorruptionError, FormatVersionError, OffsetError
from penstock.files import Files
from penstock.log.queue_evidence import Due, QueueGenerations, end_before
from penstock.log.resync import Resync
from penstock.log.scan import is_filler
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.log_end import (
    LogEnd,
    check_corruption,
    find_end,
    foreign_start,
    without_part_of_batch,
)

NOTHING = LogEnd(offset=0, last_time_ms=0, reason="new", dirty_bytes=0, survivor=None)


@attrs.define(kw_only=True)
class OpenState:
    """The result of inspecting a store before opening it, and of the repairs made since.

    `is_ours` means that Penstock wrote last, and its log, progress file and clean-close file can be trusted.
    `is_still_ours` means only that no other program has written since, whatever the state of the store. `sealed`
    are the base offsets of the segments with trusted digests. `summaries` are the summaries that the dispatchers
    gave of their files at the clean close.
    """

    progress: Progress
    side: SideFolder
    state: State
    clean: CleanClose | None
    times: Times
    is_new: bool
    is_ours: bool
    is_clean: bool
    was_abnormal: bool
    is_copy: bool = False
    is_still_ours: bool = False
    sealed: list[int] = attrs.Factory(list)
    end: LogEnd = attrs.Factory(lambda: NOTHING)
    mended: list[str] = attrs.Factory(list)
    saved_to: str | None = None
    rewritten: int = 0
    scanned_from: int = 0
    searched_from: int = 0
    ranges: Ranges = NO_RANGES
    summaries: dict[str, bytes] = attrs.Factory(dict)

    @property
    def least_time_ms(self) -> int:
        """The greatest store time of the existing records; new records must not have a lesser one."""
        known_ms = self.state.last_time_ms if self.is_ours else 0
        return max(known_ms, self.end.last_time_ms)

    @property
    def synced_time_ms(self) -> int:
        """The store time of the newest durable record, for the checkpoint: a record with this time must exist."""
        return self.times.log_ms if self.is_clean else self.end.last_time_ms

    @property
    def kind(self) -> str:
        """The value of `RecoveryReport.state`."""
        if self.is_new:
            return "new"
        if self.is_clean:
            return "clean"
        return "abnormal" if self.is_ours or self.is_copy else "foreign"


def inspect_store(
    files: Files, root: Path, log: SegmentedLog, names: Collection[str], *, is_new: bool
) -> OpenState:
    """Inspect the metadata files and the log, changing nothing; raises `CorruptionError` if the log is corrupt.

    `names` are those of the dispatchers that will be loaded. The log may have a witness.
    """
    found = _read_metadata(files, root, is_new=is_new)
    if not is_new:
        log.load(repair=False)
        # In a copy of a store that was being written, the log may have been copied before the last segment was created.
        if found.is_still_ours and not found.is_copy:
            _check_length(log, found.state.flushed_offset)
        found.ranges = known_ranges(files, root, log)
        log.coverage, log.quarantined = found.ranges.coverage, found.ranges.quarantined
        found.end = _find_end(log, found, names)
    return found


def torn_end(
    files: Files, root: Path, log: SegmentedLog, ranges: Ranges, *, after_repair: bool = False
) -> int | None:
    """Return the log offset at which the next open for writing will cut off a torn tail, or None if it will not.

    Changes nothing. The store must not be open for writing. `log` must have its coverage (from `ranges`) and witness. With
    `after_repair`, also for a store that was killed, and has no abort marker since a repair that left corruption.
    """
    found = _after_crash(files, root, log, ranges, after_repair=after_repair)
    return found.end.offset if found is not None and found.end.dirty_bytes else None


def doubtful_tail(
    files: Files, root: Path, log: SegmentedLog, ranges: Ranges
) -> tuple[int, LogEnd] | None:
    """Return the range of the log that the next open for writing will scan, and dispatch again; None if there is none.

    That is where it begins, and the end. None, too, if the last writer was not Penstock; otherwise as `torn_end`.
    """
    try:
        state = Progress(files, root).read()
        # A copy that did not keep the times of files looks like a store that another program has opened.
        if not (
            penstock_wrote_last(files, root, state.lock_mtime_ns) or is_copy(files, root, state)
        ):
            return None
        found = _after_crash(files, root, log, ranges)
    except (FormatVersionError, OSError):
        # Reads report what cannot be read.
        return None
    return None if found is None else (found.searched_from, found.end)


def _after_crash(
    files: Files, root: Path, log: SegmentedLog, ranges: Ranges, *, after_repair: bool = False
) -> OpenState | None:
    """Return the state with the end that the next open for writing will find; None if it scans nothing, or refuses to open."""
    try:
        found = _read_metadata(files, root, is_new=False)
        is_scanned = found.was_abnormal or (after_repair and found.clean is None)
        if not is_scanned or not log.segments:
            return None
        found.ranges = ranges
        found.end = _find_end(log, found, found.state.dispatched)
    except (CorruptionError, FormatVersionError, OffsetError):
        return None
    return found


def _read_metadata(files: Files, root: Path, *, is_new: bool) -> OpenState:
    """Return the state recorded in progress file, clean-close file, abort marker and checkpoint."""
    progress = Progress(files, root)
    state = progress.read()
    side = SideFolder(files, root)
    clean = side.read_clean()
    was_abnormal = files.exists(root / "abort")
    times = Checkpoint(files, root).read()
    is_ours = penstock_wrote_last(files, root, state.lock_mtime_ns)
    is_clean = (
        is_ours
        and clean is not None
        and not was_abnormal
        and clean.digest == fingerprint(files, vouched_for(root))
    )
    # In a copy of a store that was being written, the metadata may be ahead of the log.
    is_copied = is_copy(files, root, state)
    return OpenState(
        progress=progress, side=side, state=state, clean=clean, times=times, is_new=is_new,
        is_ours=is_ours and (is_clean or (was_abnormal and not is_copied)), is_clean=is_clean,
        was_abnormal=was_abnormal, is_copy=is_copied and (was_abnormal or clean is None),
        is_still_ours=is_ours,
        summaries=summaries_for(files, root, clean.digest) if is_clean and clean is not None else {},
    )  # fmt: skip


def _check_length(log: SegmentedLog, durable: int) -> None:
    """Raise if the log's files end before the durable offset, which means that a segment is missing or empty."""
    end = log.next_free_base()
    if durable > end:
        path = log.path_of(end)
        raise CorruptionError(
            path, 0, f"records up to log offset {durable}, which were durable", "no segment",
            "the store is not opened for writing and nothing was changed; restore the file from a copy, or "
            "remove the folder penstock to continue without those records",
        )  # fmt: skip


def _find_end(log: SegmentedLog, found: OpenState, names: Collection[str]) -> LogEnd:
    """Return the log's end, from the clean-close file or by a scan; raises `CorruptionError`."""
    clean = found.clean
    if found.is_clean and clean is not None:
        return LogEnd(
            offset=clean.log_end, last_time_ms=clean.last_time_ms, reason="closed cleanly",
            dirty_bytes=0, survivor=None,
        )  # fmt: skip
    durable, start = found.state.flushed_offset, 0
    if found.is_ours and (log.find(durable) is not None or durable == log.next_free_base()):
        start = _find_scan_start(log, found.state, names)
    else:
        found.is_ours, durable = False, 0
        start = foreign_start(log, found.times, was_abnormal=found.was_abnormal)
    found.scanned_from = start if durable == 0 else durable
    found.searched_from = start
    least_ms = _least_known_ms(found)
    is_proven = log.coverage.has_all(start, log.next_free_base())
    end = find_end(
        log, start, least_ms, torn_from=durable if found.is_ours else None,
        generations=None if is_proven else _count_queues(log, found, start, names),
    )  # fmt: skip
    check_corruption(
        log, end, was_abnormal=found.was_abnormal, is_ours=found.is_ours,
        is_still_ours=found.is_still_ours, durable=durable,
    )  # fmt: skip
    return without_part_of_batch(log, end, start, least_ms, durable)


def _find_scan_start(log: SegmentedLog, state: State, names: Collection[str]) -> int:
    """Return the log offset from which records will be dispatched again: they must be scanned first."""
    reached = [offset for name, offset in state.dispatched.items() if name in names]
    least = max(min([state.flushed_offset, *reached]), log.min_offset)
    least = _skip_filler(log, least)
    segment = log.find(least)
    begins = segment is not None and (
        least == segment.base_offset or Resync(log, segment).is_record_at(least)
    )
    if begins or segment is None or least >= state.flushed_offset:
        return least if begins else state.flushed_offset
    # The progress that a plugin reported may be any number. Or the record there is lost: the scan must not begin after it.
    return segment.base_offset


def _skip_filler(log: SegmentedLog, log_offset: int) -> int:
    """Return where the next record may begin: an offset at the filler of a full segment is moved to its end."""
    segment = log.find(log_offset)
    is_at_filler = segment is not None and is_filler(log, segment, log_offset)
    return segment.end_offset if segment is not None and is_at_filler else log_offset


def _count_queues(
    log: SegmentedLog, found: OpenState, start: int, names: Collection[str]
) -> QueueGenerations:
    """Return a counter for the queue offsets of scanned records, starting from the queue entries before `start`."""
    witness = log.witness
    dispatched = [found.state.dispatched.get(name, -1) for name in names] if found.is_ours else []
    # Below this log offset every record has its queue entry.
    counted = _skip_filler(log, min(dispatched, default=-1))

    def due_at(queue: tuple[bytes, int]) -> Due | None:
        if witness is None:
            return None
        due = end_before(witness, queue, start)
        if due == 0:
            return Due(0) if start == 0 else None
        last = witness.place(*queue, due - 1)
        # If a later entry points to the first scanned record, no entry is missing in between.
        is_next = counted >= start or last is None or due < witness.end(*queue)
        return Due(due, 0 if is_next else start - sum(last or (0, 0)))

    return QueueGenerations(log, due_at, found.ranges.is_own, found.ranges.gaps)


def _least_known_ms(found: OpenState) -> int:
    """Return the store time of a record below the durable offset; 0 if no file reliably contains one.

    The checkpoint has no checksum, and a write of it may be torn within one of its times, but not
    within two, so the lesser of them is intact. No record is later than the time in Penstock's progress file.
    """
    if not found.is_ours:
        return 0
    return min(found.times.log_ms, found.times.queues_ms, found.state.last_time_ms)
