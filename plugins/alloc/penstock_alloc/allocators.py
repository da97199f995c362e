"""The built-in allocators: create segments' files, complete and durable or not at all, and remove expired ones.

* `on-demand` creates a segment when it is needed.
* `preallocate` creates the next two segments in the background and brings their pages into memory; RocketMQ's
  AllocateMappedFileService and warm-up (spec sections 9.2 and 9.3). The files have their final names, as RocketMQ's do,
  so a running store has up to two files of zeros after its last segment. A clean close removes them; after a crash the
  next open does. All their blocks are allocated, whether the writer needs that or not.
* `recycle` reuses expired segments. Their blocks are written already, so syncs cost less. An expired file is renamed
  into the side folder at once, durably, as `spare-<name>`. Only then is it overwritten with zeros and synced, in the
  background. A file that was not completely overwritten is never reused, so no old record can reappear: neither in
  Penstock nor in the Java store, which does not compare the stored log offset. After a crash, spare files are
  overwritten again. A clean file is renamed, ahead of its use, to the name of a future segment.
"""

import contextlib
import functools
import mmap
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Allocator, Context, Stoppable, limits
from penstock.errors import BusyError
from penstock.escape import get_logger
from penstock.files import File, Files
from penstock.format.names import SIDE_FOLDER

logger = get_logger(__name__)

_PREFIX = "spare-"
# Each takes the space of a segment.
SPARES_MAX = 65_536


def make_file(
    files: Files,
    root: Path,
    path: Path,
    size: int,
    *,
    allocated: bool,
    prepare: Callable[[File], None] = lambda _: None,
) -> File:
    """Return a new file of `size` zero bytes, durable as `path`; after an `OSError` no part of it is left.

    The file is created under another name in the side folder and renamed. `prepare` gets it before it is synced.
    """
    fresh = root / SIDE_FOLDER / f"new-{path.name}"
    if files.exists(fresh):
        files.remove(fresh)
    file = files.create(fresh)
    is_named = False
    try:
        if allocated:
            file.allocate(size)
        else:
            file.resize(size)
        prepare(file)
        file.sync_all()
        files.rename(fresh, path)
        is_named = True
        files.sync_folder(path.parent)
    except OSError:
        file.close()
        # Never remove a file that was at `path` before: it may be in use.
        name = path if is_named else fresh
        if files.exists(name):
            files.remove(name)
        raise
    file.path = path
    return file


def remove_file(files: Files, path: Path) -> None:
    """Remove a file durably."""
    files.remove(path)
    files.sync_folder(path.parent)


class OnDemandAllocator(Allocator):
    """Creates each file when an append needs it; that append waits for it."""

    name: ClassVar[str] = "on-demand"

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        return make_file(self.context.files, self.context.root, path, size, allocated=allocated)

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        remove_file(self.context.files, path)


@attrs.define
class Order:
    """One ordered file: `size` bytes, with all its blocks allocated if `allocated`."""

    size: int
    allocated: bool
    is_begun: bool = False
    file: File | None = None


class AheadAllocator(Allocator):
    """Creates files in the background before they are needed. Safe from any thread.

    Orders are processed in file name order, which is offset order: the file needed first comes first. If a file is
    needed and its creation has not begun, the caller creates it. If its creation is in progress, the caller waits, up
    to a limit. A failed order is dropped: the caller that needs the file tries again, and gets the current error.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"ahead"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._files = context.files
        self._orders: dict[Path, Order] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._worker: Stoppable | None = None

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        if self._worker is None:
            self._worker = self.context.spawn("penstock-allocate", self.step)
        with self._changed:
            for path in paths:
                if path not in self._orders and not self._is_closed:
                    self._orders[path] = Order(size, allocated)
            is_waiting = any(not order.is_begun for order in self._orders.values())
        if is_waiting:
            self._worker.wake()

    def _wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    def step(self) -> float | None:
        """Create the ordered files; the worker's step."""
        self._create_ordered()
        return None

    def _create_ordered(self) -> None:
        """Create the ordered files one by one until no order is left."""
        while True:
            with self._changed:
                waiting = [path for path, order in self._orders.items() if not order.is_begun]
                if not waiting or self._is_closed:
                    return
                path = min(waiting)
                order = self._orders[path]
                order.is_begun = True
            try:
                order.file = self.create(path, order.size, allocated=order.allocated)
            except OSError:
                with self._changed:
                    self._orders.pop(path, None)
                    self._changed.notify_all()
                return
            with self._changed:
                self._changed.notify_all()

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Return the file at `path`: already created, waited for, or created now.

        Raises `BusyError` if its creation in the background takes longer than the limit.
        """
        with self._changed:
            order = self._orders.get(path)
            if order is not None and order.is_begun:
                done = self._changed.wait_for(
                    lambda: order.file is not None or path not in self._orders,
                    self.options.timeout_ms / 1000,
                )
                if not done:
                    raise BusyError(
                        f"the next segment {path.name} has not been ready", self.options.timeout_ms
                    )
            self._orders.pop(path, None)
        if order is not None and order.file is not None:
            return order.file
        return self.create(path, size, allocated=allocated)

    @abstractmethod
    def create(self, path: Path, size: int, *, allocated: bool) -> File:
        """Create one file."""

    def stats(self) -> dict[str, int]:
        return {"files_ready": sum(o.file is not None for o in list(self._orders.values()))}

    def close(self) -> None:
        """Stop the background work, and remove created files that were not obtained, the last one first.

        This order leaves no gap between segments, even if the process dies in between.
        """
        if self._worker is not None:
            self._worker.stop()
        with self._changed:
            self._is_closed = True
            orders = [self._orders[path] for path in sorted(self._orders, reverse=True)]
            self._orders.clear()
        for file in (order.file for order in orders if order.file is not None):
            file.close()
            remove_file(self._files, file.path)


@attrs.frozen(kw_only=True)
class PreallocateOptions:
    """Options of preallocation.

    Attributes:
        prefault: bring a new file's pages into memory before the first write, so that the write causes no page fault.
            Under a flush policy that waits, the pages are synced as well, so that its syncs find written blocks.
        lock_memory: keep the map of a segment out of swap until the segment is full (`mlock`).
        timeout_ms: maximum time that a put waits for the creation of its file; then it raises `BusyError`.
    """

    prefault: bool = True
    lock_memory: bool = False
    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class PreallocateAllocator(AheadAllocator):
    """Creates segments ahead, so a roll needs no system call; uses disk space for up to two more segments."""

    name: ClassVar[str] = "preallocate"
    Options: ClassVar[type] = PreallocateOptions

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._prefaults = bool(options.prefault)
        self._locks = bool(options.lock_memory)
        self._locked: dict[Path, mmap.mmap] = {}
        self._warning_lock, self._has_warned = threading.Lock(), False
        self._full: list[Path] = []

    def sealed(self, path: Path) -> None:
        """Unlock the pages of a full segment, in the background."""
        if path in self._locked:
            self._full.append(path)
            self._wake()

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        self._locked.pop(path, None)
        remove_file(self.context.files, path)

    def step(self) -> float | None:
        while self._full:
            memory = self._locked.pop(self._full.pop(), None)
            if memory is not None:
                self.context.files.unlock_memory(memory)
        self._create_ordered()
        return None

    def create(self, path: Path, size: int, *, allocated: bool) -> File:
        files, root = self.context.files, self.context.root
        if not self._prefaults:
            return make_file(files, root, path, size, allocated=True)
        if self.context.appenders_wait:
            # Synced as zeros now; otherwise the first sync of a put would have to write them all.
            prepare = functools.partial(self._prefault, path)
            return make_file(files, root, path, size, allocated=True, prepare=prepare)
        file = make_file(files, root, path, size, allocated=True)
        self._prefault(path, file)
        return file

    def _prefault(self, path: Path, file: File) -> None:
        """Bring in the pages of the future `path`; if the system cannot, log that once and continue without."""
        try:
            memory = file.prefault(file.size)
            if self._locks:
                self.context.files.lock_memory(memory)
                self._locked[path] = memory
        except OSError as error:
            # Two files may be created at once: one by this thread, one in the background.
            with self._warning_lock:
                was_warned, self._has_warned = self._has_warned, True
            if not was_warned:
                logger.warning(
                    "new segments are no longer prefaulted or locked into memory: %s. No data is affected. Locking "
                    "needs room under ulimit -l, prefaulting needs Linux 5.14", error,
                )  # fmt: skip
            self._prefaults = self._locks = False

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "segments_locked": len(self._locked)}

    def close(self) -> None:
        super().close()
        self._locked.clear()


@attrs.frozen(kw_only=True)
class RecycleOptions:
    """Options of recycling.

    Attributes:
        spares: maximum number of expired segments kept for reuse; each keeps its disk space.
        timeout_ms: maximum time that a put waits for the creation of its file; then it raises `BusyError`.
    """

    spares: int = attrs.field(default=4, validator=limits(1, SPARES_MAX))
    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class RecycleAllocator(AheadAllocator):
    """Reuses expired segments, and creates new ones ahead as long as there are none."""

    name: ClassVar[str] = "recycle"
    Options: ClassVar[type] = RecycleOptions
    capabilities: ClassVar[frozenset[str]] = frozenset({"ahead", "recycles"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._folder = context.root / SIDE_FOLDER
        self._guard = threading.Lock()
        self._used: list[Path] = []
        self._clean: list[Path] = []
        self._recycled = 0

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        if self._worker is None:
            self._load_leftovers(size)
        super().expect(paths, size, allocated=allocated)

    def _load_leftovers(self, size: int) -> None:
        for entry in self._files.entries(self._folder):
            if entry.name.startswith(_PREFIX) and entry.is_file:
                if entry.size == size:
                    self._used.append(entry.path)
                else:
                    remove_file(self._files, entry.path)

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        """Rename the file away for reuse; remove it if it must not be reused, or enough files are kept."""
        with self._guard:
            is_kept = not in_use and len(self._used) + len(self._clean) < self.options.spares
        # If the file has a second name, overwriting it would destroy a backup made of hard links.
        if not is_kept or self._files.has_other_names(path):
            remove_file(self._files, path)
            return
        spare = self._folder / f"{_PREFIX}{path.name}"
        self._files.rename(path, spare)
        # The old name must be durably gone before the first byte of the file changes.
        self._files.sync_folder(path.parent)
        self._files.sync_folder(self._folder)
        with self._guard:
            self._used.append(spare)
        self._wake()

    # --- in the background

    def step(self) -> float | None:
        self._create_ordered()
        while self._used:
            self._overwrite(self._used[0])
            self._create_ordered()
        return None

    def _overwrite(self, spare: Path) -> None:
        """Fill a used file with zeros, durably; remove it if that fails."""
        try:
            self._fill_with_zeros(spare)
        except OSError as error:
            logger.warning("%s is removed instead of reused; no data is affected: %s", spare, error)
            with contextlib.suppress(OSError):
                remove_file(self._files, spare)
            with self._guard:
                self._used.remove(spare)
            return
        with self._guard:
            self._used.remove(spare)
            self._clean.append(spare)

    def _fill_with_zeros(self, spare: Path) -> None:
        with self._files.open(spare, writable=True) as file:
            file.renew()

    def create(self, path: Path, size: int, *, allocated: bool) -> File:
        with self._guard:
            spare = self._clean.pop(0) if self._clean else None
        if spare is None:
            return make_file(self._files, self.context.root, path, size, allocated=True)
        file = self._files.open(spare, writable=True)
        try:
            self._files.rename(spare, path)
            self._files.sync_folder(path.parent)
        except OSError:
            file.close()
            for name in (spare, path):
                if self._files.exists(name):
                    self._files.remove(name)
            raise
        file.path = path
        # Completely overwritten, so it has all its blocks, and its pages are in memory.
        file.allocated, file.is_populated = size, True
        self._recycled += 1
        return file

    def stats(self) -> dict[str, int]:
        return {
            **super().stats(),
            "spares": len(self._used) + len(self._clean),
            "segments_recycled": self._recycled,
        }

    def close(self) -> None:
        """See `AheadAllocator`; also remove the spare files."""
        super().close()
        for spare in (*self._used, *self._clean):
            if self._files.exists(spare):
                remove_file(self._files, spare)
        self._used.clear()
        self._clean.clear()
