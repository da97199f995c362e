"""What tests of stores and strategies are made of: a context, small stores, a log with known records."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.config import model as configuration
from penstock.contracts import Context, Strategy
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.geometry import Geometry
from penstock.durability.progress import Progress
from penstock.durability.side_folder import lock_ctime_ns, lock_inode
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.log_view import RecoveredLog
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.plugins.registry import Registry, load_registry
from penstock.store.open import Opener
from penstock.store.store import Store
from penstock.testing.control import ManualClock, ManualWorkers

# So often a folder is copied anew when a file of it goes meanwhile.
_TRIES = 20
# Small files, so that logs, queues and index roll within a test.
SMALL = Geometry(segment_bytes=64 * 1024, queue_entries=200, index_slots=100, index_entries=400)


def make_context(root: Path, **changes: Any) -> Context:
    """Return a context as the kernel lends it: small geometry, a clock and threads that obey."""
    given = {
        "root": root, "files": Files(), "clock": ManualClock(), "geometry": SMALL,
        "spawn": ManualWorkers(), **changes,
    }  # fmt: skip
    given["files"].make_folder_durably(root / SIDE_FOLDER)
    given["files"].make_folder_durably(root / "commitlog")
    return Context(**given)


def registry_with(strategies: Iterable[type[Strategy]]) -> Registry:
    """Return the installed strategies, with these classes beside or instead of those of their names."""
    registry = load_registry()
    for cls in strategies:
        for each in registry.sets().values():
            if issubclass(cls, each.contract):
                each.replace(cls, "under-test")
    return registry


def open_store(
    path: Path,
    *,
    strategies: Sequence[type[Strategy]] = (),
    files: Files | None = None,
    clock: ManualClock | None = None,
    spawn: ManualWorkers | None = None,
    read_only: bool = False,
    **settings: Any,
) -> Store:
    """Open a store with small files; strategies need not be installed. `settings` as `penstock.open`.

    The environment is not looked at. Without `spawn` it has real threads.
    """
    registry = registry_with(strategies)
    sizes = {f"geometry.{name}": size for name, size in attrs.asdict(SMALL).items()}
    given = configuration.gather(None, {}, {**sizes, **settings})
    config = configuration.build(given, registry)
    opener = Opener(path, config, registry, files or Files(), clock or ManualClock(), spawn)
    return opener.open_for_reading() if read_only else opener.open_for_writing()


def messages(count: int, *, first: int = 0, body_bytes: int = 100) -> list[Message]:
    """Return messages of two topics, three queues each, some with tags, keys and odd bodies.

    The body of each begins with its number, so it can be told apart.
    """
    made = []
    for number in range(first, first + count):
        size = number * 37 % (2 * body_bytes)
        body = f"{number}:".encode() + bytes([number % 256]) * size
        made.append(Message(
            f"topic-{number % 2}", body, queue=number % 3, tag=("", "red", "blue")[number % 3],
            keys=[f"key-{number % 50}", f"only-{number}"] if number % 4 else [],
            properties={"n": str(number)},
        ))  # fmt: skip
    return made


def copy_files(source: Path, target: Path) -> Path:
    """Copy a folder that a store may be writing; returns the copy.

    What is made beside its place is gone when it is put there: where a file goes meanwhile, all is copied anew.
    """
    for left in reversed(range(_TRIES)):
        try:
            return Path(shutil.copytree(source, target, copy_function=shutil.copy2))
        except shutil.Error as error:
            if left == 0 or not all("[Errno 2]" in why for _, _, why in error.args[0]):
                raise
            shutil.rmtree(target)
    raise AssertionError


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store so that the copy stands for it, as if it had crashed now; returns the copy.

    File times stay. The marks of a mere copy are not believed: it may have been taken file by file.
    """
    copy_files(source, target)
    progress = Progress(Files(), target)
    if progress.read().lock_ctime_ns:
        progress.state.lock_ctime_ns = lock_ctime_ns(Files(), target)
        progress.state.lock_inode = lock_inode(Files(), target)
        progress.write()
        progress.close()
    return target


class WrittenLog:
    """A log of known records in a folder of its own, as a dispatcher's tests need it.

    Two logs have the same first `alike` records, if that is given, and others after them.
    """

    def __init__(self, root: Path, count: int = 1500, *, alike: int | None = None) -> None:
        same = count if alike is None else alike
        with open_store(root, retention=[]) as store:
            sent = messages(same) + messages(count - same, first=6000 + same)
            for start in range(0, count, 100):
                store.put_many(sent[start : start + 100])
            self.sent = sent
            end = store.stats()["log_end_offset"]
        self._log = SegmentedLog(Files(), root / "commitlog", SMALL.segment_bytes, mapped=True)
        self._log.load(repair=False)
        self.view = RecoveredLog(self._log, end)

    def lose_head(self, segments: int) -> None:
        """Take the oldest segments away, as retention does."""
        for segment in self._log.segments[:segments]:
            segment.path.unlink()
        self._log.load(repair=False)

    def ending_at(self, log_offset: int) -> RecoveredLog:
        """Return a view of the log as if it ended there, which must be a record's end or the log's begin."""
        return RecoveredLog(self._log, log_offset)

    @property
    def end_offset(self) -> int:
        """Log offset behind the last record."""
        return self.view.end_offset

    def batches(self, start: int = 0, stop: int | None = None) -> list[DispatchBatch]:
        """Return the records of [start, stop), a batch a segment; `start` must begin a record."""
        first = max(start, self.view.min_offset)
        return list(self.view.batches(first, self.end_offset if stop is None else stop))

    def offsets(self) -> list[int]:
        """Return the log offset of every record."""
        return [int(offset) for batch in self.batches() for offset in batch.log_offsets]
