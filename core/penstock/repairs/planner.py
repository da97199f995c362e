"""What `repair` would do: looks at a store and makes the plan. Changes nothing.

In this order, each step against the log as the ones before will leave it:

    1. Blocks of sealed segments that one flipped bit explains: the bit is turned back.
    2. Damage that is left: stands, unless a cut was asked for. Then what reaches to the end of its
       segment, with a sound segment behind, is covered by a blank record, which is valid there; at any
       other damage the log is cut, since offsets are addresses and nothing can be moved up.
    3. A torn tail goes. A file that was cut short gets its length back.
    4. A dispatcher whose files disagree with that log is made anew.
    5. Marks that are wrong, or that any step above makes wrong, are written anew.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np

from penstock.contracts import Dispatcher
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.findings import Checker, Finding, damaged_blocks
from penstock.durability.progress import Progress
from penstock.durability.side_folder import penstock_wrote_last
from penstock.durability.written_ranges import known_ranges
from penstock.errors import StrayFileError
from penstock.files import Files
from penstock.format.names import topic_of
from penstock.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from penstock.integrity.metadata_checks import check_digest_files, check_marks
from penstock.integrity.segment_digests import Digests, sum_up
from penstock.integrity.verification import NO_LIMIT, Scope, Tally, Told, Verification
from penstock.log.entry_witness import use_entries
from penstock.log.resync import Resync
from penstock.log.salvage import Corrupt, Valid, reject_by_counts, walk_segment
from penstock.log.segment import Segment
from penstock.recovery.inspection import torn_end
from penstock.repairs.bit_flip import flipped_bit
from penstock.repairs.patched_log import Patch, PatchedLog

_SEARCH_BYTES = 1 << 20
# In a segment that differs in more blocks than this it is not bits that flipped; looking takes a while.
_BLOCKS_MAX = 16


@attrs.frozen
class Corruption:
    """Bytes [start, stop) of the log that are no sound record though there is more behind."""

    segment: Segment
    start: int
    stop: int
    text: str

    def finding(self) -> Finding:
        """Return it as `verify` would tell it."""
        base = self.segment.base_offset
        return Finding(
            "log", self.segment.path, max(self.start - base, 0), self.start, self.text
        ).advised()


@attrs.define
class RepairPlan:
    """What would be done, and what would be left.

    Attributes:
        log: the log as it would be.
        is_ours: Penstock wrote last.
        damages: damage that is left standing.
        unlike: blocks that differ from their digests and stay so.
        doubtful: the stretches of log that these are; no derived file is made anew for what they say.
        tail: first and last byte of a torn tail, (0, 0) for none.
        cut_records: sound records that the cut would take away.
        rebuilds: dispatcher to what is wrong with its files.
        drops: segments whose digests would no longer be right.
        strays: files of digests that belong to nothing.
        marks: what is wrong with the marks.
    """

    log: PatchedLog
    is_ours: bool
    damages: list[Corruption] = attrs.Factory(list)
    unlike: list[Finding] = attrs.Factory(list)
    doubtful: list[tuple[int, int]] = attrs.Factory(list)
    tail: tuple[int, int] = (0, 0)
    cut_records: int = 0
    rebuilds: dict[str, list[Finding]] = attrs.Factory(dict)
    drops: set[int] = attrs.Factory(set)
    strays: list[Path] = attrs.Factory(list)
    marks: list[Finding] = attrs.Factory(list)
    tally: Tally = attrs.Factory(Tally)

    @property
    def log_end(self) -> int:
        """Log offset behind the last sound record, or the filler behind it."""
        return max(self.tally.log_end, self.log.min_offset)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(
            self.log.patches or self.log.cut is not None or self.log.short or self.tail[1]
            or self.rebuilds or self.drops or self.strays or self.marks
        )  # fmt: skip

    @property
    def standing(self) -> list[Finding]:
        """What would be left."""
        return [damage.finding() for damage in self.damages] + self.unlike


class _Attributed(Checker):
    """A dispatcher's checker, which remembers that it was this one that found something."""

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


def _without_place(segment: Segment, piece: Valid) -> Iterator[Corruption]:
    """Yield the records that no queue can have: no checksum covers a topic, nor a queue's number."""
    columns = piece.columns
    if len(columns) == 0:
        return
    names, rows = columns.topics
    has_no_folder = np.array([topic_of(name) is None for name in names], np.bool_)
    for row in np.flatnonzero(has_no_folder[rows]).tolist():
        start = int(columns.log_offsets[row])
        text = "a record whose topic cannot be a folder, so that it has no queue"
        yield Corruption(segment, start, start + int(columns.sizes[row]), text)


class Planner:
    """Makes the plan for one store.

    Args:
        files: the file system.
        root: the store's folder.
        segment_bytes: size of a segment.
        dispatchers: opened read-only.
        told: called as it goes.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        segment_bytes: int,
        dispatchers: list[Dispatcher],
        told: Told,
    ) -> None:
        self._files = files
        self._root = root
        self._dispatchers = dispatchers
        self._told = told
        self._digests = Digests(files, root)
        log = PatchedLog(files, root / "commitlog", segment_bytes)
        use_entries(log, dispatchers)
        for stray in log.strays:
            raise StrayFileError(stray, "it is no segment, or too large for one")
        noted_ns = Progress(files, root).read().lock_mtime_ns
        self._plan = RepairPlan(log, penstock_wrote_last(files, root, noted_ns))

    def plan(self, *, cut: bool, accept: bool) -> RepairPlan:
        """Return what to do."""
        plan = self._plan
        for segment in plan.log.segments:
            self._turn_back(segment, accept=accept)
        ranges = known_ranges(self._files, self._root, plan.log)
        plan.log.coverage = ranges.coverage
        plan.log.torn_at = torn_end(self._files, self._root, plan.log, ranges)
        reject_by_counts(plan.log, ranges.is_own, ranges.gaps)
        self._find_damage()
        # A block whose record checks say what is wrong is not in doubt otherwise.
        plan.doubtful = [
            (a, b) for a, b in plan.doubtful if not any(d.start < b and a < d.stop for d in plan.damages)
        ]  # fmt: skip
        if cut:
            self._cut()
        self._compare_derived()
        self._find_tail()
        self._look_at_digests()
        marks = check_marks(
            self._files,
            self._root,
            plan.log_end,
            plan.tally.last_time_ms,
            is_ours=plan.is_ours,
            dispatchers=self._dispatchers,
        )
        plan.marks = [finding.advised() for finding in marks]
        if plan.is_needed and log_goes_on(plan):
            # Segments made ahead, which the store that is marked clean must not have.
            plan.log.cut = plan.log_end
        return plan

    def _look_at_digests(self) -> None:
        """What the steps so far change, no digest speaks of any more."""
        plan, log = self._plan, self._plan.log
        filled = [patch.log_offset for patch in log.patches if len(patch.data) == BLANK_SIZE]
        for base in self._digests.bases():
            segment = log.find(base)
            if segment is None:
                continue
            changed = any(base <= at < segment.end_offset for at in filled)
            if changed or (log.cut is not None and segment.end_offset > log.cut):
                plan.drops.add(base)
        bases = {segment.base_offset for segment in log.segments} - plan.drops
        plan.unlike = [f for f in plan.unlike if f.log_offset - f.position in bases]
        plan.strays = [
            finding.path for finding in check_digest_files(self._files, self._root, log)
            if finding.path.parent == self._digests.folder
            and finding.path not in {self._digests.path(base) for base in plan.drops}
        ]  # fmt: skip

    # --- the log

    def _turn_back(self, segment: Segment, *, accept: bool) -> None:
        """Plan to turn back flipped bits; what one bit does not explain is left, or accepted."""
        known = self._digests.read(segment)
        if known is None or segment.base_offset in self._plan.log.short:
            return
        if not self._digests.is_valid(known, segment, is_ours=self._plan.is_ours):
            self._plan.drops.add(segment.base_offset)
            return
        stretches = known.differing(sum_up(self._files, segment))
        for start, stop in stretches:
            block = segment.pread(stop - start, start)
            bit = None
            if len(stretches) <= _BLOCKS_MAX:
                bit = flipped_bit(block, known.blocks[start // known.block_bytes])
            if bit is not None and not accept:
                position, mask = start + bit[0], bit[1]
                data = bytes([block[bit[0]] ^ mask])
                why = f"turn back bit {mask.bit_length() - 1} of byte {position}, which flipped"
                self._plan.log.patches.append(Patch(segment.base_offset + position, data, why))
            elif accept:
                self._plan.drops.add(segment.base_offset)
            else:
                found = damaged_blocks(segment.path, segment.base_offset, start, stop)
                self._plan.unlike.append(found.advised())
                base = segment.base_offset
                self._plan.doubtful.append((base + start, base + stop))

    def _find_damage(self) -> None:
        plan, log = self._plan, self._plan.log
        plan.damages.clear()
        expected = None
        for segment in log.segments:
            if expected is not None and segment.base_offset != expected:
                missing = segment.base_offset - expected
                text = f"{missing} bytes of log are missing before this segment"
                plan.damages.append(Corruption(segment, expected, segment.base_offset, text))
            expected = segment.end_offset
            for piece in walk_segment(log, segment):
                if isinstance(piece, Corrupt):
                    text = piece.reason and f"the record is corrupt: {piece.reason}"
                    text = text or _text_of(log, segment, piece)
                    plan.damages.append(Corruption(segment, piece.start, piece.stop, text))
                elif not isinstance(piece, Valid) and not piece.is_blank and self._goes_on(segment):
                    text = "the records end here, though later segments have more"
                    plan.damages.append(Corruption(segment, piece.start, segment.end_offset, text))
                elif isinstance(piece, Valid):
                    plan.damages += _without_place(segment, piece)

    def _goes_on(self, segment: Segment) -> bool:
        """Say whether a later segment has a sound record."""
        log = self._plan.log
        later = (s for s in log.segments if s.base_offset > segment.base_offset)
        return any(
            isinstance(piece, Corrupt) or (isinstance(piece, Valid) and len(piece.columns))
            for other in later
            for piece in walk_segment(log, other)
        )

    def _cut(self) -> None:
        plan, log = self._plan, self._plan.log
        while plan.damages:
            damage = plan.damages[0]
            segment = log.find(damage.start)
            room = damage.stop - damage.start
            is_end = segment is not None and damage.stop == segment.end_offset
            if not is_end or room < BLANK_SIZE or log.find(damage.stop) is None:
                plan.cut_records = self._records_from(damage.start)
                log.cut = damage.start
                plan.doubtful = [each for each in plan.doubtful if each[1] <= damage.start]
                log.patches = [p for p in log.patches if p.log_offset < damage.start]
                plan.damages.clear()
                return
            blank = BLANK.pack(room, MAGIC_BLANK)
            why = f"cover {room} damaged bytes up to the segment's end with a blank record"
            log.patches.append(Patch(damage.start, blank, why))
            plan.damages.pop(0)

    def _records_from(self, start: int) -> int:
        log = self._plan.log
        count = 0
        for segment in (s for s in log.segments if s.end_offset > start):
            for piece in walk_segment(log, segment):
                if isinstance(piece, Valid):
                    count += int((piece.columns.log_offsets >= start).sum())
        return count

    def _find_tail(self) -> None:
        """Find bytes behind the last record that are none."""
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
        plan.tally.bytes_total = sum(segment.capacity for segment in log.segments)
        every: list[Checker] = list(checkers.values())
        for one in every:
            list(one.start())
        for segment in log.segments:
            list(verification.segment(segment, every, scope, plan.tally, self._told))
        for one in every:
            list(one.finish(NO_LIMIT))
        found = {n: [f for f in one.found if self._counts(f)] for n, one in checkers.items()}
        plan.rebuilds = {name: findings for name, findings in found.items() if findings}

    def _counts(self, finding: Finding) -> bool:
        """Say whether a derived file is to be made anew for it.

        Not for a record that no queue can take: that is the log's matter. Nor for one in a block that
        differs from its digest: its header may be what is wrong, and the queue right.
        """
        at = finding.log_offset
        return finding.part not in ("log", "stray") and not any(
            a <= at < b for a, b in self._plan.doubtful
        )


def _text_of(log: PatchedLog, segment: Segment, piece: Corrupt) -> str:
    """Say what a corrupt range is, and what in it looks like a message and is left all the same."""
    text = f"{piece.stop - piece.start} bytes are not a valid record"
    inside = Resync(log, segment).unvouched(piece.start, piece.stop)
    if inside:
        places = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")  # noqa: PLR2004
        text += (
            f"; whole records within it, at log offset {places}, are left: they may be the content of a "
            f"message, and no queue entry points at them"
        )
    return text


def log_goes_on(plan: RepairPlan) -> bool:
    """Say whether there are segments behind the one with the log's end."""
    return any(segment.base_offset >= plan.log_end for segment in plan.log.segments[1:])
