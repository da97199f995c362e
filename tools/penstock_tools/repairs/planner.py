"""Plans a repair: inspects a store and returns the steps. Changes nothing.

The steps, in order; each is planned against the log as the steps before will leave it:

    1. A block of a sealed segment that differs from its digest by one flipped bit: the bit is restored.
    2. Filler whose head a power cut tore gets it back, in a segment that has no digest yet.
       Other corruption is left unrepaired, unless a quarantine or a cut was requested. A quarantine notes each corrupt
       range that a valid record follows; the rest of the plan is that of the next opening, whose scan goes on there.
       With a cut, corruption that extends to the end of its segment, with a segment after it, is covered by a blank
       record, which is valid there. At any other corruption the log is cut, since records cannot be moved.
    3. A torn tail is cut off. A file that is too short is extended to its full length.
    4. The files of a dispatcher that disagree with that log are rebuilt.
    5. Metadata files that are wrong, or that a step above makes wrong, are rewritten.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import attrs
import numpy as np

from penstock.contracts import Dispatcher
from penstock.contracts.dispatcher import (
    CUT_END,
    ONLY_CUT,
    WITHOUT_REPAIR,
    Checker,
    DispatchBatch,
    Finding,
    damaged_blocks,
)
from penstock.durability.progress import Progress
from penstock.durability.side_folder import is_copy, is_unfinished_copy, penstock_wrote_last
from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.errors import CorruptionError, OffsetError, StorageError, StrayFileError
from penstock.files import Files
from penstock.format.columns import Buffer
from penstock.format.hashes import crc32c
from penstock.format.names import NAME_DIGITS, topic_of
from penstock.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from penstock.integrity.checks import check_digest_files, check_marks
from penstock.integrity.segment_digests import Digests, Sums, sum_up, sums_of
from penstock.integrity.verification import (
    NO_LIMIT,
    OnProgress,
    Scope,
    Tally,
    Verification,
    used_bytes,
)
from penstock.log.queue_evidence import messages_within, use_entries
from penstock.log.resync import Corrupt, Resync, Valid, needs_counts, reject_by_counts, walk_segment
from penstock.log.scan import is_followed, is_torn_filler, note_of
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import NOTHING, torn_end
from penstock.recovery.log_end import has_changed, is_torn


class Patch(NamedTuple):
    """Bytes to write at a log offset; `why` is a sentence that explains them. `is_gap`: they cover lost messages."""

    log_offset: int
    data: bytes
    why: str
    is_gap: bool = False


class PatchedLog(SegmentedLog):
    """A log with patches. Not thread-safe.

    Attributes:
        patches: the bytes that will be written.
        cut: log offset at which the log will end; None for no cut.
        lengths: segments whose files are too short or too long, with their lengths.
        strays: files in the folder that are not segments.
    """

    def __init__(self, files: Files, folder: Path, segment_bytes: int) -> None:
        super().__init__(files, folder, segment_bytes, mapped=False)
        self.patches: list[Patch] = []
        self.cut: int | None = None
        self.lengths: dict[int, int] = {}
        self.strays: list[Path] = []
        found = []
        for entry in files.entries(folder):
            if entry.is_folder:
                continue
            name, size = entry.name, entry.size
            is_name = len(name) >= NAME_DIGITS and name.isascii() and name.isdigit()
            if not (entry.is_file and is_name and int(name) % segment_bytes == 0):
                self.strays.append(entry.path)
                continue
            if size != segment_bytes:
                self.lengths[int(name)] = size
            found.append(Segment(files, entry.path, int(name), segment_bytes))
        self._segments = tuple(found)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that remain after the cut, oldest first."""
        if self.cut is None:
            return self._segments
        return tuple(s for s in self._segments if s.base_offset < self.cut) or self._segments[:1]

    @property
    def after_cut(self) -> tuple[Segment, ...]:
        """The segments that the cut removes entirely."""
        return self._segments[len(self.segments) :]

    def refresh(self) -> None:
        """Do nothing: the repair applies to the segments found at the start."""

    def read_from(
        self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = True
    ) -> Buffer:
        """See `SegmentedLog`; always a copy."""
        position = log_offset - segment.base_offset
        if position < 0 or size < 0 or position + size > segment.capacity:
            raise OffsetError(log_offset, segment.base_offset, segment.end_offset)
        is_gone = self.cut is not None and log_offset >= self.cut
        # Its file may be gone as well.
        data = b"" if is_gone else segment.pread(size, position)
        stop = log_offset + size
        patches = [p for p in self.patches if log_offset < p.log_offset + len(p.data)]
        patches = [p for p in patches if p.log_offset < stop]
        if len(data) == size and not patches and (self.cut is None or stop <= self.cut):
            return data
        made = bytearray(data.ljust(size, b"\0"))
        for patch in patches:
            for at, byte in enumerate(patch.data, patch.log_offset - log_offset):
                if 0 <= at < size:
                    made[at] = byte
        if self.cut is not None and stop > self.cut:
            keep = max(self.cut - log_offset, 0)
            made[keep:] = bytes(size - keep)
        return bytes(made)


_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
_LOW_OF_HIGH = {value >> 24: byte for byte, value in enumerate(_TABLE)}
_BITS = {_TABLE[1 << bit]: 1 << bit for bit in range(8)}


def flipped_bit(block: bytes, sums: Sums) -> tuple[int, int] | None:
    """Return position and mask of the bit whose flip restores `sums`; None if no single bit does."""
    left = int(crc32c(block)) ^ sums[0]
    for position in range(len(block) - 1, -1, -1):
        mask = _BITS.get(left)
        if mask is not None:
            fixed = bytearray(block)
            fixed[position] ^= mask
            return (position, mask) if sums_of(bytes(fixed)) == sums else None
        low = _LOW_OF_HIGH[left >> 24]
        left = (left ^ _TABLE[low]) << 8 | low
    return None


_SEARCH_BYTES = 1 << 20
# If more blocks of a segment differ, single flipped bits are not the cause, and the search would be slow.
_BLOCKS_MAX = 16
# More quarantined ranges are no case for a repair.
_NOTES_MAX = 1000


@attrs.frozen
class Corruption:
    """Bytes [start, stop) of the log that are not a valid record although valid records follow.

    `can_note`: the bytes themselves are not valid, and no valid record begins within them.
    """

    segment: Segment
    start: int
    stop: int
    text: str
    can_note: bool = False

    def finding(self) -> Finding:
        """Return the finding that `verify` would report."""
        base = self.segment.base_offset
        what_now = "" if self.can_note else ONLY_CUT
        return Finding(
            "log", self.segment.path, max(self.start - base, 0), self.start, self.text, what_now
        ).advised()


@attrs.define
class RepairPlan:
    """The planned repairs, and the corruption that would remain.

    Attributes:
        log: the log as it would be after the repair.
        is_ours: Penstock wrote last.
        damages: corruption that would remain.
        noted: corruption that is quarantined, or would be.
        new_notes: the part of it that is not yet.
        unlike: blocks that differ from their digests and would remain so.
        doubtful: the log ranges of these blocks; differences to their records cause no rebuild of derived files.
        tail: start and end offset of a torn tail, (0, 0) for none.
        cut_records: valid records that the cut would remove.
        given_up: the messages after the log's end that were on disk, as `messages_within` names them.
        rebuilds: the findings in the files of each dispatcher that must be rebuilt.
        drops: segments whose digests would no longer be valid.
        strays: digest files that belong to no segment.
        marks: findings in the metadata files.
    """

    log: PatchedLog
    is_ours: bool
    damages: list[Corruption] = attrs.Factory(list)
    noted: list[Corruption] = attrs.Factory(list)
    new_notes: list[Corruption] = attrs.Factory(list)
    unlike: list[Finding] = attrs.Factory(list)
    doubtful: list[tuple[int, int]] = attrs.Factory(list)
    tail: tuple[int, int] = (0, 0)
    cut_records: int = 0
    given_up: str = ""
    rebuilds: dict[str, list[Finding]] = attrs.Factory(dict)
    drops: set[int] = attrs.Factory(set)
    strays: list[Path] = attrs.Factory(list)
    marks: list[Finding] = attrs.Factory(list)
    tally: Tally = attrs.Factory(Tally)

    @property
    def log_end(self) -> int:
        """Log offset after the last valid record, or after the filler that follows it."""
        return max(self.tally.log_end, self.log.min_offset)

    @property
    def is_needed(self) -> bool:
        """Whether any repair is needed."""
        return bool(
            self.log.patches or self.log.cut is not None or self.log.lengths or self.tail[1]
            or self.new_notes or self.rebuilds or self.drops or self.strays or self.marks
        )  # fmt: skip

    @property
    def standing(self) -> list[Finding]:
        """The corruption that would remain."""
        return [damage.finding() for damage in self.damages] + self.unlike


class _Attributed(Checker):
    """Wraps a dispatcher's checker and collects its findings, so that each is attributed to the dispatcher."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.found: list[Finding] = []

    def _note(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        self.found.extend(findings)
        yield from ()

    def start(self) -> Iterator[Finding]:
        return self._note(self._checker.start())

    def damage(self, start: int, stop: int) -> None:
        self._checker.damage(start, stop)

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        return self._note(self._checker.batch(batch))

    def finish(self, end: int) -> Iterator[Finding]:
        return self._note(self._checker.finish(end))


def _records_without_queue(segment: Segment, part: Valid) -> Iterator[Corruption]:
    """Yield the records whose topic is not a valid name; they have no queue. No checksum covers the topic."""
    columns = part.columns
    if len(columns) == 0:
        return
    names, rows = columns.topics
    has_no_folder = np.array([topic_of(name) is None for name in names], np.bool_)
    for row in np.flatnonzero(has_no_folder[rows]).tolist():
        start = int(columns.log_offsets[row])
        text = "the topic of the record is not a valid folder name, so the record has no queue"
        yield Corruption(segment, start, start + int(columns.sizes[row]), text)


class Planner:
    """Makes the repair plan for one store. Not thread-safe.

    Args:
        files: the file system.
        root: the store's folder.
        segment_bytes: size of a segment.
        dispatchers: opened read-only.
        on_progress: called during the work with the counts so far.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        segment_bytes: int,
        dispatchers: list[Dispatcher],
        on_progress: OnProgress,
    ) -> None:
        self._files = files
        self._root = root
        self._dispatchers = dispatchers
        self._on_progress = on_progress
        self._digests = Digests(files, root)
        log = PatchedLog(files, root / "commitlog", segment_bytes)
        use_entries(log, dispatchers)
        for stray in log.strays:
            raise StrayFileError(stray, "it is not a segment")
        self._check_too_long(log)
        state = Progress(files, root).read()
        self._plan = RepairPlan(log, penstock_wrote_last(files, root, state.lock_mtime_ns))
        self._is_copy = is_unfinished_copy(files, root, state)
        self._noted = state.flushed_offset if is_copy(files, root, state) else 0
        # Below it everything was on disk, if Penstock wrote last.
        seen = 0 if files.exists(root / "abort") else state.visible_offset
        self._durable = max(state.flushed_offset, seen)

    def _check_too_long(self, log: PatchedLog) -> None:
        """Raise `CorruptionError` if a record begins after a segment's length, since it may belong to the log."""
        for segment in log.segments:
            size = log.lengths.get(segment.base_offset, 0)
            if size <= segment.capacity:
                continue
            alone = SegmentedLog(self._files, log.folder, log.segment_bytes, mapped=False)
            whole = Segment(self._files, segment.path, segment.base_offset, size)
            alone.add(whole)
            for found in Resync(alone, whole).unvouched(segment.end_offset - 1, whole.end_offset):
                raise CorruptionError(
                    whole.path, segment.capacity, "the segment's end", f"a record at log offset {found}",
                    f"nothing was changed; {WITHOUT_REPAIR}",
                )  # fmt: skip

    def plan(self, *, cut: bool, accept: bool, quarantine: bool = False) -> RepairPlan:
        """Return the repair plan; raises `StorageError` if a quarantine is refused."""
        plan = self._plan
        # Each of the four passes below reads the log once: digests, queue offsets, corruption, derived files.
        plan.tally.bytes_total = 4 * sum(map(used_bytes, plan.log.segments))
        for segment in plan.log.segments:
            self._plan_bit_flips(segment, accept=accept)
            self._count(used_bytes(segment))
        ranges = known_ranges(self._files, self._root, plan.log)
        plan.log.coverage, plan.log.quarantined = ranges.coverage, ranges.quarantined
        self._inspect_log(ranges)
        if quarantine and plan.damages:
            self._quarantine(ranges)
        # If record checks locate the corruption within a block, the rest of the block is not in doubt.
        located = [*plan.damages, *plan.noted]
        plan.doubtful = [
            (a, b) for a, b in plan.doubtful if not any(d.start < b and a < d.stop for d in located)
        ]  # fmt: skip
        if cut:
            self._cut()
        self._compare_derived()
        if quarantine:
            self._check_quarantine()
        is_known = plan.is_ours and not self._is_copy and plan.log_end < self._durable
        is_known = is_known or has_changed(plan.log, plan.log_end, self._noted)
        self._find_tail()
        if is_known:
            names = messages_within(plan.log, plan.log_end, self._durable)
            plan.given_up = names or f" (up to log offset {self._durable})"
        self._plan_digests()
        marks = check_marks(
            self._files,
            self._root,
            plan.log_end,
            plan.tally.last_time_ms,
            is_ours=plan.is_ours,
            dispatchers=self._dispatchers,
        )
        plan.marks = [finding.advised() for finding in marks]
        if plan.is_needed and has_later_segments(plan):
            # Removes preallocated segments, which a store marked as cleanly closed must not have.
            plan.log.cut = plan.log_end
        return plan

    def _plan_digests(self) -> None:
        """Plan to delete the digests of segments that the steps so far change, and digest files without a segment."""
        plan, log = self._plan, self._plan.log
        filled = [patch.log_offset for patch in log.patches if len(patch.data) == BLANK_SIZE]
        for base in self._digests.bases():
            segment = log.find(base)
            if segment is None:
                continue
            changed = any(base <= at < segment.end_offset for at in filled)
            if changed or (log.cut is not None and segment.end_offset > log.cut):
                plan.drops.add(base)
            in_doubt = [*plan.doubtful, *((d.start, d.stop) for d in plan.damages)]
            is_explained = any(n.segment is segment for n in plan.noted) and not any(
                base <= start < segment.end_offset for start, _ in in_doubt
            )
            is_unlike = any(f.log_offset - f.position == base for f in plan.unlike)
            if is_explained and (is_unlike or base in log.lengths):
                plan.drops.add(base)
        bases = {segment.base_offset for segment in log.segments} - plan.drops
        plan.unlike = [f for f in plan.unlike if f.log_offset - f.position in bases]
        plan.strays = [
            finding.path for finding in check_digest_files(self._files, self._root, log)
            if finding.path.parent == self._digests.folder
            and finding.path not in {self._digests.path(base) for base in plan.drops}
        ]  # fmt: skip

    # --- the log

    def _plan_bit_flips(self, segment: Segment, *, accept: bool) -> None:
        """Plan to restore flipped bits; blocks that differ by more than one bit remain, or are accepted."""
        known = self._digests.read(segment)
        size = self._plan.log.lengths.get(segment.base_offset, segment.capacity)
        is_short = size < segment.capacity
        if known is None or (is_short and not accept):
            return
        if is_short or not self._digests.is_valid(known, segment, is_ours=self._plan.is_ours):
            self._plan.drops.add(segment.base_offset)
            return
        ranges = known.differing(sum_up(self._files, segment))
        for start, stop in ranges:
            block = segment.pread(stop - start, start)
            bit = None
            if len(ranges) <= _BLOCKS_MAX:
                bit = flipped_bit(block, known.blocks[start // known.block_bytes])
            if bit is not None and not accept:
                position, mask = start + bit[0], bit[1]
                data = bytes([block[bit[0]] ^ mask])
                why = f"restore bit {mask.bit_length() - 1} of byte {position}, which flipped"
                self._plan.log.patches.append(Patch(segment.base_offset + position, data, why))
            elif accept:
                self._plan.drops.add(segment.base_offset)
            else:
                found = damaged_blocks(segment.path, segment.base_offset, start, stop)
                self._plan.unlike.append(found.advised())
                base = segment.base_offset
                self._plan.doubtful.append((base + start, base + stop))

    def _inspect_log(self, ranges: Ranges) -> None:
        """Find where the next opening cuts off a torn tail, and all corruption."""
        log = self._plan.log
        torn_at = torn_end(
            self._files, self._root, log, ranges, after_repair=bool(self._plan.new_notes)
        )
        # Valid records may follow it, which the log does not show with that end.
        log.torn_at = None
        self._plan.cut_records = 0 if torn_at is None else self._records_from(torn_at)
        log.torn_at = torn_at
        if not needs_counts(log):
            self._count(sum(map(used_bytes, log.segments)))
        reject_by_counts(log, ranges.is_own, ranges.gaps, lambda s: self._count(used_bytes(s)))
        self._find_corruption()

    def _quarantine(self, ranges: Ranges) -> None:
        """Plan to note the corrupt ranges, and inspect the log again as it is with the notes."""
        plan, log = self._plan, self._plan.log
        if not plan.is_ours:
            self._refuse(
                "another program opened the store last, or it was copied without the times of its files",
                ONLY_CUT,
            )
        if self._is_copy:
            self._refuse(
                "the store is a copy, made while the original was open",
                f"quarantine the corruption in the original, and copy it again; {ONLY_CUT}",
            )
        made = dict(log.quarantined)
        for damage in plan.damages:
            end = attrs.evolve(NOTHING, offset=damage.start, survivor=damage.stop)
            if damage.start >= self._durable and is_torn(log, end, is_ours=True):
                # The next opening cuts the log there: what was never known to be on disk is a torn tail.
                break
            if damage.can_note:
                plan.new_notes.append(damage)
                made[damage.start] = note_of(log, damage.segment, damage.start, damage.stop)
        log.quarantined = made
        plan.tally.bytes_total += 2 * sum(map(used_bytes, log.segments))
        self._inspect_log(ranges)
        while plan.noted and plan.noted[-1].stop == log.torn_at:
            # A part of an atomic batch followed, which is cut off: a corrupt range does not become the log's end.
            log.torn_at = plan.noted.pop().start
        noted = {each.start for each in plan.noted}
        plan.new_notes = [each for each in plan.new_notes if each.start in noted]

    def _check_quarantine(self) -> None:
        """Raise if the quarantine is refused: what is missing at the log's end, for example, cannot be stepped over."""
        plan, end = self._plan, self._plan.log_end
        if len(plan.noted) > _NOTES_MAX:
            self._refuse(f"more than {_NOTES_MAX} ranges are corrupt", ONLY_CUT)
        # A valid record at the end belongs to a part of an atomic batch.
        if (
            plan.is_ours
            and not self._is_copy
            and end < self._durable
            and not is_followed(plan.log, end)
        ):
            why = f"the log is corrupt from {end} on to its end, and was on disk up to {self._durable}"
            self._refuse(why, CUT_END)

    def _refuse(self, why: str, what_now: str) -> NoReturn:
        raise StorageError(
            f"{self._root}: the quarantine is refused, and nothing was changed: {why}; {what_now}"
        )

    def _find_corruption(self) -> None:
        """Set `damages` of the plan to all corrupt and missing ranges of the log."""
        plan, log = self._plan, self._plan.log
        plan.damages.clear()
        plan.noted.clear()
        expected = None
        for segment in log.segments:
            if expected is not None and segment.base_offset != expected:
                missing = segment.base_offset - expected
                text = f"{missing} bytes of log are missing before this segment"
                plan.damages.append(Corruption(segment, expected, segment.base_offset, text))
            expected = segment.end_offset
            seen = self._plan.tally.bytes_seen
            for part in walk_segment(log, segment):
                self._count(seen + part.start - segment.base_offset - plan.tally.bytes_seen)
                if isinstance(part, Corrupt):
                    self._sort(segment, part)
                elif (
                    not isinstance(part, Valid)
                    and not part.is_blank
                    and self._has_later_records(segment)
                ):
                    text = "the records end here, although later segments have more"
                    text += messages_within(log, part.start, segment.end_offset)
                    rest = _describe(log, segment, Corrupt(part.start, segment.end_offset))
                    plan.damages.append(attrs.evolve(rest, text=text))
                elif isinstance(part, Valid):
                    plan.damages += _records_without_queue(segment, part)
            self._count(seen + used_bytes(segment) - plan.tally.bytes_seen)

    def _sort(self, segment: Segment, part: Corrupt) -> None:
        """Add a corrupt range to those noted or to the damages; of torn filler, plan to write its head again.

        A sealed segment was durable, so that no power cut tore it, and its digest tells of all that has changed.
        """
        plan, found = self._plan, _describe(self._plan.log, segment, part)
        if part.is_noted:
            plan.noted.append(found)
        elif (
            found.can_note
            and is_torn_filler(plan.log, segment, part.start)
            and self._digests.read(segment) is None
        ):
            blank = BLANK.pack(segment.end_offset - part.start, MAGIC_BLANK)
            why = "write the head of the filler up to the segment's end again: it is torn"
            plan.log.patches.append(Patch(part.start, blank, why))
        else:
            plan.damages.append(found)

    def _count(self, size: int) -> None:
        """Add bytes that were read to the progress."""
        self._plan.tally.bytes_seen += size
        self._on_progress(self._plan.tally)

    def _has_later_records(self, segment: Segment) -> bool:
        """Return whether a later segment has a valid or a corrupt record."""
        log = self._plan.log
        later = (s for s in log.segments if s.base_offset > segment.base_offset)
        return any(
            isinstance(part, Corrupt) or (isinstance(part, Valid) and len(part.columns))
            for other in later
            for part in walk_segment(log, other)
        )

    def _cut(self) -> None:
        """Plan blank records over corruption at segment ends, then a cut at the first other corruption."""
        plan, log = self._plan, self._plan.log
        while plan.damages:
            damage = plan.damages[0]
            segment = log.find(damage.start)
            room = damage.stop - damage.start
            is_end = segment is not None and damage.stop == segment.end_offset
            if not is_end or room < BLANK_SIZE or log.find(damage.stop) is None:
                plan.cut_records += self._records_from(damage.start)
                log.cut = damage.start
                plan.doubtful = [each for each in plan.doubtful if each[1] <= damage.start]
                log.patches = [p for p in log.patches if p.log_offset < damage.start]
                plan.damages.clear()
                return
            blank = BLANK.pack(room, MAGIC_BLANK)
            why = f"cover {room} corrupt bytes up to the segment's end with a blank record"
            log.patches.append(Patch(damage.start, blank, why, is_gap=True))
            plan.damages.pop(0)

    def _records_from(self, start: int) -> int:
        log = self._plan.log
        count = 0
        for segment in (s for s in log.segments if s.end_offset > start):
            for part in walk_segment(log, segment):
                if isinstance(part, Valid):
                    count += int((part.columns.log_offsets >= start).sum())
        return count

    def _find_tail(self) -> None:
        """Plan to cut off bytes after the last record that are not a record."""
        log, end = self._plan.log, self._plan.log_end
        dirty = end
        for segment in log.segments:
            for at in range(max(end, segment.base_offset), segment.end_offset, _SEARCH_BYTES):
                data = bytes(log.read(at, min(_SEARCH_BYTES, segment.end_offset - at)))
                if data.strip(b"\0"):
                    dirty = at + len(data.rstrip(b"\0"))
        if dirty > end:
            self._plan.tail = (end, dirty)
            log.cut = end if log.cut is None else log.cut

    # --- what is derived

    def _compare_derived(self) -> None:
        """Compare the dispatchers' files with the planned log, and plan to rebuild those that differ."""
        plan, log = self._plan, self._plan.log
        checkers = {}
        for dispatcher in self._dispatchers:
            checker = dispatcher.checker()
            if checker is not None:
                checkers[dispatcher.name] = _Attributed(checker)
        scope = Scope(
            end=NO_LIMIT,
            extent=NO_LIMIT,
            claimed=0,
            is_ours=plan.is_ours,
            is_live=False,
            deep=False,
        )
        verification = Verification(self._files, self._root, log, self._dispatchers)
        every: list[Checker] = list(checkers.values())
        for one in every:
            list(one.start())
        for segment in log.segments:
            list(verification.segment(segment, every, scope, plan.tally, self._on_progress))
        for one in every:
            list(one.finish(NO_LIMIT))
        found = {n: [f for f in one.found if self._needs_rebuild(f)] for n, one in checkers.items()}
        plan.rebuilds = {name: findings for name, findings in found.items() if findings}

    def _needs_rebuild(self, finding: Finding) -> bool:
        """Return whether a finding requires that its derived file is rebuilt.

        A record that no queue can hold is a finding in the log and requires no rebuild. A record in a block that
        differs from its digest requires none either: the record's header may be wrong, and the queue correct.
        """
        at = finding.log_offset
        return finding.part not in ("log", "stray") and not any(
            a <= at < b for a, b in self._plan.doubtful
        )


def _describe(log: PatchedLog, segment: Segment, part: Corrupt) -> Corruption:
    """Return a corrupt range with a sentence that names its messages, and records in it that are not recovered."""
    inside = Resync(log, segment).unvouched(part.start, part.stop)
    text = f"{part.stop - part.start} bytes are not a valid record"
    if part.reason:
        text = f"the record is corrupt: {part.reason}"
    text += messages_within(log, part.start, part.stop)
    if inside and not part.reason:
        places = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")  # noqa: PLR2004
        text += (
            f"; complete records within it, at log offset {places}, are not recovered: they may be the content "
            f"of a message, since no queue entry points to them"
        )
    return Corruption(segment, part.start, part.stop, text, not part.reason and not inside)


def has_later_segments(plan: RepairPlan) -> bool:
    """Return whether there are segments after the one with the log's end."""
    return any(segment.base_offset >= plan.log_end for segment in plan.log.segments[1:])
