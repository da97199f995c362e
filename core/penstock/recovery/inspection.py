"""Inspects a store before it is opened for writing, and decides which of its files to trust. Changes nothing.

A store that is opened read-only after a crash may have the first records of a batch at the log's end, or queue entries
of some records of a batch. The next open for writing cuts off the former, and adds entries for the latter. Until then
readers see nothing from where the first such batch begins, or from where the log will be cut.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import attrs

from penstock.contracts import (
    Context,
    Dispatcher,
    QueueIndex,
    QueueReader,
)
from penstock.durability.progress import Checkpoint, Progress, State, Times
from penstock.durability.replica_file import is_follower
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    is_copy,
    penstock_wrote_last,
    summaries_for,
    vouched_for,
)
from penstock.durability.written_ranges import NO_RANGES, Ranges, known_ranges
from penstock.errors import CorruptionError, FormatVersionError, OffsetError
from penstock.files import Files
from penstock.format.arrays import np
from penstock.format.columns import RecordColumns
from penstock.log.queue_evidence import Due, QueueGenerations, end_before, messages_within
from penstock.log.resync import Resync, read_batches
from penstock.log.scan import is_filler, read_mark
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.log_end import (
    LogEnd,
    check_corruption,
    find_end,
    foreign_start,
    has_changed,
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
    side_folder: SideFolder
    state: State
    clean: CleanClose | None
    times: Times
    is_new: bool
    is_ours: bool
    is_clean: bool
    was_abnormal: bool
    is_copy: bool = False
    # In a copy made while a process wrote or closed, the log may be older than what else was copied.
    was_copied: bool = False
    is_still_ours: bool = False
    # Its log may end within an atomic batch whose rest its master has not sent yet.
    is_follower: bool = False
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
    def lost_from(self) -> int | None:
        """The log offset from which copies of the log may have other bytes, or more; None after a clean close."""
        if self.is_clean and not self.was_copied:
            return None
        if self.is_still_ours:
            return self.end.offset
        known = self.state.flushed_offset if self.clean is None else self.clean.log_end
        return min(self.end.offset, known)

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
    found = read_metadata(files, root, is_new=is_new)
    if not is_new:
        log.load(repair=False)
        if found.is_still_ours and not found.was_copied:
            _check_length(log, found.state.flushed_offset)
        elif found.was_copied and found.clean is not None and not found.was_abnormal:
            # Another program may have cut what it does not understand; a copy of a closed store has all.
            _check_length(log, found.clean.log_end)
        found.ranges = known_ranges(files, root, log)
        log.coverage, log.quarantined = found.ranges.coverage, found.ranges.quarantined
        found.end = _find_end(log, found, names)
        knows_all = 0 < found.times.log_ms <= found.end.last_time_ms
        if not found.is_still_ours and not found.was_abnormal and not knows_all:
            _check_entries(log)
    return found


def torn_end(
    files: Files, root: Path, log: SegmentedLog, ranges: Ranges, *, after_repair: bool = False
) -> int | None:
    """Return the log offset at which the next open for writing will cut off a torn tail, or None if it will not.

    Changes nothing. The store must not be open for writing. `log` must have its coverage (from `ranges`) and witness.
    With `after_repair`, also for a store that was killed, and has no abort marker since a repair that left corruption.
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
    """Return the state with the end that the next open for writing will find; None if it scans nothing, or refuses."""
    try:
        found = read_metadata(files, root, is_new=False)
        is_scanned = found.was_abnormal or (after_repair and found.clean is None)
        if not is_scanned or not log.segments:
            return None
        found.ranges = ranges
        found.end = _find_end(log, found, found.state.dispatched)
    except (CorruptionError, FormatVersionError, OffsetError):
        return None
    return found


def read_metadata(files: Files, root: Path, *, is_new: bool) -> OpenState:
    """Return the state recorded in progress file, clean-close file, abort marker and checkpoint."""
    progress = Progress(files, root)
    state = progress.read()
    side_folder = SideFolder(files, root)
    clean = side_folder.read_clean()
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
        progress=progress, side_folder=side_folder, state=state, clean=clean, times=times, is_new=is_new,
        is_ours=is_ours and (is_clean or (was_abnormal and not is_copied)), is_clean=is_clean,
        was_abnormal=was_abnormal, is_copy=is_copied and (was_abnormal or clean is None),
        was_copied=is_copied, is_still_ours=is_ours, is_follower=is_follower(files, root),
        summaries=summaries_for(files, root, clean.digest) if is_clean and clean is not None else {},
    )  # fmt: skip


def _check_length(log: SegmentedLog, durable: int) -> None:
    """Raise if the log's files end before the durable offset, which means that a segment is missing or empty."""
    end = log.next_free_base()
    if durable > end:
        path = log.path_of(end)
        raise CorruptionError(
            path, 0, f"records up to log offset {durable}, which were durable", "no segment",
            "the store is not opened for writing and nothing was changed; restore the file from a copy; "
            "`penstock repair PATH --apply` gives those records up",
        )  # fmt: skip


def _check_entries(log: SegmentedLog) -> None:
    """Raise if a queue has an entry after the last segment file, although the last writer has ended its work.

    A log in two paths (`storePathCommitLog`), or a volume that is not mounted: the entries would be cut off, and their
    log offsets used again. Not where the checkpoint knows of no later message than the last one: brokers do not erase
    entries that they have cut off.
    """
    end = log.next_free_base()
    named = messages_within(log, end, 1 << 63)
    if named:
        raise CorruptionError(
            log.path_of(end), 0, f"messages that have queue entries{named}", "no segment",
            "the store is not opened for writing and nothing was changed; restore the segment files, or mount or copy "
            "the folder that has them; `penstock repair PATH --apply` gives those messages up",
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
        was_killed=found.is_ours or found.was_abnormal,
        generations=None if is_proven else _count_queues(log, found, start, names),
    )  # fmt: skip
    flushed = found.state.flushed_offset
    if has_changed(log, end.offset, flushed) if found.was_copied else found.is_still_ours:
        # Also if a file was changed since a clean close: no program has opened the store meanwhile.
        durable = flushed
    check_corruption(
        log, end, was_abnormal=found.was_abnormal, is_ours=found.is_ours,
        is_still_ours=found.is_still_ours, durable=durable,
    )  # fmt: skip
    if found.is_follower:
        # The rest of the batch comes from its master.
        return end
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
    # A plugin may report any number as progress. Or the record there is lost: the scan must not begin after it.
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


def hide_part_of_batch(
    context: Context, log: SegmentedLog, dispatchers: Sequence[Dispatcher]
) -> None:
    """Set what `log` hides, in a store that is opened read-only; nothing if a process has it open for writing."""
    files, root = context.files, context.root
    lock = root / "lock"
    if files.is_locked(lock) or not files.exists(root / "abort"):
        return
    sequence = _sequence(files, root)
    tail = doubtful_tail(files, root, log, known_ranges(files, root, log))
    if tail is None:
        return
    start, end = tail
    index = next(each for each in dispatchers if isinstance(each, QueueIndex))
    queues = _Queues(index, context.removed_before)
    begin = _first_in_part(log, start, end.offset, queues)
    if begin is None and end.dirty_bytes:
        # Valid records after a torn one may be of its batch.
        begin = end.offset
    if begin is None:
        return

    def still() -> int | None:
        if files.is_locked(lock) or _sequence(files, root) != sequence:
            log.hidden_from = None
            return None
        return begin

    log.hidden_from = still


class _Queues:
    """Which records the queues have. Not thread-safe."""

    def __init__(self, index: QueueReader, removed_before: Callable[[str], int]) -> None:
        self._index = index
        self._removed_before = removed_before

    def have(self, records: RecordColumns) -> set[bool]:
        """Return whether some of these records have a queue entry, and whether some lack it; not of removed topics."""
        names, numbers = records.topics
        columns = (numbers, records.queues, records.queue_offsets, records.log_offsets)
        found = set[bool]()
        for name, queue, ordinal, at in zip(*(each.tolist() for each in columns), strict=True):
            topic = names[name].decode(errors="surrogateescape")
            if at >= self._removed_before(topic):
                place = self._index.place(topic, queue, ordinal)
                found.add(place is not None and place[0] == at)
        return found


def _first_in_part(log: SegmentedLog, start: int, stop: int, queues: _Queues) -> int | None:
    """Return where the first batch in [start, stop) begins of which the queues have a part; None if there is none."""
    begin, has = 0, set[bool]()
    for batch in read_batches(log, start, stop, check_crc=True):
        columns = batch.columns
        marked = np.flatnonzero(columns.prepared_offsets < 0)
        for row, number in zip(
            marked.tolist(), columns.prepared_offsets[marked].tolist(), strict=True
        ):
            mark = read_mark(number)
            if mark is None:
                continue
            if mark.is_first:
                begin, has = int(columns.log_offsets[row]), set()
            has |= queues.have(columns.rows(slice(row, row + 1)))
            if len(has) > 1:
                return begin
    return None


def _sequence(files: Files, root: Path) -> int:
    """Return a number that changes with each write of the progress file."""
    progress = Progress(files, root)
    try:
        progress.read()
    except FormatVersionError:
        return -1
    return progress.sequence
