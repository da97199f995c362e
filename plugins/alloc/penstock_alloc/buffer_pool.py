"""A small pool of reusable buffers, each the size of a segment."""

import mmap
import threading

from penstock.escape import get_logger
from penstock.files import Files

logger = get_logger(__name__)


class BufferPool:
    """Provides buffers; the buffer returned last is reused first, while its pages are still in cache.

    A buffer is created when it is first needed, so a store that rarely rolls uses one or two. Safe from any thread.
    """

    def __init__(self, files: Files, count: int, size: int, *, lock_memory: bool) -> None:
        self._files = files
        self._count = count
        self._size = size
        self._lock_memory = lock_memory
        self._free: list[mmap.mmap] = []
        self._made = 0
        self._guard = threading.Lock()

    @property
    def available(self) -> int:
        """The number of buffers that can be borrowed now."""
        return self._count - self._made + len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """Return a buffer; None if all are in use."""
        with self._guard:
            buffer = self._free.pop() if self._free else None
            is_made = buffer is None and self._made < self._count
            self._made += is_made
        if not is_made:
            return buffer
        buffer = self._files.memory(self._size)
        if self._lock_memory:
            self._keep_in_memory(buffer)
        return buffer

    def _keep_in_memory(self, buffer: mmap.mmap) -> None:
        try:
            self._files.lock_memory(buffer)
        except OSError as error:
            self._lock_memory = False
            logger.warning(
                "the transient pool's buffers cannot be locked into memory (%s) and may be swapped out; no data is "
                "affected. Raise the limit (ulimit -l, LimitMEMLOCK=) to %d KiB, or set "
                "write.transient-pool.lock_memory=false if that is acceptable",
                error, self._count * self._size // 1024,
            )  # fmt: skip

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a buffer to the pool."""
        with self._guard:
            self._free.append(buffer)

    def close(self) -> None:
        """Release all buffers that are not in use."""
        with self._guard:
            self._free.clear()
            self._made = self._count
