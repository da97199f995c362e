"""Dispatchers of a store that is not open: read-only, or rebuilt beside the store and swapped in; and deleted topics.

Which topics a broker has deleted is determined from the directory's `config/topics.json`. A broker that deletes a topic
removes its queues and its entry in that file; the log keeps the records until retention deletes their segments. So if
the file does not list a topic and the topic has no queue, its records are those of a deleted topic, but only if

    * the file exists and is understood;
    * a broker wrote the records, since Penstock lists a topic after its first message (see `written_ranges`); or the
      topic was listed when Penstock closed the store last, and another program has had it since;
    * the topic is not a system topic of brokers, since not every version lists those.

A queue index searches for surviving entries first (see `contracts.Trust`). Topics that Penstock itself removed are
recorded, and need no such conclusions: see `side_folder`.

A view takes no lock, maps no file and runs nothing in the background. Its reads use the log ranges whose records end
with a CRC of the whole record, and queue entries as evidence.

A rebuild::

    penstock/repair/journal      exists while a repair is in progress; names the folder of saved files
    penstock/repair/new/         the files being built, laid out as in a store
    penstock/repair/parts/<run>  the parts they are combined from, if they are built in parallel
    penstock/repair/ready        exists once they are complete and durable; lists the names to swap

Nothing in the store changes until `ready` exists. After that, the next repair, reindex or open for writing finishes the
swap before it reads any other file. In the middle of a swap the old files may be gone and the new ones not yet in
place. If another program has opened the store in between, queues and index have changed, and the
new files are deleted instead. In both cases `ready` does not exist after an open for writing. The old files are
renamed into `penstock/saved/`, never deleted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs

from penstock.contracts import Context, Dispatcher, History, QueueIndex, Stoppable, Trust
from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import DispatchBatch
from penstock.durability.progress import Progress
from penstock.durability.side_folder import (
    RemovedTopicsFile,
    SideFolder,
    lock_mtime_ns,
    penstock_wrote_last,
)
from penstock.durability.written_ranges import Ranges, known_ranges, watch_coverage
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.arrays import Bools, Int64s
from penstock.format.names import SIDE_FOLDER, is_system
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.log.queue_evidence import use_entries
from penstock.log.resync import RecoveredLog, Valid, walk_segment
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import Clock

logger = get_logger(__name__)

_SAVED = re.compile("repair-[0-9]{1,9}")


_SIZE_MAX = 64 << 20


@attrs.frozen
class DeletedTopics(History):
    """Determines whether records belong to a topic that a broker has deleted. Safe from any thread.

    Attributes:
        ranges: which records Penstock wrote.
        removed: removed topics, each with the log offset before which its records need no queue entry.
        listed: the topics in `config/topics.json`, None if there is no such file or it cannot be read.
    """

    ranges: Ranges
    listed: frozenset[str] | None
    removed: Mapping[str, int] = attrs.Factory(dict)

    def is_unlisted(self, topic: str) -> bool:
        return self.listed is not None and topic not in self.listed and not is_system(topic)

    def are_ours(self, log_offsets: Int64s) -> Bools:
        return self.ranges.may_be_own(log_offsets)

    def may_have_ours(self, first: int, last: int) -> bool:
        return self.ranges.may_have_own(first, last)

    def is_one_run(self, first: int, last: int) -> bool:
        return self.ranges.is_one_run(first, last)


def read_deleted_topics(files: Files, root: Path, ranges: Ranges | None = None) -> DeletedTopics:
    """Return the deleted topics of a store; reads the ranges from its folder, too, if they are None."""
    removed = {**deleted_since_close(files, root), **RemovedTopicsFile(files, root).read().before}
    return DeletedTopics(ranges or known_ranges(files, root), listed_topics(files, root), removed)


def deleted_since_close(files: Files, root: Path) -> dict[str, int]:
    """Return the topics that another program deleted since Penstock's last close, with the log's end then."""
    clean, listed = SideFolder(files, root).read_clean(), listed_topics(files, root)
    if clean is None or listed is None:
        return {}
    if penstock_wrote_last(files, root, Progress(files, root).read().lock_mtime_ns):
        return {}
    gone = (topic for topic in clean.topics if topic not in listed and not is_system(topic))
    return dict.fromkeys(gone, clean.log_end)


def listed_topics(files: Files, root: Path) -> frozenset[str] | None:
    """Return the topics in the broker's list; None if there is no list, or it cannot be read.

    The `.bak` beside it is older, so it may lack a topic that is in use: it is not read.
    """
    path = root / "config" / "topics.json"
    if not files.exists(path):
        return None
    try:
        table = parse_rocketmq_json(files.read_whole(path, _SIZE_MAX).decode("utf-8-sig"))
    except (ValueError, OSError):
        return None
    topics = table.get("topicConfigTable")
    return frozenset(topics) if isinstance(topics, dict) else None


@attrs.frozen
class Recipe:
    """Everything a process needs to open a `StoreView`; it is sent to the process."""

    root: Path
    geometry: Geometry
    dispatchers: tuple[tuple[type[Dispatcher], Any], ...]

    @property
    def log_only(self) -> "Recipe":
        """The same without dispatchers."""
        return attrs.evolve(self, dispatchers=())


@attrs.frozen
class StoreView:
    """Log and dispatchers of a store that is not open, read-only. Not thread-safe."""

    context: Context
    log: SegmentedLog
    dispatchers: list[Dispatcher]

    @classmethod
    def open(cls, files: Files, recipe: Recipe) -> Self:
        """Return a view of the store's current files."""
        log = open_log(files, recipe.root, recipe.geometry)
        context = Context(
            root=recipe.root, files=files, clock=Clock(), geometry=recipe.geometry,
            spawn=refuse_background_work, read_only=True, log_min_offset=lambda: log.min_offset,
            read_history=lambda: read_deleted_topics(files, recipe.root),
        )  # fmt: skip
        made = cls(context, log, [kind(options, context) for kind, options in recipe.dispatchers])
        watch_coverage(files, recipe.root, log)
        use_entries(log, made.dispatchers)
        return made

    def begin_anew(self, root: Path, log: SegmentedLog, end: int = 0) -> list[Dispatcher]:
        """Return new instances of the same dispatchers, loaded, which write under another root.

        Args:
            root: the folder for their files.
            log: the log whose records they will get.
            end: records before this log offset are already in files under `root`.
        """
        queues = next((old for old in self.dispatchers if isinstance(old, QueueIndex)), None)
        context = attrs.evolve(
            self.context, root=root, read_only=False, spawn=refuse_background_work,
            log_min_offset=lambda: log.min_offset,
        )  # fmt: skip
        ranges = known_ranges(context.files, self.context.root, log)
        # A wrong entry may point anywhere.
        queued = min(queues.end_log_offset() if queues else 0, log.next_free_base())
        trust = Trust(
            log=RecoveredLog(log, max(end, queued)), durable_offset=end,
            is_clean=True, was_abnormal=False, survivors=queues,
            history=read_deleted_topics(context.files, self.context.root, ranges),
        )  # fmt: skip
        context.files.make_folder_durably(root / SIDE_FOLDER)
        news = [type(old)(old.options, context) for old in self.dispatchers]
        for new in news:
            new.load(trust)
        return news

    def close(self) -> None:
        """Close all files."""
        for dispatcher in self.dispatchers:
            dispatcher.close()
        self.log.close()


def open_log(files: Files, root: Path, geometry: Geometry) -> SegmentedLog:
    """Return a store's log for reading; its coverage is not set yet."""
    log = SegmentedLog(files, root / "commitlog", geometry.segment_bytes, mapped=False)
    log.refresh()
    return log


def refuse_background_work(name: str, step: object, wakes: object = None) -> Stoppable:
    """Raise; passed as `Context.spawn` for a store in which nothing may run in the background."""
    raise AssertionError(f"{name}: no background work in a store that is not opened")


class RebuildJournal:
    """The folder `penstock/repair` of one store. The caller holds the store's lock. Not thread-safe."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._folder = root / SIDE_FOLDER / "repair"
        self.new = self._folder / "new"
        self.parts = self._folder / "parts"
        self._ready = self._folder / "ready"
        # The paths of the files that this run has moved out of the store, by their name in the store.
        self._moved: dict[str, Path] = {}
        self.saved = Path()

    def is_begun(self) -> bool:
        """Return whether a repair was begun and not ended."""
        return self._files.exists(self._folder)

    def begin(self) -> None:
        """Create the journal, or continue an existing one; finishes a swap that was ready."""
        journal = self._folder / "journal"
        saved_root = self._root / SIDE_FOLDER / "saved"
        name = self._read(journal).get("saved")
        if not (isinstance(name, str) and _SAVED.fullmatch(name)):
            number = 1
            while self._files.exists(saved_root / f"repair-{number}"):
                number += 1
            name = f"repair-{number}"
            self._files.make_folder_durably(self._folder)
            self._files.write_whole(journal, json.dumps({"saved": name}).encode())
        self.saved = saved_root / name
        ready = self._read(self._ready)
        noted_ns = ready.get("lock_mtime_ns")
        if isinstance(noted_ns, int) and penstock_wrote_last(self._files, self._root, noted_ns):
            self._swap(_names(ready.get("made")), _names(ready.get("gone")))
        self._clear()

    def finish(self) -> None:
        """Finish a swap that was ready, or delete the new files; called before the store is opened."""
        if self._files.exists(self._ready):
            self.begin()

    def _read(self, path: Path) -> dict[str, object]:
        try:
            found = json.loads(self._files.read_whole(path, 1 << 16))
        except (ValueError, OSError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def save_bytes(self, name: str, data: bytes) -> None:
        """Save bytes that will be overwritten; does not replace bytes saved before under the same name."""
        self._files.make_folder_durably(self.saved)
        if not self._files.exists(self.saved / name):
            self._files.write_whole(self.saved / name, data)

    def save_file(self, path: Path) -> None:
        """Move a file or a folder out of the store into the folder of saved files, durably."""
        target = self._free_name(path)
        self._files.rename(path, target)
        self._moved[path.name] = target
        self._files.sync_folder(path.parent)
        self._files.sync_folder(target.parent)

    def _free_name(self, path: Path) -> Path:
        """Return an unused path in the folder of saved files, and create its parent folder."""
        target = self.saved / path.relative_to(self._root)
        number = 1
        while self._files.exists(target):
            number += 1
            target = target.with_name(f"{path.name}-{number}")
        self._files.make_folder_durably(target.parent)
        return target

    def rebuild(self, view: StoreView, damages: list[tuple[int, int]], wrong: set[str]) -> None:
        """Rebuild the files of dispatchers from the valid records, and swap them in.

        Args:
            view: the dispatchers with the store's files, and the repaired log.
            damages: ranges of the log that are not valid records.
            wrong: names in the store's folder that are removed even if nothing replaces them.
        """
        log, olds = view.log, view.dispatchers
        news = view.begin_anew(self.new, log)
        for segment in log.segments:
            for part in walk_segment(log, segment):
                if isinstance(part, Valid) and len(part.columns):
                    for new in news:
                        new.dispatch(DispatchBatch(part.columns, part.start, part.stop))
        for new, old in zip(news, olds, strict=True):
            if isinstance(new, QueueIndex) and isinstance(old, QueueIndex):
                new.adopt(old, damages)
                for lone in old.lone_ends():
                    new.keep_end(lone)
            new.flush()
            new.close()
        self.put_in_place(wrong, [stray for old in olds for stray in old.strays()])

    def put_in_place(self, wrong: set[str], strays: Sequence[Path] = ()) -> bool:
        """Swap in the files in `new`, which are complete and durable; `wrong` as for `rebuild`.

        `strays` are unrelated files among the old ones: they are moved back to their paths. After a crash before
        that, they are in the folder of saved files. Returns whether all of them are back.
        """
        names = {e.name for e in self._files.entries(self.new)} - {SIDE_FOLDER}
        self._files.sync_folder(self.new)
        swap = {"made": sorted(names), "gone": sorted(wrong - names)}
        ready = {**swap, "lock_mtime_ns": lock_mtime_ns(self._files, self._root)}
        self._files.write_whole(self._ready, json.dumps(ready).encode())
        self._swap(swap["made"], swap["gone"])
        are_back = self._put_back(strays)
        try:
            self._clear()
        except OSError as error:
            # Everything is in place; the next open for writing deletes the rest.
            logger.warning(
                "%s could not be deleted; the next open for writing deletes it: %s",
                self._folder,
                error,
            )
        return are_back

    def _put_back(self, strays: Sequence[Path]) -> bool:
        """Move stray files back to their paths; returns whether all are there."""
        for path in strays:
            name, *below = path.relative_to(self._root).parts
            source = self._moved.get(name, self.saved / name).joinpath(*below)
            if not self._files.exists(source) or self._files.exists(path):
                continue
            try:
                self._files.make_folder_durably(path.parent)
                self._files.rename(source, path)
                self._files.sync_folder(path.parent)
                self._files.sync_folder(source.parent)
            except OSError as error:
                logger.warning(
                    "%s could not be moved back, it is at %s; move it yourself: %s",
                    path,
                    source,
                    error,
                )
        return all(self._files.exists(path) for path in strays)

    def _swap(self, made: list[str], gone: list[str]) -> None:
        """Replace the old files with the new ones; idempotent, also after a crash at any point."""
        for name in made:
            old, new = self._root / name, self.new / name
            if self._files.exists(new):
                if self._files.exists(old):
                    target = self._free_name(old)
                    # Directly one after the other: in between, other processes see neither the old nor the new files.
                    self._files.rename(old, target)
                    self._moved[name] = target
                    self._files.rename(new, old)
                    self._files.sync_folder(target.parent)
                else:
                    self._files.rename(new, old)
            self._files.sync_folder(self._root)
            self._files.sync_folder(self.new)
        for name in gone:
            if self._files.exists(self._root / name):
                self.save_file(self._root / name)

    def _clear(self) -> None:
        """Delete files that were built and not used."""
        if self._files.exists(self._ready):
            self._files.remove(self._ready)
            self._files.sync_folder(self._folder)
        if self._files.is_folder(self.new):
            self._remove_tree(self.new)
        try:
            if self._files.is_folder(self.parts):
                self._remove_tree(self.parts)
        except OSError as error:
            # Tasks of a run that has ended may still write there. Each run has its own folder.
            logger.warning(
                "%s could not be deleted yet, the next run retries it: %s", self.parts, error
            )

    def _remove_tree(self, folder: Path) -> None:
        for entry in self._files.entries(folder):
            if entry.is_folder:
                self._remove_tree(entry.path)
            else:
                self._files.remove(entry.path)
        self._files.remove_folder(folder)

    def forget_saved(self) -> None:
        """Delete the files that this repair has moved out of the store."""
        self._remove_tree(self.saved)
        self._files.sync_folder(self.saved.parent)

    def end(self) -> None:
        """Delete the journal: the repair is complete."""
        if self._files.is_folder(self._folder):
            self._clear()
            self._remove_tree(self._folder)
            self._files.sync_folder(self._root / SIDE_FOLDER)


def _names(value: object) -> list[str]:
    """Return the valid names in a list: plain names within the store's folder, without path components."""
    names = value if isinstance(value, list) else []
    plain = [name for name in names if isinstance(name, str) and Path(name).name == name]
    return [name for name in plain if name not in ("", "..", SIDE_FOLDER)]
