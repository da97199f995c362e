"""A file of a simulated disk in two versions: as programs see it, and as it is on the medium.

The version that programs see is a real file in memory, so reads, writes and mappings are those of the
system. The other version has the bytes that a power cut would leave. Pages of 4 KiB are copied from the first to
the second: all of them by a sync, any of them at any time by the system's write-back.

A page whose sync failed counts as written afterwards, although the medium has the old bytes, as in Linux
(Rebello and others, "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

import os
from collections.abc import Iterable
from random import Random

import attrs
import numpy as np

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@attrs.frozen
class Still:
    """A snapshot of a file or folder. `dirty` are the pages not yet written, `blocks` those with allocated space.

    `names` are the names that programs see in a folder, `durable_names` those on the medium: name to number.
    """

    number: int
    is_folder: bool
    seen: bytes
    durable: bytes
    dirty: tuple[int, ...]
    blocks: frozenset[int]
    mtime_ns: int
    durable_mtime_ns: int
    names: dict[str, int]
    durable_names: dict[str, int]


class Inode:
    """One file or folder. The caller of a method that changes it holds the disk's lock."""

    def __init__(self, number: int, *, is_folder: bool, mtime_ns: int) -> None:
        self.number = number
        self.is_folder = is_folder
        self.mtime_ns = self.durable_mtime_ns = mtime_ns
        self.names: dict[str, int] = {}
        self.durable_names: dict[str, int] = {}
        self.durable = b""
        self.is_locked = False
        # Pages with allocated space on the disk.
        self._blocks: set[int] = set()
        # The contents when they last counted as written, and the pages that were overwritten since.
        self._clean = b""
        self._touched: set[int] = set()
        self._memory = -1

    # --- what programs see

    def descriptor(self, flags: int) -> int:
        """Return a new descriptor of the contents."""
        if self._memory < 0:
            self._memory = os.memfd_create("simulated")
            _fill(self._memory, self._clean)
        return os.open(f"/proc/self/fd/{self._memory}", flags & ~os.O_NOFOLLOW)

    @property
    def seen(self) -> bytes:
        """The contents."""
        if self._memory < 0:
            return self._clean
        return os.pread(self._memory, os.fstat(self._memory).st_size, 0)

    @property
    def size(self) -> int:
        """Length of the contents in bytes."""
        return len(self._clean) if self._memory < 0 else os.fstat(self._memory).st_size

    @property
    def room(self) -> int:
        """Space on the disk that it uses, in bytes."""
        return len(self._blocks) * PAGE_BYTES

    def lacking(self, start: int, stop: int) -> int:
        """Return how many more bytes of space the range [start, stop) needs."""
        pages = _pages(start, stop)
        return sum(page not in self._blocks for page in pages) * PAGE_BYTES

    def allocate(self, start: int, stop: int) -> None:
        """Record that bytes [start, stop) have allocated space."""
        self._blocks.update(_pages(start, stop))

    def punch(self, start: int, stop: int) -> None:
        """Record that the complete pages of bytes [start, stop) have no space any more."""
        self._blocks.difference_update(range(-(-start // PAGE_BYTES), stop // PAGE_BYTES))

    def _check_blocks(self, seen: bytes, dirty: Iterable[int]) -> None:
        """Raise if a hole was written through a mapping, which would kill the process on a full disk."""
        for page in dirty:
            part = seen[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            assert page in self._blocks or not any(part), f"a store into a hole, at page {page}"

    def touch(self, start: int, stop: int) -> None:
        """Record that bytes [start, stop) were written, even if with the same content."""
        self._touched.update(_pages(start, stop))

    def dirty(self, seen: bytes | None = None) -> list[int]:
        """Return the dirty pages; writes through mappings are found by comparison."""
        seen = self.seen if seen is None else seen
        found = set(self._touched)
        if seen != self._clean:
            found |= _different(seen, self._clean)
        count = -(-len(seen) // PAGE_BYTES)
        return sorted(page for page in found if page < count)

    # --- to the medium

    def sync(self) -> None:
        """Write the contents to the medium: every dirty page, and the size."""
        seen = self.seen
        if self.durable == self._clean:
            self.durable = seen
        else:
            # Pages of a failed sync are not written, since they count as written.
            self.durable = with_pages(self.durable, seen, self.dirty(seen), len(seen))
        self._clean = seen
        self._touched.clear()

    def fail_sync(self, chance: Random) -> None:
        """Fail a sync: some pages reach the medium, and all count as written."""
        seen = self.seen
        pages = [page for page in self.dirty(seen) if chance.random() < 0.3]
        if pages:
            self.durable = with_pages(self.durable, seen, pages, len(self.durable))
        self._clean = seen
        self._touched.clear()

    def write_back(self, chance: Random) -> None:
        """Write some dirty pages to the medium, as the system does at any time."""
        seen = self.seen
        pages = [page for page in self.dirty(seen) if chance.random() < 0.5]
        if not pages:
            return
        size = max(len(self.durable), min(len(seen), (pages[-1] + 1) * PAGE_BYTES))
        self.durable = with_pages(self.durable, seen, pages, size)
        self._clean = with_pages(self._clean, seen, pages, max(len(self._clean), size))
        self._touched.difference_update(pages)

    # --- moments

    def still(self) -> Still:
        """Return a snapshot of the current state."""
        seen = self.seen
        dirty = tuple(self.dirty(seen))
        self._check_blocks(seen, dirty)
        return Still(
            self.number, self.is_folder, seen, self.durable, dirty, frozenset(self._blocks),
            self.mtime_ns, self.durable_mtime_ns, dict(self.names), dict(self.durable_names),
        )  # fmt: skip

    @classmethod
    def after_kill(cls, still: Still) -> "Inode":
        """Return the file after the death of the process only: dirty pages stay dirty."""
        made = cls(still.number, is_folder=still.is_folder, mtime_ns=still.mtime_ns)
        made.durable, made.durable_mtime_ns = still.durable, still.durable_mtime_ns
        made.names, made.durable_names = dict(still.names), dict(still.durable_names)
        made._clean, made._touched = still.seen, set(still.dirty)
        made._blocks = set(still.blocks)
        return made

    @classmethod
    def after_power_cut(cls, still: Still, content: bytes, mtime_ns: int) -> "Inode":
        """Return the file as on the medium; the caller sets the names of a folder."""
        made = cls(still.number, is_folder=still.is_folder, mtime_ns=mtime_ns)
        made.durable = made._clean = content
        # Allocated pages without content count as lost, which is the harder case.
        made._blocks = _different(content, b"")
        return made

    def __del__(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)


def with_pages(base: bytes, other: bytes, pages: Iterable[int], size: int) -> bytes:
    """Return `base` at length `size`, with some pages replaced by those of `other`."""
    made = bytearray(base[:size].ljust(size, b"\0"))
    for page in pages:
        start = page * PAGE_BYTES
        part = other[start : min(start + PAGE_BYTES, size)]
        made[start : start + len(part)] = part
    return bytes(made)


def _pages(start: int, stop: int) -> range:
    return range(start // PAGE_BYTES, -(-stop // PAGE_BYTES))


def _different(one: bytes, other: bytes) -> set[int]:
    """Return the pages in which two contents differ."""
    count = -(-max(len(one), len(other)) // PAGE_BYTES)
    size = count * PAGE_BYTES
    first, second = (
        np.frombuffer(data.ljust(size, b"\0"), np.uint8).reshape(count, PAGE_BYTES)
        for data in (one, other)
    )
    found = set(np.flatnonzero((first != second).any(axis=1)).tolist())
    # If the size changed, the pages after the shorter end differ, even if they are zero.
    if len(one) != len(other):
        found.update(range(min(len(one), len(other)) // PAGE_BYTES, count))
    return found


def _fill(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, len(data))
    for start in range(0, len(data), PAGE_BYTES):
        page = data[start : start + PAGE_BYTES]
        # Zero pages stay holes.
        if any(page):
            os.pwrite(descriptor, page, start)
