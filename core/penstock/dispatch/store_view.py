"""Log and dispatchers of a store that is not open, read-only, for verification and reindex.

Invariants:
    * No lock is taken, no file is mapped, nothing runs in the background.
    * Reads use the log ranges whose records end with a CRC of the whole record, and queue entries as evidence.
"""

from pathlib import Path
from typing import Any, Self

import attrs

from penstock.contracts import Context, Dispatcher, QueueIndex, Stoppable, Trust
from penstock.contracts.base import Geometry
from penstock.dispatch.deleted_topics import read_deleted_topics
from penstock.durability.written_ranges import known_ranges, watch_coverage
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.queue_evidence import use_entries
from penstock.log.resync import RecoveredLog
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import Clock


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
