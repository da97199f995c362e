"""The `recycle` allocator: reuses expired segments. Their blocks are written already, so syncs cost less.

An expired file is renamed into the side folder at once, durably. Only then is it overwritten with zeros and synced,
in the background. A file that was not completely overwritten is never reused, so no old record can reappear:
neither in Penstock nor in the Java store, which does not compare the stored log offset. A clean file is renamed, ahead
of its use, to the name of a future segment.

Side folder: `spare-<name>`. After a crash, files found there are overwritten again.
"""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Allocator, Context, Stoppable, limits
from penstock.escape import get_logger
from penstock.files import File
from penstock.format.names import SIDE_FOLDER
from penstock_alloc.ahead import Ahead
from penstock_alloc.fresh import make_file, remove_file

logger = get_logger(__name__)

_PREFIX = "spare-"
# Each takes the space of a segment.
SPARES_MAX = 65_536


@attrs.frozen(kw_only=True)
class RecycleOptions:
    """Options of recycling.

    Attributes:
        spares: maximum number of expired segments kept for reuse; each keeps its disk space.
        timeout_ms: maximum time that a put waits for the creation of the file that it needs; then it raises `BusyError`.
    """

    spares: int = attrs.field(default=4, validator=limits(1, SPARES_MAX))
    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class RecycleAllocator(Allocator):
    """Reuses expired segments, and creates new ones ahead as long as there are none."""

    name: ClassVar[str] = "recycle"
    Options: ClassVar[type] = RecycleOptions
    capabilities: ClassVar[frozenset[str]] = frozenset({"ahead", "recycles"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._files = context.files
        self._folder = context.root / SIDE_FOLDER
        self._ahead = Ahead(self._make, options.timeout_ms)
        self._worker: Stoppable | None = None
        self._guard = threading.Lock()
        self._used: list[Path] = []
        self._clean: list[Path] = []
        self._recycled = 0

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        """See `Allocator`."""
        if self._worker is None:
            self._load_leftovers(size)
            self._worker = self.context.spawn("penstock-allocate", self._step)
        if self._ahead.order(paths, size, allocated=allocated):
            self._worker.wake()

    def _load_leftovers(self, size: int) -> None:
        for entry in self._files.entries(self._folder):
            if entry.name.startswith(_PREFIX) and entry.is_file:
                if entry.size == size:
                    self._used.append(entry.path)
                else:
                    remove_file(self._files, entry.path)

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """See `Allocator`."""
        return self._ahead.obtain(path, size, allocated=allocated)

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
        if self._worker is not None:
            self._worker.wake()

    # --- in the background

    def _step(self) -> float | None:
        self._ahead.work()
        while self._used:
            self._overwrite(self._used[0])
            self._ahead.work()
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
        file = self._files.open(spare, writable=True)
        try:
            file.renew()
        finally:
            file.close()

    def _make(self, path: Path, size: int, allocated: bool) -> File:
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
        """See `Strategy`."""
        return {
            "files_ready": self._ahead.ready,
            "spares": len(self._used) + len(self._clean),
            "segments_recycled": self._recycled,
        }

    def close(self) -> None:
        """Stop the background work, and remove created files that were not obtained."""
        if self._worker is not None:
            self._worker.stop()
        for file in self._ahead.close():
            file.close()
            remove_file(self._files, file.path)
        for spare in (*self._used, *self._clean):
            if self._files.exists(spare):
                remove_file(self._files, spare)
        self._used.clear()
        self._clean.clear()
