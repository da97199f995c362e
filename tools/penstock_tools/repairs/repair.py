"""Repairs a store: makes a plan (`planner`), and changes the store only on request.

A repair holds the store's lock. Bytes that it removes or overwrites are saved in `penstock/saved/repair-<n>/`
before they change. It may be killed after any step: running it again ends in the same state. Corruption that
is not cut off remains: none of its bytes change, and the valid records after it keep their entries in queues and
index. Entries of corrupt records are kept, too, since RocketMQ reads a record without checking it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from penstock.contracts import Context
from penstock.contracts.dispatcher import Finding
from penstock.dispatch.rebuild import RebuildJournal, StoreView, open_log
from penstock.durability.progress import Checkpoint, Progress, State, Times
from penstock.durability.replica_file import note_unclean_opening
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    lock_ctime_ns,
    lock_mtime_ns,
    vouched_for,
)
from penstock.durability.written_ranges import NO_END, known_ranges, read_ranges, write_ranges
from penstock.errors import ArgumentError, StorageError, StoreLockedError, UnreadableError
from penstock.files import Files
from penstock.format import arguments
from penstock.format.record import BLANK_SIZE
from penstock.integrity.segment_digests import Digests
from penstock.integrity.verification import OnProgress
from penstock.log.queue_evidence import count_within
from penstock.log.scan import quarantined_at
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import read_metadata
from penstock.recovery.log_end import rewrite
from penstock.recovery.store_layout import check_foreign, check_layout, is_store, no_store
from penstock.runtime.clock import Clock
from penstock.store.open import Opener, make_opener
from penstock_tools.repairs.planner import Patch, Planner, RepairPlan

_COPIED_BYTES = 8 << 20


@attrs.frozen(kw_only=True)
class RepairStep:
    """One step of a repair, performed or planned.

    Attributes:
        action: "turn-back", "quarantine", "fill", "cut", "lengthen", "shorten", "rebuild", "forget-digest" or "marks".
        path: the file or folder.
        position: position of the first byte that changes; -1 if the step does not change single bytes.
        stop: position after the last byte that changes; -1 likewise.
        messages: number of valid messages lost ("cut"), of unreadable messages ("quarantine"), or repaired.
        text: a sentence that describes the step.
    """

    action: str
    path: Path
    position: int = -1
    stop: int = -1
    messages: int = 0
    text: str


@attrs.frozen(kw_only=True)
class RepairReport:
    """The result of a repair, performed or planned.

    Attributes:
        steps: the steps in order; empty if there is nothing that can be repaired.
        standing: the corruption that remains, each with what to do.
        applied: whether anything was changed.
        saved_to: the folder with all removed and overwritten bytes; None if there are none.
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
    quarantine: bool = False,
    accept: bool = False,
    on_progress: OnProgress = lambda _: None,
    files: Files | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> RepairReport:
    """Return the repairs that the store at `path` needs; with `apply`, perform them.

    Args:
        path: the store's folder, or the store directory of a RocketMQ broker.
        config: a TOML file, as for `penstock.open`.
        apply: change the store. Without it nothing is written and no lock is taken.
        cut: cut the log at the first corruption; readers lose all records after it, and the bytes are saved
            in the side folder.
        quarantine: note the corrupt ranges of the log that a valid record follows, so that everything goes on after
            them; no byte of the log changes. Not together with `cut`.
        accept: accept sealed segments that differ from their digests; their digests are replaced.
        on_progress: called during the work with the counts so far.
        files: the file system; tests pass one that injects faults.
        clock: the clock; tests pass their own.
        environ: environment variables; None for those of the process.
        settings: as for `penstock.open`.

    Raises:
        ArgumentError: an argument has a wrong type or value.
        StoreLockedError: a process has the store open for writing.
        UnreadableError: the disk returns an error for a file; nothing was repaired.
        StorageError: a quarantine is refused, with the reason and what to do instead; nothing was changed.
        NotAStoreError, StrayFileError, CorruptionError: the content of the folder cannot be interpreted as a store.
    """
    call = "repair"
    root = arguments.folder(call, "path", path)
    given = {"apply": apply, "cut": cut, "quarantine": quarantine, "accept": accept}
    flags = _Flags(**{name: arguments.flag(call, name, value) for name, value in given.items()})
    if flags.cut and flags.quarantine:
        raise ArgumentError(call, "quarantine", quarantine, "False together with cut")
    arguments.function(call, "on_progress", on_progress)
    opener = make_opener(
        root, config, files, clock, None, environ, settings, call=call,
        names=("config", *given, "on_progress", "files", "clock", "environ"),
    )  # fmt: skip
    return _repair_with(opener, flags, on_progress)


class _Flags(NamedTuple):
    """The permissions of a repair; see `repair`."""

    apply: bool
    cut: bool
    quarantine: bool
    accept: bool


def _repair_with(opener: Opener, flags: _Flags, on_progress: OnProgress) -> RepairReport:
    """Repair the store of an opener, which has its configuration and strategies; see `repair`."""
    files, root = opener.files, opener.root
    opener.check_strategies()
    if not is_store(files, root):
        raise no_store(files, root)
    check_layout(files, root, writes=flags.apply)
    if not flags.apply:
        if files.is_locked(root / "lock"):
            raise StoreLockedError(root, SideFolder(files, root).read_holder())
        plan = _Repair(opener, flags).plan(on_progress)
        return RepairReport(
            steps=tuple(steps_of(plan, root)), standing=tuple(plan.standing), applied=False
        )
    lock = opener.lock("the repair")
    try:
        check_foreign(root, opener.foreign(opener.geometry()), "the repair is refused")
        return _Repair(opener, flags).apply(on_progress)
    finally:
        lock.release()


class _Repair:
    """One repair of one store. Not thread-safe."""

    def __init__(self, opener: Opener, flags: _Flags) -> None:
        self._opener = opener
        self._flags = flags
        self._files = opener.files
        self._root = opener.root
        self._geometry = opener.geometry()
        self._digests = Digests(opener.files, opener.root)

    def _context(self, log: SegmentedLog) -> Context:
        return self._opener.context(self._geometry, log, read_only=True)

    def plan(self, on_progress: OnProgress) -> RepairPlan:
        """Return the repair plan; raises `UnreadableError` if the disk does not return the bytes of a file."""
        try:
            return self._plan(on_progress)
        except OSError as error:
            if error.filename is None:
                # Not an error of the store's files: `on_progress` may raise anything.
                raise
            raise UnreadableError(
                Path(error.filename), error.strerror or str(error),
                "a repair must read every segment, so nothing was repaired. Check the disk; copy what can be read to "
                "another disk, where unreadable ranges are zeros, and repair the copy",
            ) from error  # fmt: skip

    def _plan(self, on_progress: OnProgress) -> RepairPlan:
        log = open_log(self._files, self._root, self._geometry)
        self._dispatchers = self._opener.dispatchers(self._context(log))
        flags = self._flags
        planner = Planner(
            self._files, self._root, self._geometry.segment_bytes, self._dispatchers, on_progress
        )
        return planner.plan(cut=flags.cut, quarantine=flags.quarantine, accept=flags.accept)

    def apply(self, on_progress: OnProgress) -> RepairReport:
        """Perform the repairs; each step is durable before the next begins."""
        files, root = self._files, self._root
        side_folder = SideFolder(files, root)
        journal = RebuildJournal(files, root)
        is_unfinished = journal.is_begun()
        if is_unfinished:
            journal.begin()
        plan = self.plan(on_progress)
        steps, standing = tuple(steps_of(plan, root)), tuple(plan.standing)
        if not plan.is_needed and not is_unfinished:
            return RepairReport(steps=(), standing=standing, applied=False)
        side_folder.make()
        try:
            self._perform(plan, journal, side_folder)
        except OSError as error:
            raise StorageError(
                f"the repair of {root} stopped ({error}); what it removed or replaced so far is saved in "
                f"penstock/saved there. Check the disk, and run the repair again, which completes it"
            ) from error
        saved = journal.saved if files.exists(journal.saved) else None
        return RepairReport(steps=steps, standing=standing, applied=True, saved_to=saved)

    def _perform(self, plan: RepairPlan, journal: RebuildJournal, side_folder: SideFolder) -> None:
        log = plan.log
        journal.begin()
        self._save_metadata(journal)
        self._note_ranges(plan)
        # Copies may have what changes here.
        changed = [log.cut, *(patch.log_offset for patch in log.patches), plan.log_end]
        start = min(at for at in changed if at is not None)
        note_unclean_opening(self._files, self._root, start, is_copy=False)
        found = read_metadata(self._files, self._root, is_new=False)
        # Also where an end that was durable is gone, and nothing is left to be cut; and in a copy of a store that was
        # being written, of which the next opening does not know any more that it is one.
        has_lost = plan.log.cut is not None or found.state.flushed_offset > plan.log_end
        if has_lost or (found.was_copied and not found.is_clean):
            side_folder.note_lost_end()
        side_folder.remove_clean()
        self._repair_log(plan, journal)
        for base in sorted(plan.drops):
            self._digests.remove(base)
        for stray in plan.strays:
            journal.save_file(stray)
        if plan.rebuilds:
            self._rebuild(plan, journal)
        self._finish(plan, side_folder)
        journal.end()

    def _save_metadata(self, journal: RebuildJournal) -> None:
        for path in (
            "checkpoint",
            "abort",
            "penstock/progress",
            "penstock/clean",
            "penstock/ranges",
            "penstock/replica",
        ):
            source = self._root / path
            if self._files.exists(source):
                journal.save_bytes(path.replace("/", "-"), self._files.read_whole(source))

    # --- the log

    def _repair_log(self, plan: RepairPlan, journal: RebuildJournal) -> None:
        """Give each file its full length, apply the patches, and cut the log."""
        log = plan.log
        for base, size in log.lengths.items():
            segment = log.find(base)
            if segment is not None and not (
                log.cut is not None and base >= log.cut > log.min_offset
            ):
                self._resize(segment, size, journal)
        for patch in log.patches:
            segment = log.find(patch.log_offset)
            assert segment is not None
            self._patch(segment, patch, journal)
        if log.cut is not None:
            self._cut(plan, log.cut, journal)

    def _note_ranges(self, plan: RepairPlan) -> None:
        """Record durably which program wrote which range, where queue offsets will be missing, and what is quarantined.

        That is before the log changes.

        After the repair the lock file says that Penstock wrote last, but records of another program still count as its
        own. A range that is cut off is not covered by record CRCs, since another program may append there before
        Penstock does. Where records are made blank, their queue offsets are missing.
        """
        files, root, log = self._files, self._root, plan.log
        ranges = known_ranges(files, root, log)
        if log.cut is not None:
            ranges = ranges.ended(log.cut, NO_END)
        lost = [patch.log_offset for patch in log.patches if patch.is_gap]
        gaps = {(at, s.end_offset) for at in lost if (s := log.find(at)) is not None}
        counting = [quarantined_at(log, each.start) for each in plan.noted]
        noted = attrs.evolve(
            ranges,
            gaps=tuple(sorted({*ranges.gaps, *gaps})),
            quarantined={n.start: n for n in counting if n is not None},
            lock_mtime_ns=lock_mtime_ns(files, root),
        )
        if noted != read_ranges(files, root):
            write_ranges(files, root, noted)

    def _resize(self, segment: Segment, size: int, journal: RebuildJournal) -> None:
        """Give a file of `size` bytes its full length; what is after that is saved."""
        self._save(segment, segment.capacity, size, journal)
        with self._files.open(segment.path, writable=True) as file:
            file.resize(segment.capacity)
            file.sync_all()

    def _patch(self, segment: Segment, patch: Patch, journal: RebuildJournal) -> None:
        """Save the bytes of a patch's range, and write the patch."""
        position = patch.log_offset - segment.base_offset
        is_fill = len(patch.data) == BLANK_SIZE
        size = segment.capacity - position if is_fill else len(patch.data)
        journal.save_bytes(f"{segment.path.name}-{position}", segment.pread(size, position))
        with self._files.open(segment.path, writable=True) as file:
            file.pwrite(patch.data, position)
            file.sync()
        digest = self._digests.read(segment)
        if digest is not None and not is_fill:
            # The digest matches the segment again; only the time of the file has changed.
            now = self._files.mtime_ns(segment.path)
            self._digests.write(attrs.evolve(digest, mtime_ns=now))

    def _cut(self, plan: RepairPlan, cut: int, journal: RebuildJournal) -> None:
        """Remove everything from log offset `cut` on, the last segment first, so that the log never has a hole."""
        log = plan.log
        for segment in reversed(log.after_cut):
            self._digests.remove(segment.base_offset)
            journal.save_file(segment.path)
        segment = log.segments[-1]
        position = max(cut - segment.base_offset, 0)
        if position >= segment.capacity:
            return
        self._save(segment, position, segment.capacity, journal)
        self._digests.remove(segment.base_offset)
        segment.erase(position)

    def _save(self, segment: Segment, position: int, stop: int, journal: RebuildJournal) -> None:
        for start in range(position, stop, _COPIED_BYTES):
            data = segment.pread(min(_COPIED_BYTES, stop - start), start)
            if data.strip(b"\0"):
                journal.save_bytes(f"{segment.path.name}-{start}", data)

    # --- derived files and metadata

    def _rebuild(self, plan: RepairPlan, journal: RebuildJournal) -> None:
        olds = [d for d in self._dispatchers if d.name in plan.rebuilds]
        paths = [finding.path for found in plan.rebuilds.values() for finding in found]
        wrong = {path.relative_to(self._root).parts[0] for path in paths}
        found = [
            each
            for each in (*plan.damages, *plan.noted)
            if plan.log.cut is None or each.start < plan.log.cut
        ]
        damages = [(each.start, each.stop) for each in found]
        view = StoreView(self._context(plan.log), plan.log, olds)
        journal.rebuild(view, damages, wrong)
        for old in olds:
            old.close()

    def _finish(self, plan: RepairPlan, side_folder: SideFolder) -> None:
        """Sync everything and write the metadata: as after a clean close, or up to the first unrepaired corruption."""
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
        if files.exists(root / "checkpoint"):
            # It may be too long, and is saved.
            files.remove(root / "checkpoint")
        Checkpoint(files, root).write(Times(last, last, last))
        unknown = {} if not plan.is_ours else state.dispatched
        checked = {d.name: end for d in self._dispatchers if d.checker() is not None}
        # Any other dispatcher is left out of this repair.
        known = {d.name: unknown[d.name] for d in self._dispatchers if d.name in unknown} | checked
        same_until = end if plan.is_ours else min(end, state.flushed_offset)
        valid_to = min([end, *(damage.start for damage in plan.damages)])
        Progress(files, root).replace(State(
            flushed_offset=valid_to, visible_offset=end, dispatched=known,
            lock_mtime_ns=lock_mtime_ns(files, root), last_time_ms=last,
            lock_ctime_ns=lock_ctime_ns(files, root), left_out=state.without(known, same_until),
        ))  # fmt: skip
        if not plan.damages:
            digest = fingerprint(files, vouched_for(root))
            side_folder.write_clean(CleanClose(log_end=end, last_time_ms=last, digest=digest))
        if files.exists(root / "abort"):
            files.remove(root / "abort")
            files.sync_folder(root)

    def _sync_tree(self, folder: Path) -> None:
        """Sync all files and folders below a folder."""
        if not self._files.is_folder(folder):
            return
        for entry in self._files.entries(folder):
            if entry.is_folder:
                self._sync_tree(entry.path)
            elif entry.is_file:
                with self._files.open(entry.path, writable=True) as file:
                    file.sync()
        self._files.sync_folder(folder)


def steps_of(plan: RepairPlan, root: Path) -> list[RepairStep]:
    """Return the steps of a plan, in the order in which they are performed."""
    log, made = plan.log, []
    for base, size in sorted(log.lengths.items()):
        segment = log.find(base)
        if segment is not None:
            start, stop = sorted((size, segment.capacity))
            action, verb = ("lengthen", "extend") if size == start else ("shorten", "shorten")
            text = f"{verb} the file from {size} to {segment.capacity} bytes, its full length"
            made.append(
                RepairStep(action=action, path=segment.path, position=start, stop=stop, text=text)
            )
    for patch in log.patches:
        segment = log.find(patch.log_offset)
        assert segment is not None
        position = patch.log_offset - segment.base_offset
        is_fill = len(patch.data) == BLANK_SIZE
        made.append(RepairStep(
            action="fill" if is_fill else "turn-back", path=segment.path, position=position,
            stop=position + len(patch.data), messages=0 if is_fill else 1, text=patch.why,
        ))  # fmt: skip
    made += [
        RepairStep(
            action="quarantine", path=each.segment.path, position=each.start - each.segment.base_offset,
            stop=each.stop - each.segment.base_offset, messages=count_within(log, each.start, each.stop),
            text=f"mark as unreadable, so that everything steps over it: {each.text}",
        ) for each in plan.new_notes
    ]  # fmt: skip
    made += _cut_steps(plan)
    for base in sorted(plan.drops):
        path = Digests(Files(), root).path(base)
        text = "delete the digest, which no longer matches its segment; it is computed again"
        made.append(RepairStep(action="forget-digest", path=path, text=text))
    for stray in plan.strays:
        text = "move the file out of the digests: it belongs to no existing segment"
        made.append(RepairStep(action="forget-digest", path=stray, text=text))
    for name, findings in plan.rebuilds.items():
        records, first = plan.tally.records, findings[0]
        text = f"rebuild the files of {name} from {records} records: {first.text}"
        text += f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        made.append(
            RepairStep(action="rebuild", path=first.path, messages=records, text=text)
        )  # fmt: skip
    for finding in plan.marks:
        text = f"rewrite the metadata files: {finding.text}"
        made.append(RepairStep(action="marks", path=finding.path, text=text))
    return _with_given_up(made, plan.given_up)


def _with_given_up(made: list[RepairStep], names: str) -> list[RepairStep]:
    """Add to the step that cuts the log, or else to the first that takes its new end over, what that gives up."""
    ends = [each for each in made if each.action in ("cut", "rebuild", "marks")]
    if names and ends:
        text = f"{ends[0].text}; what was on disk after it is given up{names}"
        made[made.index(ends[0])] = attrs.evolve(ends[0], text=text)
    return made


def _cut_steps(plan: RepairPlan) -> list[RepairStep]:
    """Return the steps that cut the log, one per segment."""
    log = plan.log
    if log.cut is None:
        return []
    segment = log.segments[-1]
    ranges = [(segment, max(log.cut - segment.base_offset, 0))]
    ranges += [(gone, 0) for gone in log.after_cut]
    what = (
        "a torn tail"
        if log.cut == plan.tail[0] and plan.tail[1] and not plan.given_up
        else "the log"
    )
    first = f"cut {what} at log offset {log.cut}; {plan.cut_records} valid messages are lost"
    made: list[RepairStep] = []
    for each, position in ranges:
        if position < each.capacity:
            text = "remove the segment from the log: it is after the cut" if made else first
            made.append(RepairStep(
                action="cut", path=each.path, position=position, stop=each.capacity,
                messages=0 if made else plan.cut_records, text=text,
            ))  # fmt: skip
    return made
