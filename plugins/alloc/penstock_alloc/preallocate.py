"""The `preallocate` allocator: creates the next two segments in the background and brings their pages into memory.

Corresponds to RocketMQ's AllocateMappedFileService and warm-up (spec sections 9.2 and 9.3). The files have their
final names, as RocketMQ's do, so a running store has up to two files of zeros after its last segment. A clean close
removes them; after a crash the next open does. All their blocks are allocated, whether the writer needs that or not.
"""

import functools
import mmap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Allocator, Context, Stoppable, limits
from penstock.escape import get_logger
from penstock.files import File
from penstock_alloc.ahead import Ahead
from penstock_alloc.fresh import make_file, remove_file

logger = get_logger(__name__)


@attrs.frozen(kw_only=True)
class PreallocateOptions:
    """Options of preallocation.

    Attributes:
        prefault: bring a new file's pages into memory before the first write, so that the write causes no page
            fault. Under a flush policy that waits, the pages are synced as well, so that its syncs find
            written blocks.
        lock_memory: keep the map of a segment out of swap until the segment is full (`mlock`).
        timeout_ms: maximum time that a put waits for the creation of the file that it needs; then it raises `BusyError`.
    """

    prefault: bool = True
    lock_memory: bool = False
    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class PreallocateAllocator(Allocator):
    """Creates segments ahead, so a roll needs no system call; uses disk space for up to two more segments."""

    name: ClassVar[str] = "preallocate"
    Options: ClassVar[type] = PreallocateOptions
    capabilities: ClassVar[frozenset[str]] = frozenset({"ahead"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._ahead = Ahead(self._make, options.timeout_ms)
        self._worker: Stoppable | None = None
        self._prefaults = bool(options.prefault)
        self._locks = bool(options.lock_memory)
        self._locked: dict[Path, mmap.mmap] = {}
        self._warning_lock, self._has_warned = threading.Lock(), False
        self._full: list[Path] = []

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        """See `Allocator`."""
        if self._worker is None:
            self._worker = self.context.spawn("penstock-allocate", self._step)
        if self._ahead.order(paths, size, allocated=allocated):
            self._worker.wake()

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """See `Allocator`."""
        return self._ahead.obtain(path, size, allocated=allocated)

    def sealed(self, path: Path) -> None:
        """Unlock the pages of a full segment, in the background."""
        if path in self._locked:
            self._full.append(path)
            if self._worker is not None:
                self._worker.wake()

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        """See `Allocator`."""
        self._locked.pop(path, None)
        remove_file(self.context.files, path)

    def _step(self) -> float | None:
        while self._full:
            memory = self._locked.pop(self._full.pop(), None)
            if memory is not None:
                self.context.files.unlock_memory(memory)
        self._ahead.work()
        return None

    def _make(self, path: Path, size: int, allocated: bool) -> File:
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
                    "new segments are no longer prefaulted or locked into memory: %s. No data is affected. Locking needs "
                    "room under ulimit -l, prefaulting needs Linux 5.14", error,
                )  # fmt: skip
            self._prefaults = self._locks = False

    def stats(self) -> dict[str, int]:
        """See `Strategy`."""
        return {"files_ready": self._ahead.ready, "segments_locked": len(self._locked)}

    def close(self) -> None:
        """Stop the background work, and remove created files that were not obtained."""
        if self._worker is not None:
            self._worker.stop()
        for file in self._ahead.close():
            file.close()
            remove_file(self.context.files, file.path)
        self._locked.clear()
