"""Building blocks for tests: a clock and workers under control, a context, small stores, a log of known records."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.config import sources
from penstock.config.sources import build_config
from penstock.contracts import CheckBacks, Context, Strategy
from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import DispatchBatch
from penstock.durability.progress import Progress
from penstock.durability.side_folder import lock_ctime_ns, lock_inode
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.resync import RecoveredLog
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.plugins.registry import Registry, load_registry
from penstock.runtime.clock import Clock
from penstock.store.open import Opener
from penstock.store.store import Store


class ManualClock(Clock):
    """A clock that does not advance until the test sets it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def time_ms(self) -> int:
        """Return the time it was set to."""
        return self.now_ms

    def monotonic_ms(self) -> int:
        """Return the time it was set to."""
        return self.now_ms

    def monotonic_ns(self) -> int:
        """Return the time it was set to."""
        return self.now_ms * 1_000_000

    def thread_ns(self) -> int:
        """Return the time it was set to, so that work takes no CPU time."""
        return self.monotonic_ns()


class ManualWorker:
    """A background worker that never runs by itself."""

    def __init__(self, step: Callable[[], float | None]) -> None:
        self.step = step
        self.is_awake = False

    def wake(self) -> None:
        """Record that the worker was woken."""
        self.is_awake = True

    def stop(self) -> None:
        """Do nothing: the worker never runs by itself."""


class ManualWorkers:
    """Creates workers that run only when the test runs them; pass it to a store as `spawn`."""

    _worker: type[ManualWorker] = ManualWorker

    def __init__(self) -> None:
        self.by_name: dict[str, ManualWorker] = {}

    def __call__(
        self, name: str, step: Callable[[], float | None], wakes: object = None
    ) -> ManualWorker:
        """Create a worker; nothing wakes it but the test."""
        self.by_name[name] = self._worker(step)
        return self.by_name[name]

    def run(self, name: str) -> float | None:
        """Run one step of one worker."""
        return self.by_name[name].step()

    def run_all(self) -> None:
        """Run one step of each worker."""
        for worker in list(self.by_name.values()):
            worker.step()


class InlineWorker(ManualWorker):
    """A worker that runs its step in the thread that wakes it."""

    _is_running = False

    def wake(self) -> None:
        """Run the step now, unless it is already running."""
        if not self._is_running:
            self._is_running = True
            try:
                self.step()
            finally:
                self._is_running = False


class InlineWorkers(ManualWorkers):
    """Creates workers without threads, which run at once when woken, so that a story is deterministic."""

    _worker = InlineWorker


# How often the copy of a folder is retried if a file is deleted meanwhile.
_TRIES = 20
# Small files, so that logs, queues and index roll within a test.
SMALL = Geometry(segment_bytes=64 * 1024, queue_entries=200, index_slots=100, index_entries=400)


def make_context(root: Path, **changes: Any) -> Context:
    """Return a context as the kernel provides it, with small files, a `ManualClock` and `ManualWorkers`."""
    given = {
        "root": root, "files": Files(), "clock": ManualClock(), "geometry": SMALL,
        "spawn": ManualWorkers(), **changes,
    }  # fmt: skip
    given["files"].make_folder_durably(root / SIDE_FOLDER)
    given["files"].make_folder_durably(root / "commitlog")
    return Context(**given)


def registry_with(strategies: Iterable[type[Strategy]]) -> Registry:
    """Return the installed strategies, with these classes added, or in place of those with the same name."""
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
    check_back: CheckBacks | None = None,
    **settings: Any,
) -> Store:
    """Open a store with small files; strategies need not be installed. `settings` are as for `penstock.open`.

    Ignores environment variables. Without `spawn` the store has real threads.
    """
    registry = registry_with(strategies)
    sizes = {f"geometry.{name}": size for name, size in attrs.asdict(SMALL).items()}
    given = sources.gather(None, {}, {**sizes, **settings})
    config = build_config(given, registry)
    opener = Opener(path, config, registry, files or Files(), clock or ManualClock(), spawn)
    if check_back is not None:
        opener.take_callback("check_back", check_back)
    return opener.open_for_reading() if read_only else opener.open_for_writing()


def messages(count: int, *, first: int = 0, body_bytes: int = 100) -> list[Message]:
    """Return messages of two topics with three queues each; some have tags and keys, and body sizes vary.

    The body of each message begins with its number, which identifies it.
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

    A temporary file disappears when the store renames it: if a file is deleted meanwhile, the copy starts again.
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
    """Copy a store so that the copy is in the state of the store after a crash now; returns the copy.

    Keeps file times. Sets the progress file to the copy's lock file, since a store does not trust the metadata of a
    plain copy, whose files may have been copied at different times.
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
    """A log of known records in its own folder, for tests of dispatchers.

    Two logs with the same `alike` have equal records up to that number, and different ones after it.
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
        """Delete the oldest segments, as retention does."""
        for segment in self._log.segments[:segments]:
            segment.path.unlink()
        self._log.load(repair=False)

    def ending_at(self, log_offset: int) -> RecoveredLog:
        """Return a view of the log that ends at a log offset, which must be a record's end or the log's start."""
        return RecoveredLog(self._log, log_offset)

    @property
    def end_offset(self) -> int:
        """Log offset after the last record."""
        return self.view.end_offset

    def batches(self, start: int = 0, stop: int | None = None) -> list[DispatchBatch]:
        """Return the records of [start, stop), one batch per segment; a record must begin at `start`."""
        first = max(start, self.view.min_offset)
        return list(self.view.batches(first, self.end_offset if stop is None else stop))

    def offsets(self) -> list[int]:
        """Return the log offset of every record."""
        return [int(offset) for batch in self.batches() for offset in batch.log_offsets]
