"""Puts a store right: plans by itself (`planner`), changes something only when told to.

A repair holds the store's lock. What it removes or overwrites is in `penstock/saved/repair-<n>/` before it
changes, and each step may be the last: whoever runs the repair again ends in the same state. Damage that
is not cut stands: not a byte of it changes, the sound records behind it keep their places in queues and
index, and so do the entries of damaged records, since RocketMQ reads a record without checking it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.contracts import Context
from penstock.contracts.findings import Finding
from penstock.dispatch.rebuild import RebuildJournal
from penstock.dispatch.store_view import StoreView, open_log
from penstock.durability.checkpoint import Checkpoint, Times
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    lock_ctime_ns,
    lock_mtime_ns,
    vouched_for,
)
from penstock.durability.written_ranges import NO_END, known_ranges, read_ranges, write_ranges
from penstock.errors import NotAStoreError, StoreLockedError
from penstock.files import Files
from penstock.format.record import BLANK_SIZE
from penstock.integrity.segment_digests import Digests
from penstock.integrity.verification import Told
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.foreign_content import check_foreign
from penstock.recovery.log_end import rewrite
from penstock.recovery.store_layout import check_layout, is_store
from penstock.repairs.patched_log import Patch
from penstock.repairs.planner import Planner, RepairPlan
from penstock.runtime.clock import Clock
from penstock.store.open import Opener, make_opener

_COPIED_BYTES = 8 << 20


@attrs.frozen(kw_only=True)
class RepairStep:
    """One thing that a repair does, or would do.

    Attributes:
        action: "turn-back", "fill", "cut", "lengthen", "rebuild", "forget-digest" or "marks".
        path: the file or folder.
        position: first byte that changes; -1 where it is not about bytes.
        stop: the byte behind the last that changes; -1 likewise.
        messages: how many sound messages are lost by it (cut), or mended (all others).
        text: what, in one sentence.
    """

    action: str
    path: Path
    position: int = -1
    stop: int = -1
    messages: int = 0
    text: str


@attrs.frozen(kw_only=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        steps: in the order they are done; empty when nothing is wrong that can be put right.
        standing: damage that is left, each with what to do now.
        applied: whether anything was changed.
        saved_to: the folder with all that was removed or overwritten; None where nothing was.
    """

    steps: tuple[RepairStep, ...]
    standing: tuple[Finding, ...]
    applied: bool
    saved_to: Path | None = None


def repair(
    path: str | Path,
    config: str | Path | None = None,
    *,
    apply: bool = False,
    cut: bool = False,
    accept: bool = False,
    told: Told = lambda _: None,
    files: Files | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> RepairReport:
    """Say what would put the store at `path` right, and with `apply` do it.

    Args:
        path: the store's folder; a RocketMQ broker's store directory will do.
        config: a TOML file, as for `penstock.open`.
        apply: change the store. Without it nothing is written and no lock is taken.
        cut: where the log is damaged, cut it there; all records behind it are lost to readers, and kept
            in the side folder.
        accept: take sealed segments that differ from their digests as they are.
        told: called as it goes, with the counts so far.
        files: the file system; tests hand in one that fails.
        clock: the time; tests hand in their own.
        environ: environment variables; the process's own if None.
        settings: as for `penstock.open`.

    Raises:
        StoreLockedError: somebody has the store open for writing.
        NotAStoreError, StrayFileError, CorruptionError: it cannot be told what is there.
    """
    opener = make_opener(path, config, files, clock, None, environ, settings)
    return repair_with(opener, apply=apply, cut=cut, accept=accept, told=told)


def repair_with(
    opener: Opener, *, apply: bool, cut: bool, accept: bool, told: Told = lambda _: None
) -> RepairReport:
    """See `repair`; `opener` knows the store, its configuration and its strategies."""
    files, root = opener.files, opener.root
    opener.check_strategies()
    if not is_store(files, root):
        raise NotAStoreError(root, "there is no commitlog folder in it")
    check_layout(files, root, writes=apply)
    if not apply:
        if files.is_locked(root / "lock"):
            raise StoreLockedError(root, SideFolder(files, root).read_holder())
        plan = _Repair(opener).plan(told, cut=cut, accept=accept)
        return RepairReport(
            steps=tuple(steps_of(plan, root)), standing=tuple(plan.standing), applied=False
        )
    lock = opener.lock()
    try:
        check_foreign(root, opener.foreign(opener.geometry()), "the repair is refused")
        return _Repair(opener).apply(told, cut=cut, accept=accept)
    finally:
        lock.release()


class _Repair:
    """One repair of one store. Not thread-safe."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._files = opener.files
        self._root = opener.root
        self._geometry = opener.geometry()
        self._digests = Digests(opener.files, opener.root)

    def _context(self, log: SegmentedLog) -> Context:
        return self._opener.context(self._geometry, log, read_only=True)

    def plan(self, told: Told, *, cut: bool, accept: bool) -> RepairPlan:
        """Return what to do."""
        log = open_log(self._files, self._root, self._geometry)
        self._dispatchers = self._opener.dispatchers(self._context(log))
        planner = Planner(
            self._files, self._root, self._geometry.segment_bytes, self._dispatchers, told
        )
        return planner.plan(cut=cut, accept=accept)

    def apply(self, told: Told, *, cut: bool, accept: bool) -> RepairReport:
        """Do it, one step after the other; each is durable before the next."""
        files, root = self._files, self._root
        side = SideFolder(files, root)
        side.make()
        workshop = RebuildJournal(files, root)
        is_unfinished = workshop.is_begun()
        if is_unfinished:
            workshop.begin()
        plan = self.plan(told, cut=cut, accept=accept)
        steps, standing = tuple(steps_of(plan, root)), tuple(plan.standing)
        if not plan.is_needed and not is_unfinished:
            return RepairReport(steps=(), standing=standing, applied=False)
        workshop.begin()
        self._save_marks(workshop)
        self._note_ranges(plan)
        side.remove_clean()
        self._mend_log(plan, workshop)
        for base in sorted(plan.drops):
            self._digests.remove(base)
        for stray in plan.strays:
            workshop.save_file(stray)
        if plan.rebuilds:
            self._rebuild(plan, workshop)
        self._finish(plan, side)
        workshop.end()
        saved = workshop.saved if files.exists(workshop.saved) else None
        return RepairReport(steps=steps, standing=standing, applied=True, saved_to=saved)

    def _save_marks(self, workshop: RebuildJournal) -> None:
        for path in (
            "checkpoint",
            "abort",
            "penstock/progress",
            "penstock/clean",
            "penstock/ranges",
        ):
            source = self._root / path
            if self._files.exists(source):
                workshop.save_bytes(path.replace("/", "-"), self._files.read_whole(source))

    # --- the log

    def _mend_log(self, plan: RepairPlan, workshop: RebuildJournal) -> None:
        log = plan.log
        for base in log.short:
            segment = log.find(base)
            if segment is not None and not (
                log.cut is not None and base >= log.cut > log.min_offset
            ):
                self._lengthen(segment)
        for patch in log.patches:
            segment = log.find(patch.log_offset)
            assert segment is not None
            self._patch(segment, patch, workshop)
        if log.cut is not None:
            self._cut(plan, log.cut, workshop)

    def _note_ranges(self, plan: RepairPlan) -> None:
        """Note, durably and before the log changes, what is known of who wrote what, and what will be missing.

        The marks will say that Penstock wrote last: another program's records are not ours by that. What is cut away
        is not covered: another program may go on there, before we do. Queue offsets are missing after blank records.
        """
        files, root, log = self._files, self._root, plan.log
        ranges = known_ranges(files, root, log)
        if log.cut is not None:
            ranges = ranges.ended(log.cut, NO_END)
        fills = [p.log_offset for p in log.patches if len(p.data) == BLANK_SIZE]
        gaps = {(at, s.end_offset) for at in fills if (s := log.find(at)) is not None}
        noted = attrs.evolve(
            ranges,
            gaps=tuple(sorted({*ranges.gaps, *gaps})),
            lock_mtime_ns=lock_mtime_ns(files, root),
        )
        if noted != read_ranges(files, root):
            write_ranges(files, root, noted)

    def _lengthen(self, segment: Segment) -> None:
        file = self._files.open(segment.path, writable=True)
        try:
            file.resize(segment.capacity)
            file.sync_all()
        finally:
            file.close()

    def _patch(self, segment: Segment, patch: Patch, workshop: RebuildJournal) -> None:
        position = patch.log_offset - segment.base_offset
        is_fill = len(patch.data) == BLANK_SIZE
        size = segment.capacity - position if is_fill else len(patch.data)
        workshop.save_bytes(f"{segment.path.name}-{position}", segment.pread(size, position))
        file = self._files.open(segment.path, writable=True)
        try:
            file.pwrite(patch.data, position)
            file.sync()
        finally:
            file.close()
        digest = self._digests.read(segment)
        if digest is not None and not is_fill:
            # What it says is right again; only the file's time is another.
            now = self._files.mtime_ns(segment.path)
            self._digests.write(attrs.evolve(digest, mtime_ns=now))

    def _cut(self, plan: RepairPlan, cut: int, workshop: RebuildJournal) -> None:
        """Take away everything from log offset `cut` on, the last segment first, so that no hole shows."""
        log = plan.log
        for segment in reversed(log.behind_cut):
            self._digests.remove(segment.base_offset)
            workshop.save_file(segment.path)
        segment = log.segments[-1]
        position = max(cut - segment.base_offset, 0)
        if position >= segment.capacity:
            return
        for start in range(position, segment.capacity, _COPIED_BYTES):
            data = segment.pread(min(_COPIED_BYTES, segment.capacity - start), start)
            if data.strip(b"\0"):
                workshop.save_bytes(f"{segment.path.name}-{start}", data)
        self._digests.remove(segment.base_offset)
        segment.erase(position)

    # --- what is derived, and the marks

    def _rebuild(self, plan: RepairPlan, workshop: RebuildJournal) -> None:
        olds = [d for d in self._dispatchers if d.name in plan.rebuilds]
        paths = [finding.path for found in plan.rebuilds.values() for finding in found]
        wrong = {path.relative_to(self._root).parts[0] for path in paths}
        damages = [(damage.start, damage.stop) for damage in plan.damages]
        view = StoreView(self._context(plan.log), plan.log, olds)
        workshop.rebuild(view, damages, wrong)
        for old in olds:
            old.close()

    def _finish(self, plan: RepairPlan, side: SideFolder) -> None:
        """Make all durable, and say so: as after a clean close, or up to the damage that stands."""
        files, root = self._files, self._root
        log = SegmentedLog(files, root / "commitlog", self._geometry.segment_bytes, mapped=False)
        log.load(repair=False)
        state = Progress(files, root).read()
        end, last = plan.log_end, plan.tally.last_time_ms
        last_segment = log.find(end - 1)
        doubtful = last_segment.base_offset if last_segment is not None else 0
        if plan.is_ours:
            doubtful = min(doubtful, max(state.flushed_offset, 0))
        for folder in vouched_for(root):
            self._sync_tree(folder)
        rewrite(files, log, doubtful, end)
        Checkpoint(files, root).write(Times(last, last, last))
        unknown = {} if not plan.is_ours else state.dispatched
        checked = {d.name: end for d in self._dispatchers if d.checker() is not None}
        sound_to = min([end, *(damage.start for damage in plan.damages)])
        Progress(files, root).replace(State(
            flushed_offset=sound_to, visible_offset=end, dispatched={**unknown, **checked},
            lock_mtime_ns=lock_mtime_ns(files, root), last_time_ms=last,
            lock_ctime_ns=lock_ctime_ns(files, root),
        ))  # fmt: skip
        if not plan.damages:
            digest = fingerprint(files, vouched_for(root))
            side.write_clean(CleanClose(log_end=end, last_time_ms=last, digest=digest))
        if files.exists(root / "abort"):
            files.remove(root / "abort")
            files.sync_folder(root)

    def _sync_tree(self, folder: Path) -> None:
        if not self._files.is_folder(folder):
            return
        for entry in self._files.entries(folder):
            if entry.is_folder:
                self._sync_tree(entry.path)
            elif entry.is_file:
                file = self._files.open(entry.path, writable=True)
                try:
                    file.sync()
                finally:
                    file.close()
        self._files.sync_folder(folder)


def steps_of(plan: RepairPlan, root: Path) -> list[RepairStep]:
    """Return a plan as steps, in the order they are done."""
    log, made = plan.log, []
    for base, size in sorted(log.short.items()):
        segment = log.find(base)
        if segment is not None:
            text = f"give the file its length back: {segment.capacity} bytes, it has {size}"
            made.append(
                RepairStep(
                    action="lengthen", path=segment.path, position=size, stop=segment.capacity,
                    text=text,
                )
            )  # fmt: skip
    for patch in log.patches:
        segment = log.find(patch.log_offset)
        assert segment is not None
        position = patch.log_offset - segment.base_offset
        is_fill = len(patch.data) == BLANK_SIZE
        made.append(RepairStep(
            action="fill" if is_fill else "turn-back", path=segment.path, position=position,
            stop=position + len(patch.data), messages=0 if is_fill else 1, text=patch.why,
        ))  # fmt: skip
    made += _cut_steps(plan)
    for base in sorted(plan.drops):
        path = Digests(Files(), root).path(base)
        text = "forget the digest: it no longer speaks of its segment, and is made anew"
        made.append(RepairStep(action="forget-digest", path=path, text=text))
    for stray in plan.strays:
        text = "take it out of the digests: it is none of any segment there is"
        made.append(RepairStep(action="forget-digest", path=stray, text=text))
    for name, findings in plan.rebuilds.items():
        records, first = plan.tally.records, findings[0]
        text = f"make the files of {name} anew from {records} records: {first.text}"
        text += f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        made.append(
            RepairStep(action="rebuild", path=first.path, messages=records, text=text)
        )  # fmt: skip
    for finding in plan.marks:
        text = f"write the marks anew: {finding.text}"
        made.append(RepairStep(action="marks", path=finding.path, text=text))
    return made


def _cut_steps(plan: RepairPlan) -> list[RepairStep]:
    log = plan.log
    if log.cut is None:
        return []
    segment = log.segments[-1]
    stretches = [(segment, max(log.cut - segment.base_offset, 0))]
    stretches += [(gone, 0) for gone in log.behind_cut]
    what = "a torn tail" if log.cut == plan.tail[0] and plan.tail[1] else "the log"
    first = f"cut {what} at log offset {log.cut}; {plan.cut_records} sound messages are lost"
    made: list[RepairStep] = []
    for each, position in stretches:
        if position < each.capacity:
            text = "take the segment out of the log: it lies behind the cut" if made else first
            made.append(RepairStep(
                action="cut", path=each.path, position=position, stop=each.capacity,
                messages=0 if made else plan.cut_records, text=text,
            ))  # fmt: skip
    return made
