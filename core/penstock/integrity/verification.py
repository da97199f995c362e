"""Verifies a store: finds inconsistencies in log, queues, index, digests and metadata files. Changes nothing.

Records after corruption in the log are checked, too (see `resync`). The checks of segments are independent of each
other, so they can run in multiple processes, which are spawned, never forked, since the caller may have threads, locks
and mapped files; the findings are in log order in any case. While a store is being written, only the records that its
queues contain are compared with them. The queues of a closed store must contain all records, and nothing else.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from penstock.contracts import Dispatcher, QueueIndex
from penstock.contracts.dispatcher import (
    CUT_END,
    ONLY_CUT,
    Checker,
    DispatchBatch,
    Finding,
    damaged_blocks,
)
from penstock.dispatch.rebuild import Recipe, StoreView
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import is_copy, is_unfinished_copy, penstock_wrote_last
from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.errors import FormatVersionError, OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.integrity.checks import BatchCheck, CopyFindings, check_digest_files, check_marks
from penstock.integrity.segment_digests import Digests, check_digest
from penstock.log.queue_evidence import Note, messages_within
from penstock.log.resync import Corrupt, End, Valid, needs_counts, reject_by_counts, walk_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import Rejected, SegmentedLog
from penstock.recovery.inspection import torn_end
from penstock.recovery.log_end import has_changed

if TYPE_CHECKING:
    from concurrent.futures import Future


logger = get_logger(__name__)

NO_LIMIT = 1 << 62


@attrs.define
class Tally:
    """The counts of a verification so far; `log_end` is the offset after the last valid record.

    `bytes_total` counts the used bytes of a segment once for each time that they are read.
    """

    bytes_total: int = 0
    bytes_seen: int = 0
    records: int = 0
    findings: int = 0
    last_time_ms: int = 0
    log_end: int = 0

    def add(self, other: "Tally") -> None:
        """Add the counts of other segments."""
        self.bytes_seen += other.bytes_seen
        self.records += other.records
        self.last_time_ms = max(self.last_time_ms, other.last_time_ms)
        self.log_end = max(self.log_end, other.log_end)


OnProgress = Callable[[Tally], None]


def used_bytes(segment: Segment) -> int:
    """Return how many bytes of a segment were ever written: the rest of its file is not read. 0 if it was deleted."""
    with contextlib.suppress(OSError, OffsetError):
        return min(segment.data_end(), segment.capacity)
    return 0


@attrs.frozen(kw_only=True)
class Scope:
    """The log ranges in which log, queues and index must agree, and the state of the store.

    Attributes:
        end: queues and index must have every valid record below this log offset.
        extent: below it they must have nothing else; entries after it belong to an active writer.
        claimed: the log must have records up to this log offset, according to the queues or a writer.
        is_ours: Penstock wrote last, so its metadata files and digests are trusted.
        is_live: a process has the store open for writing.
        flushed: the log was on disk up to this log offset; 0 if that is not known, or a writer is active.
        noted: in a copy, the log offset up to which the log was on disk, noted perhaps later than the log was copied.
        deep: digests and metadata files are checked, too.
        rejected: records that are corrupt according to the queue offsets around them, by log offset.
        torn_at: the log offset of a torn tail, which the next open for writing cuts off; None for none.
        seen: after a kill, the log offset up to which readers see records; None where that needs no word.
        is_copy: the store was copied while it was written, and not opened for writing since.
        sequence: the sequence number of the progress file when the scope was determined.
    """

    end: int
    extent: int
    claimed: int
    is_ours: bool
    is_live: bool
    flushed: int = 0
    noted: int = 0
    deep: bool = True
    rejected: tuple[tuple[int, Rejected], ...] = ()
    torn_at: int | None = None
    seen: int | None = None
    is_copy: bool = False
    sequence: int = 0


_GONE = (
    "restore them from a copy; `penstock repair PATH --apply` gives those records up, and the store then opens for "
    "writing"
)
# The result for one segment: findings, counts, and the state of each checker.
Result = tuple[list[Finding], Tally, list[object]]


# Checks segments in so many processes, which end with the iterator; yields the result of each, in order.
Spread = Callable[[list[int], Scope, int], Iterator[Result]]


class Verification:
    """Verifies one store; each call of `run` verifies it again. Not thread-safe.

    Args:
        files: the file system.
        root: the store's folder.
        log: the commit log.
        dispatchers: the dispatchers whose files are compared with the log; without a queue index, or without any, the
            log is checked against what its last writer published, or by itself.
        end: returns the log's end if this process writes the store; None if it only reads it.
        spread: checks segments in other processes; None if that is not possible.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        log: SegmentedLog,
        dispatchers: list[Dispatcher],
        *,
        end: Callable[[], int] | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._files = files
        self._root = root
        self._log = log
        self._dispatchers = dispatchers
        self._end = end
        self._spread = spread

    def run(self, on_progress: OnProgress, *, deep: bool, jobs: int) -> Iterator[Finding]:
        """Yield findings: derived files, then the log in order, then metadata files."""
        tally, checkers = self._tally(), self.checkers()
        scope, notes = self.plan(deep=deep, on_progress=on_progress, tally=tally)
        started = _start_findings(checkers, scope)
        scanned = self._check_segments(checkers, scope, tally, on_progress, jobs)
        yield from self._all_findings(
            checkers, scope, tally, on_progress, (started, scanned, notes)
        )

    def plan(
        self, *, deep: bool, on_progress: OnProgress = lambda _: None, tally: Tally | None = None
    ) -> tuple[Scope, list[Finding]]:
        """Return the scope, and the notes on the log as a whole.

        Reads the log, since a single segment does not show which records are corrupt according to the queue offsets
        around them, nor whether the log's tail is torn.
        """
        scope = self.scope(deep=deep)
        if not self._log.is_mapped:
            # Another process may have created segments since they were listed, and the scope may include them.
            self._log.refresh()
        ranges = known_ranges(self._files, self._root, self._log)
        self._log.quarantined = ranges.quarantined
        if not scope.is_live:
            self._log.coverage = ranges.coverage
            self._log.torn_at = torn_end(self._files, self._root, self._log, ranges)
        notes = self._reject_by_counts(ranges, tally or Tally(), on_progress)
        notes += () if scope.is_live else self._short_files()
        rejected = tuple(sorted(self._log.rejected.items()))
        return attrs.evolve(scope, rejected=rejected, torn_at=self._log.torn_at), notes

    def _reject_by_counts(
        self, ranges: Ranges, tally: Tally, on_progress: OnProgress
    ) -> list[Finding]:
        """Count the records of each queue, and set the corrupt ones in the log; returns findings that are notes."""
        if needs_counts(self._log):
            tally.bytes_total += sum(map(used_bytes, self._log.segments))

        def on_read(segment: Segment) -> None:
            tally.bytes_seen += used_bytes(segment)
            on_progress(tally)

        try:
            found = reject_by_counts(self._log, ranges.is_own, ranges.gaps, on_read)
        except OSError:
            # The check of the segment that cannot be read reports it; without its records, counts mean nothing.
            return []
        return [self._note_finding(note) for note in found]

    def _short_files(self) -> Iterator[Finding]:
        """Yield the segments whose files have another size; a crash may leave an empty one, which is no finding."""
        for entry in self._files.entries(self._log.folder):
            segment = next((s for s in self._log.segments if s.path == entry.path), None)
            if segment is not None and entry.size not in (0, segment.capacity):
                is_short = entry.size < segment.capacity
                verb = "extends it with zeros" if is_short else "shortens it, and saves the rest"
                yield Finding(
                    "log", entry.path, entry.size, segment.base_offset + entry.size,
                    f"the file has {entry.size} bytes instead of {segment.capacity}; so the store is not opened for "
                    "writing",
                    f"`penstock repair PATH --apply` {verb}; or restore the segment from a copy",
                )  # fmt: skip

    def _note_finding(self, note: Note) -> Finding:
        segment = self._log.find(note.log_offset)
        path = self._log.folder if segment is None else segment.path
        position = -1 if segment is None else note.log_offset - segment.base_offset
        return Finding("log", path, position, note.log_offset, note.text, is_note=True)

    def gather(
        self,
        on_progress: OnProgress,
        plan: tuple[Scope, list[Finding]],
        started: Iterable[Finding],
        results: Iterable[Result],
    ) -> Iterator[Finding]:
        """Yield the findings that `run` would, from the results of segments that were checked elsewhere.

        Args:
            on_progress: called during the work with the counts so far.
            plan: the plan with whose scope they were checked.
            started: the findings in the derived files alone.
            results: the result of each segment, oldest first.
        """
        tally, checkers = self._tally(), self.checkers()
        scope, notes = plan
        scanned = self._merge_results(checkers, results, tally, on_progress)
        yield from self._all_findings(
            checkers, scope, tally, on_progress, (started, scanned, notes)
        )

    def checkers(self) -> list[Checker]:
        """Return the checkers of all dispatchers that have one; they compare derived files with the log."""
        return [c for c in (d.checker() for d in self._dispatchers) if c is not None]

    def _tally(self) -> Tally:
        return Tally(bytes_total=sum(map(used_bytes, self._log.segments)))

    def scope(self, *, deep: bool) -> Scope:
        """Determine the scope from the last writer and whether a writer is active."""
        if self._end is not None:
            end = self._end()
            return Scope(end=end, extent=end, claimed=end, is_ours=True, is_live=True, deep=deep)
        progress, state = Progress(self._files, self._root), State()
        with contextlib.suppress(FormatVersionError):
            state = progress.read()
        is_ours = penstock_wrote_last(self._files, self._root, state.lock_mtime_ns)
        queued = self._queued()
        published = state.visible_offset if is_ours else queued or 0
        is_live = self._files.is_locked(self._root / "lock")
        claimed = published if queued is None else min(queued, published)
        scope = Scope(
            end=claimed,
            extent=claimed,
            claimed=claimed,
            is_ours=is_ours,
            is_live=is_live,
            deep=deep,
        )
        if is_live:
            return scope
        was_abnormal = self._files.exists(self._root / "abort")
        # After a crash the queues may lag the log or be ahead of it; the next open for writing repairs that.
        end = published if was_abnormal else NO_LIMIT
        is_copied = is_unfinished_copy(self._files, self._root, state)
        return attrs.evolve(
            scope, end=end, extent=end, is_copy=is_copied, sequence=progress.sequence,
            seen=published if was_abnormal and is_ours and not is_copied else None,
            flushed=state.flushed_offset if is_ours and not is_copied else 0,
            noted=state.flushed_offset if is_copy(self._files, self._root, state) else 0,
        )  # fmt: skip

    def _queued(self) -> int | None:
        """Return the log offset up to which the queues have entries; None if the queues are not verified."""
        index = next((each for each in self._dispatchers if isinstance(each, QueueIndex)), None)
        return None if index is None else index.end_log_offset()

    def _all_findings(
        self,
        checkers: list[Checker],
        scope: Scope,
        tally: Tally,
        on_progress: OnProgress,
        parts: tuple[Iterable[Finding], ...],
    ) -> Iterator[Finding]:
        """Yield all findings with advice, without those that a new writer explains."""
        # Of a copy that has no record yet.
        tally.log_end = max(tally.log_end, self._log.min_offset)
        found: Iterator[Finding] = itertools.chain(
            *parts, self._final_findings(checkers, scope, tally)
        )
        if scope.is_copy:
            found = CopyFindings(self._root).sift(found, lambda: tally.log_end)
        for finding in found:
            if not scope.is_live and finding.log_offset >= scope.claimed and self._has_moved(scope):
                # A writer has opened the store since, and may not have finished its appends.
                continue
            if self._is_deleted(finding.log_offset) and (scope.is_live or self._has_moved(scope)):
                continue
            tally.findings += not finding.is_note
            yield finding.advised()
        on_progress(tally)

    def _is_deleted(self, log_offset: int) -> bool:
        """Return whether retention has deleted the segment of a log offset, and so what queues and index had of it."""
        names = [each.name for each in self._files.entries(self._log.folder) if each.is_file]
        bases = [int(name) for name in names if name.isdecimal()]
        return 0 <= log_offset < min(bases, default=0)

    def _has_moved(self, scope: Scope) -> bool:
        """Return whether a process has opened the store for writing since the scope was determined."""
        if self._files.is_locked(self._root / "lock"):
            return True
        progress = Progress(self._files, self._root)
        with contextlib.suppress(FormatVersionError):
            progress.read()
        return progress.sequence != scope.sequence

    def _final_findings(
        self, checkers: list[Checker], scope: Scope, tally: Tally
    ) -> Iterator[Finding]:
        """Yield the findings of the checkers after the last segment, then those in digest and metadata files."""
        if scope.seen is not None and tally.log_end > scope.seen:
            text = (
                f"readers may not see the log from offset {scope.seen} to its end at {tally.log_end}: the store was "
                "not closed cleanly; the next opening for writing brings the rest into queues and index"
            )
            yield Finding("log", self._log.folder, -1, scope.seen, text, is_note=True)
        if scope.flushed > tally.log_end and self._log.find(scope.flushed - 1) is None:
            text = (
                f"records up to log offset {scope.flushed} were on disk, and the log ends at {tally.log_end}: its last "
                "segments are gone"
            )
            yield Finding("log", self._log.folder, -1, tally.log_end, text, _GONE)
        for checker in checkers:
            yield from checker.finish(scope.extent)
        if scope.deep:
            is_live = scope.is_live or self._has_moved(scope)
            yield from check_digest_files(self._files, self._root, self._log, is_live=is_live)
            if is_live:
                return
            marks = check_marks(
                self._files,
                self._root,
                tally.log_end,
                tally.last_time_ms,
                is_ours=scope.is_ours,
                dispatchers=self._dispatchers,
            )
            # All are read before any is reported: they are consistent unless a writer has opened the store meanwhile.
            wrong = list(marks)
            if wrong and not self._has_moved(scope):
                yield from wrong

    def _check_segments(
        self,
        checkers: list[Checker],
        scope: Scope,
        tally: Tally,
        on_progress: OnProgress,
        jobs: int,
    ) -> Iterator[Finding]:
        segments = self._log.segments
        can_split = all(checker.is_splittable for checker in checkers)
        if jobs > 1 and can_split and self._spread is not None and len(segments) > 1:
            bases = [segment.base_offset for segment in segments]
            results = self._spread(bases, scope, jobs)
            yield from self._merge_results(checkers, results, tally, on_progress)
            return
        for segment in segments:
            yield from self.segment(segment, checkers, scope, tally, on_progress)

    @staticmethod
    def _merge_results(
        checkers: list[Checker], results: Iterable[Result], tally: Tally, on_progress: OnProgress
    ) -> Iterator[Finding]:
        for findings, part, seen in results:
            tally.add(part)
            for checker, one in zip(checkers, seen, strict=True):
                checker.take(one)
            yield from findings
            on_progress(tally)

    def segment(
        self,
        segment: Segment,
        checkers: list[Checker],
        scope: Scope,
        tally: Tally,
        on_progress: OnProgress,
    ) -> Iterator[Finding]:
        """Check one segment, and that no bytes are missing between it and the one before."""
        before = self._log.segments
        at = next((n for n, s in enumerate(before) if s is segment), 0)
        if at and before[at - 1].end_offset != segment.base_offset:
            expected = before[at - 1].end_offset
            missing = segment.base_offset - expected
            for checker in checkers:
                checker.damage(expected, segment.base_offset)
            text = f"{missing} bytes of log are missing before this segment"
            yield Finding("log", segment.path, 0, expected, text, ONLY_CUT)
        seen = tally.bytes_seen
        logger.debug("checking %s", segment.path)
        try:
            yield from self._scan(segment, checkers, scope, tally, on_progress)
            # A file that was cut short has no digest; the scan has reported its end.
            if scope.deep and self._files.version(segment.path)[2] >= segment.capacity:
                digests = Digests(self._files, self._root)
                for start, stop in check_digest(
                    self._files, digests, segment, is_ours=scope.is_ours
                ):
                    yield damaged_blocks(segment.path, segment.base_offset, start, stop)
        except OffsetError:
            # Retention deleted the segment during the check.
            if segment.lease.is_available and not scope.is_live:
                raise
        except OSError as error:
            # The retention of another process deleted the segment during the check.
            if not (scope.is_live and isinstance(error, FileNotFoundError)):
                text = f"the segment cannot be read: {error}"
                yield Finding("log", segment.path, -1, segment.base_offset, text)
        tally.bytes_seen = seen + used_bytes(segment)
        on_progress(tally)

    def _scan(
        self,
        segment: Segment,
        checkers: list[Checker],
        scope: Scope,
        tally: Tally,
        on_progress: OnProgress,
    ) -> Iterator[Finding]:
        """Yield the findings in the records of one segment, and update the tally."""
        seen, batches = tally.bytes_seen, BatchCheck(segment)
        for part in walk_segment(self._log, segment):
            if isinstance(part, Valid):
                yield from batches.add(part.columns)
                tally.records += len(part.columns)
                if len(part.columns):
                    newest = int(part.columns.store_times_ms.max())
                    tally.last_time_ms = max(tally.last_time_ms, newest)
                    tally.log_end = max(tally.log_end, part.stop)
                yield from _compare(part, checkers, scope.end)
                tally.bytes_seen = seen + part.stop - segment.base_offset
                on_progress(tally)
            elif scope.is_live and part.start >= scope.claimed:
                # The writer appends here, possibly between two reads of the same bytes.
                continue
            elif isinstance(part, Corrupt):
                yield from batches.finish()
                # Not a torn tail, even if it is the last record.
                tally.log_end = max(tally.log_end, part.stop)
                for checker in checkers:
                    checker.damage(part.start, part.stop)
                text = part.reason and f"the record is corrupt: {part.reason}"
                text = text or f"{part.stop - part.start} bytes are not a valid record"
                text += messages_within(self._log, part.start, part.stop)
                if not part.reason and part.stop < segment.end_offset:
                    text += f"; the next valid one is at {part.stop}"
                yield Finding(
                    "log", segment.path, part.start - segment.base_offset, part.start,
                    f"quarantined: {text}" if part.is_noted else text, is_note=part.is_noted,
                )  # fmt: skip
            elif not part.is_blank:
                yield from batches.finish()
                claimed = max(scope.claimed, scope.flushed)
                if scope.noted and has_changed(self._log, part.start, scope.noted):
                    # Not explained by copying.
                    claimed = tally.log_end = scope.noted
                yield from _end_of_records(self._log, segment, part, checkers, claimed)
            else:
                yield from batches.finish()
                tally.log_end = max(tally.log_end, segment.end_offset)


def _start_findings(checkers: list[Checker], scope: Scope) -> Iterator[Finding]:
    """Yield the findings in the derived files alone; for a live store, only those that a second check confirms."""
    for checker in checkers:
        found = list(checker.start())
        if found and scope.is_live:
            again = set(checker.start())
            found = [finding for finding in found if finding in again]
        yield from found


def _compare(part: Valid, checkers: list[Checker], end: int) -> Iterator[Finding]:
    good = part.columns
    keep = int((good.log_offsets < end).sum())
    if keep:
        batch = DispatchBatch(good.head(keep), part.start, min(part.stop, end))
        for checker in checkers:
            yield from checker.batch(batch)


def _end_of_records(
    log: SegmentedLog, segment: Segment, part: End, checkers: list[Checker], claimed: int
) -> Iterator[Finding]:
    """Yield the finding where a segment's records end without a blank record, if it is one."""
    stop = part.start
    position = stop - segment.base_offset
    is_torn = log.torn_at is not None and stop >= log.torn_at
    if (is_torn or is_last(log, stop)) and stop >= claimed:
        head = bytes(log.read(stop, min(8, segment.end_offset - stop)))
        if stop == log.torn_at or (not is_torn and head.strip(b"\0")):
            yield Finding(
                "log", segment.path, position, stop,
                "a torn tail: the bytes after the last record are not a record, or only a part of messages that are "
                "stored together",
                "no action is needed: opening for writing, or `penstock repair PATH --apply`, cuts it off",
            )  # fmt: skip
        return
    for checker in checkers:
        checker.damage(stop, segment.end_offset)
    yield Finding(
        "log", segment.path, position, stop,
        "the records end here, although queues, later segments or the progress file have more"
        + messages_within(log, stop, segment.end_offset),
        CUT_END if is_last(log, stop) else "",
    )  # fmt: skip


def is_last(log: SegmentedLog, stop: int) -> bool:
    """Return whether the first bytes of all later segments are zero."""
    for segment in log.segments:
        # One that was created ahead may be removed by an opening.
        with contextlib.suppress(OffsetError):
            start = segment.base_offset
            if start > stop and bytes(log.read(start, 8)).strip(b"\0"):
                return False
    return True


# The number of segments queued for each process.
_AHEAD = 2


class SegmentWorker:
    """Checks segments of a store, one by one, in one process. Not thread-safe."""

    def __init__(self, recipe: Recipe, scope: Scope) -> None:
        files = Files()
        view = StoreView.open(files, recipe)
        self._log, self._scope = view.log, scope
        self._log.rejected, self._log.torn_at = dict(scope.rejected), scope.torn_at
        self._verification = Verification(files, recipe.root, self._log, view.dispatchers)
        self._checkers = self._verification.checkers()

    def start(self) -> list[Finding]:
        """Return the findings in the derived files alone; only one process calls this."""
        return [finding for checker in self._checkers for finding in checker.start()]

    def check(self, base: int) -> Result:
        """Check one segment; a segment that was deleted has no findings."""
        tally, segment = Tally(), self._log.find(base)
        findings = []
        if segment is not None:
            findings = list(
                self._verification.segment(
                    segment, self._checkers, self._scope, tally, lambda _: None
                )
            )
        return findings, tally, [checker.seen() for checker in self._checkers]


_process: SegmentWorker | None = None


def _open_worker(recipe: Recipe, scope: Scope) -> None:
    global _process  # noqa: PLW0603 - one worker per process, created before its first segment
    _process = SegmentWorker(recipe, scope)


def _check(base: int) -> Result:
    assert _process is not None
    return _process.check(base)


def spread_over(files: Files, recipe: Recipe) -> Spread | None:
    """Return a function that checks segments in other processes; None if they cannot open the same store."""
    names = [cls.__qualname__ for cls, _ in recipe.dispatchers]
    if type(files) is not Files or any("<locals>" in name for name in names):
        return None

    def spread(bases: list[int], scope: Scope, jobs: int) -> Iterator[Result]:
        import multiprocessing  # noqa: PLC0415 - slow to import, and every store that is opened imports this module
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - as above

        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(jobs, len(bases)), context, _open_worker, (recipe, scope))
        waiting: deque[Future[Result]] = deque()
        try:
            for base in bases:
                if len(waiting) >= jobs * _AHEAD:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_check, base))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    return spread
