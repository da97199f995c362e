"""Says what is wrong in a store, and where: log, queues, index, digests and marks. Changes nothing.

Damage in the log costs no record behind it (see `salvage`). Segments are independent of each other
until the end, so they can be checked in several processes (`parallel`); findings come in log order all
the same. On a store that is being written, only what its queues have is compared with them; of a closed
one they must have everything, and nothing else.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import attrs

from penstock.contracts import Dispatcher, QueueIndex
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.findings import Checker, Finding, damaged_blocks
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import is_unfinished_copy, penstock_wrote_last
from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.errors import FormatVersionError, OffsetError
from penstock.files import Files
from penstock.integrity.copy_findings import CopyFindings
from penstock.integrity.metadata_checks import check_digest_files, check_marks
from penstock.integrity.segment_digests import Digests, check_digest
from penstock.log.queue_continuity import Note
from penstock.log.salvage import Corrupt, End, Valid, reject_by_counts, walk_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import Rejected, SegmentedLog
from penstock.recovery.inspection import torn_end

NO_LIMIT = 1 << 62


@attrs.define
class Tally:
    """What a verification has seen so far; `log_end` is the offset behind the last sound record."""

    bytes_total: int = 0
    bytes_seen: int = 0
    records: int = 0
    findings: int = 0
    last_time_ms: int = 0
    log_end: int = 0

    def add(self, other: "Tally") -> None:
        """Count what another one has seen of other segments."""
        self.bytes_seen += other.bytes_seen
        self.records += other.records
        self.last_time_ms = max(self.last_time_ms, other.last_time_ms)
        self.log_end = max(self.log_end, other.log_end)


Told = Callable[[Tally], None]


@attrs.frozen(kw_only=True)
class Scope:
    """How far things must agree.

    Attributes:
        end: queues and index must have every sound record below it.
        extent: below it they must have nothing else; what lies behind is a live writer's.
        claimed: the log must have records up to there: queues or a writer say so.
        is_ours: Penstock wrote last, so its marks and digests are to be believed.
        is_live: somebody has the store open for writing.
        deep: digests and marks are checked too.
        rejected: records that the counts of their queues show to be corrupt, by log offset.
        torn_at: where a torn tail begins that the next opening for writing cuts off; None for none.
        is_copy: it was copied while it was written, and not opened for writing since.
        sequence: the number of the mark that the last writer had written by then.
    """

    end: int
    extent: int
    claimed: int
    is_ours: bool
    is_live: bool
    deep: bool = True
    rejected: tuple[tuple[int, Rejected], ...] = ()
    torn_at: int | None = None
    is_copy: bool = False
    sequence: int = 0


# Of one segment: findings, counts, and what each checker has seen.
Result = tuple[list[Finding], Tally, list[object]]


class Spread(Protocol):
    """Checks segments in several processes; returns the result of each, in order."""

    def __call__(self, bases: list[int], scope: Scope, jobs: int) -> Iterator[Result]:
        """Start the processes; they end with the iterator."""


class Verification:
    """Verifies one store, again and again if asked.

    Args:
        files: the file system.
        root: the store's folder.
        log: the commit log.
        dispatchers: whose files are compared with it.
        end: the log's end as the writer of this process knows it; None where it is only read.
        spread: checks segments in other processes, if that can be done.
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

    def run(self, told: Told, *, deep: bool, jobs: int) -> Iterator[Finding]:
        """Return what is wrong: derived files by themselves, then in log order, then marks."""
        (scope, notes), tally, checkers = self.plan(deep=deep), self._tally(), self.checkers()
        started = _started(checkers, scope)
        walked = self._walked(checkers, scope, tally, told, jobs)
        yield from self._whole(checkers, scope, tally, told, (started, walked, notes))

    def plan(self, *, deep: bool) -> tuple[Scope, list[Finding]]:
        """Return how far things must agree, and the notes on the log as a whole.

        Reads the log: which records the counts of their queues show to be corrupt, and whether its tail is torn,
        no segment tells by itself.
        """
        scope = self.scope(deep=deep)
        if not self._log.is_mapped:
            # Another process may have begun segments since they were listed: what the scope reaches lies in them.
            self._log.refresh()
        ranges = known_ranges(self._files, self._root, self._log)
        if not scope.is_live:
            self._log.coverage = ranges.coverage
            self._log.torn_at = torn_end(self._files, self._root, self._log, ranges)
        notes = self._notes(ranges)
        rejected = tuple(sorted(self._log.rejected.items()))
        return attrs.evolve(scope, rejected=rejected, torn_at=self._log.torn_at), notes

    def _notes(self, ranges: Ranges) -> list[Finding]:
        """Count the records of each queue, and let the log know which are corrupt; returns what else shows."""
        found = reject_by_counts(self._log, ranges.is_own, ranges.gaps)
        return [self._noted(note) for note in found]

    def _noted(self, note: Note) -> Finding:
        segment = self._log.find(note.log_offset)
        path = self._log.folder if segment is None else segment.path
        position = -1 if segment is None else note.log_offset - segment.base_offset
        return Finding("log", path, position, note.log_offset, note.text, is_note=True)

    def gather(
        self,
        told: Told,
        plan: tuple[Scope, list[Finding]],
        started: Iterable[Finding],
        results: Iterable[Result],
    ) -> Iterator[Finding]:
        """Return what `run` does, of segments that were checked elsewhere.

        Args:
            told: called as it goes, with the counts so far.
            plan: the one whose scope they were checked with.
            started: what the derived files showed by themselves.
            results: of each segment, oldest first.
        """
        tally, checkers = self._tally(), self.checkers()
        scope, notes = plan
        walked = self._taken(checkers, results, tally, told)
        yield from self._whole(checkers, scope, tally, told, (started, walked, notes))

    def checkers(self) -> list[Checker]:
        """Return what compares the derived files with the log, one for each that can be."""
        return [c for c in (d.checker() for d in self._dispatchers) if c is not None]

    def _tally(self) -> Tally:
        return Tally(bytes_total=sum(segment.capacity for segment in self._log.segments))

    def scope(self, *, deep: bool) -> Scope:
        """Say how far things must agree, from who wrote last and whether somebody does now."""
        if self._end is not None:
            end = self._end()
            return Scope(end=end, extent=end, claimed=end, is_ours=True, is_live=True, deep=deep)
        progress, state = Progress(self._files, self._root), State()
        with contextlib.suppress(FormatVersionError):
            state = progress.read()
        is_ours = penstock_wrote_last(self._files, self._root, state.lock_mtime_ns)
        queued = next(d for d in self._dispatchers if isinstance(d, QueueIndex)).end_log_offset()
        published = state.visible_offset if is_ours else queued
        is_live = self._files.is_locked(self._root / "lock")
        claimed = min(queued, published)
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
        # After a crash the tail of the log may lie before them, or behind; the next open sees to it.
        end = published if was_abnormal else NO_LIMIT
        is_copied = is_unfinished_copy(self._files, self._root, state)
        return attrs.evolve(
            scope, end=end, extent=end, is_copy=is_copied, sequence=progress.sequence
        )

    def _whole(
        self,
        checkers: list[Checker],
        scope: Scope,
        tally: Tally,
        told: Told,
        parts: tuple[Iterable[Finding], ...],
    ) -> Iterator[Finding]:
        found: Iterator[Finding] = itertools.chain(*parts, self._ended(checkers, scope, tally))
        if scope.is_copy:
            found = CopyFindings(self._root).sift(found, lambda: tally.log_end)
        for finding in found:
            if not scope.is_live and finding.log_offset >= scope.claimed and self._has_moved(scope):
                # A writer has opened the store since, and what it appends is not finished.
                continue
            tally.findings += not finding.is_note
            yield finding.advised()
        told(tally)

    def _has_moved(self, scope: Scope) -> bool:
        """Say whether somebody has opened the store for writing since the scope was taken."""
        if self._files.is_locked(self._root / "lock"):
            return True
        progress = Progress(self._files, self._root)
        with contextlib.suppress(FormatVersionError):
            progress.read()
        return progress.sequence != scope.sequence

    def _ended(self, checkers: list[Checker], scope: Scope, tally: Tally) -> Iterator[Finding]:
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
            # Read as a whole: they tell of one moment, unless a writer has come meanwhile.
            wrong = list(marks)
            if wrong and not self._has_moved(scope):
                yield from wrong

    def _walked(
        self, checkers: list[Checker], scope: Scope, tally: Tally, told: Told, jobs: int
    ) -> Iterator[Finding]:
        segments = self._log.segments
        can_split = all(checker.is_splittable for checker in checkers)
        if jobs > 1 and can_split and self._spread is not None and len(segments) > 1:
            bases = [segment.base_offset for segment in segments]
            yield from self._taken(checkers, self._spread(bases, scope, jobs), tally, told)
            return
        for segment in segments:
            yield from self.segment(segment, checkers, scope, tally, told)

    @staticmethod
    def _taken(
        checkers: list[Checker], results: Iterable[Result], tally: Tally, told: Told
    ) -> Iterator[Finding]:
        for findings, part, seen in results:
            tally.add(part)
            for checker, one in zip(checkers, seen, strict=True):
                checker.take(one)
            yield from findings
            told(tally)

    def segment(
        self, segment: Segment, checkers: list[Checker], scope: Scope, tally: Tally, told: Told
    ) -> Iterator[Finding]:
        """Check one segment, and the seam to the one before it."""
        before = self._log.segments
        at = next((n for n, s in enumerate(before) if s is segment), 0)
        if at and before[at - 1].end_offset != segment.base_offset:
            expected = before[at - 1].end_offset
            missing = segment.base_offset - expected
            for checker in checkers:
                checker.damage(expected, segment.base_offset)
            text = f"{missing} bytes of log are missing before this segment"
            yield Finding("log", segment.path, 0, expected, text)
        seen = tally.bytes_seen
        try:
            yield from self._walk(segment, checkers, scope, tally, told)
            if scope.deep:
                digests = Digests(self._files, self._root)
                for start, stop in check_digest(
                    self._files, digests, segment, is_ours=scope.is_ours
                ):
                    yield damaged_blocks(segment.path, segment.base_offset, start, stop)
        except OffsetError:
            # Retention took it while it was looked at.
            if segment.lease.is_available and not scope.is_live:
                raise
        except OSError as error:
            # As above, where another process's retention took it.
            if not (scope.is_live and isinstance(error, FileNotFoundError)):
                text = f"the segment cannot be read: {error}"
                yield Finding("log", segment.path, -1, segment.base_offset, text)
        tally.bytes_seen = seen + segment.capacity
        told(tally)

    def _walk(
        self, segment: Segment, checkers: list[Checker], scope: Scope, tally: Tally, told: Told
    ) -> Iterator[Finding]:
        seen = tally.bytes_seen
        for piece in walk_segment(self._log, segment):
            if isinstance(piece, Valid):
                tally.records += len(piece.columns)
                if len(piece.columns):
                    newest = int(piece.columns.store_times_ms.max())
                    tally.last_time_ms = max(tally.last_time_ms, newest)
                    tally.log_end = max(tally.log_end, piece.stop)
                yield from _compare(piece, checkers, scope.end)
                tally.bytes_seen = seen + piece.stop - segment.base_offset
                told(tally)
            elif scope.is_live and piece.start >= scope.claimed:
                # The writer appends here, also between two looks at the same bytes.
                continue
            elif isinstance(piece, Corrupt):
                # Not a torn tail, also where it is the last record.
                tally.log_end = max(tally.log_end, piece.stop)
                for checker in checkers:
                    checker.damage(piece.start, piece.stop)
                text = piece.reason and f"the record is corrupt: {piece.reason}"
                yield Finding(
                    "log", segment.path, piece.start - segment.base_offset, piece.start,
                    text or f"{piece.stop - piece.start} bytes are not a valid record; the next valid one is "
                    f"at {piece.stop}",
                )  # fmt: skip
            elif not piece.is_blank:
                yield from _end_of_records(self._log, segment, piece, checkers, scope.claimed)
            else:
                tally.log_end = max(tally.log_end, segment.end_offset)


def _started(checkers: list[Checker], scope: Scope) -> Iterator[Finding]:
    """Return what the derived files show by themselves; of a living store, what they still show at a second look."""
    for checker in checkers:
        found = list(checker.start())
        if found and scope.is_live:
            again = set(checker.start())
            found = [finding for finding in found if finding in again]
        yield from found


def _compare(piece: Valid, checkers: list[Checker], end: int) -> Iterator[Finding]:
    good = piece.columns
    keep = int((good.log_offsets < end).sum())
    if keep:
        batch = DispatchBatch(good.head(keep), piece.start, min(piece.stop, end))
        for checker in checkers:
            yield from checker.batch(batch)


def _end_of_records(
    log: SegmentedLog, segment: Segment, piece: End, checkers: list[Checker], claimed: int
) -> Iterator[Finding]:
    """Say what is wrong where a segment's records end without a blank record."""
    stop = piece.start
    position = stop - segment.base_offset
    is_torn = log.torn_at is not None and stop >= log.torn_at
    if (is_torn or is_last(log, stop)) and stop >= claimed:
        head = bytes(log.read(stop, min(8, segment.end_offset - stop)))
        if stop == log.torn_at or (not is_torn and head.strip(b"\0")):
            yield Finding(
                "log", segment.path, position, stop,
                "a torn tail: bytes behind the last record that are none",
                "nothing to do by hand: opening for writing cuts it, and so does `penstock repair`",
            )  # fmt: skip
        return
    for checker in checkers:
        checker.damage(stop, segment.end_offset)
    yield Finding(
        "log", segment.path, position, stop,
        "the records end here, though queues or later segments have more",
    )  # fmt: skip


def is_last(log: SegmentedLog, stop: int) -> bool:
    """Say whether no later segment has anything in its first bytes."""
    return not any(
        bytes(log.read(s.base_offset, 8)).strip(b"\0") for s in log.segments if s.base_offset > stop
    )
