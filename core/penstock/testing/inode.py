"""A file of a simulated disk, twice: what the system shows of it, and what is on the medium.

The contents that programs see are a real file in memory, so that reads, writes and maps are the
system's own. Beside it stand the bytes that a power cut would leave. Pages of 4 KiB move from one to
the other: by a sync all of them, by the system's own write-back any of them at any time.

A page whose sync failed counts as written afterwards, though the medium has the old bytes, as Linux
does it (Rebello and others, "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
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
    """A file or folder at one moment. `dirty` are the pages that wait to be written, `blocks` those that have room.

    `names` are what a folder shows, `durable_names` what it has on the medium: name to number.
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
    """One file or folder. Whoever changes it holds the disk's lock."""

    def __init__(self, number: int, *, is_folder: bool, mtime_ns: int) -> None:
        self.number = number
        self.is_folder = is_folder
        self.mtime_ns = self.durable_mtime_ns = mtime_ns
        self.names: dict[str, int] = {}
        self.durable_names: dict[str, int] = {}
        self.durable = b""
        self.is_locked = False
        # Pages that have room on the disk.
        self._blocks: set[int] = set()
        # What the pages were when they last counted as written, and which were written over since.
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
        """Bytes of the disk that it takes."""
        return len(self._blocks) * PAGE_BYTES

    def lacking(self, start: int, stop: int) -> int:
        """Return how many bytes of room bytes [start, stop) lack."""
        pages = _pages(start, stop)
        return sum(page not in self._blocks for page in pages) * PAGE_BYTES

    def allocate(self, start: int, stop: int) -> None:
        """Note that bytes [start, stop) have room."""
        self._blocks.update(_pages(start, stop))

    def punch(self, start: int, stop: int) -> None:
        """Note that the whole pages of bytes [start, stop) have no room any more."""
        self._blocks.difference_update(range(-(-start // PAGE_BYTES), stop // PAGE_BYTES))

    def _check_blocks(self, seen: bytes, dirty: Iterable[int]) -> None:
        """Raise for stores that went into a hole: on a full disk they would have killed the process."""
        for page in dirty:
            piece = seen[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            assert page in self._blocks or not any(piece), f"a store into a hole, at page {page}"

    def touch(self, start: int, stop: int) -> None:
        """Note that bytes [start, stop) were written, if only with what they were."""
        self._touched.update(_pages(start, stop))

    def dirty(self, seen: bytes | None = None) -> list[int]:
        """Return the pages that wait to be written; stores into maps are found by comparing."""
        seen = self.seen if seen is None else seen
        found = set(self._touched)
        if seen != self._clean:
            found |= _different(seen, self._clean)
        count = -(-len(seen) // PAGE_BYTES)
        return sorted(page for page in found if page < count)

    # --- to the medium

    def sync(self) -> None:
        """Bring the contents to the medium: every dirty page, and the size."""
        seen = self.seen
        if self.durable == self._clean:
            self.durable = seen
        else:
            # Pages of a failed sync stay behind: they count as written.
            self.durable = with_pages(self.durable, seen, self.dirty(seen), len(seen))
        self._clean = seen
        self._touched.clear()

    def fail_sync(self, chance: Random) -> None:
        """Let a sync fail: some pages reach the medium, and all count as written."""
        seen = self.seen
        pages = [page for page in self.dirty(seen) if chance.random() < 0.3]
        if pages:
            self.durable = with_pages(self.durable, seen, pages, len(self.durable))
        self._clean = seen
        self._touched.clear()

    def write_back(self, chance: Random) -> None:
        """Bring some dirty pages to the medium, as the system does when it likes."""
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
        """Return what it is now."""
        seen = self.seen
        dirty = tuple(self.dirty(seen))
        self._check_blocks(seen, dirty)
        return Still(
            self.number, self.is_folder, seen, self.durable, dirty, frozenset(self._blocks),
            self.mtime_ns, self.durable_mtime_ns, dict(self.names), dict(self.durable_names),
        )  # fmt: skip

    @classmethod
    def after_kill(cls, still: Still) -> "Inode":
        """Return the file as it is when only the process died: what waits goes on waiting."""
        made = cls(still.number, is_folder=still.is_folder, mtime_ns=still.mtime_ns)
        made.durable, made.durable_mtime_ns = still.durable, still.durable_mtime_ns
        made.names, made.durable_names = dict(still.names), dict(still.durable_names)
        made._clean, made._touched = still.seen, set(still.dirty)
        made._blocks = set(still.blocks)
        return made

    @classmethod
    def after_power_cut(cls, still: Still, content: bytes, mtime_ns: int) -> "Inode":
        """Return the file as the medium has it; a folder's names are put in by the caller."""
        made = cls(still.number, is_folder=still.is_folder, mtime_ns=mtime_ns)
        made.durable = made._clean = content
        # What was allocated and holds nothing may have been lost: the harder case.
        made._blocks = _different(content, b"")
        return made

    def __del__(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)


def with_pages(base: bytes, other: bytes, pages: Iterable[int], size: int) -> bytes:
    """Return `base` at length `size` with some pages of `other` instead of its own."""
    made = bytearray(base[:size].ljust(size, b"\0"))
    for page in pages:
        start = page * PAGE_BYTES
        piece = other[start : min(start + PAGE_BYTES, size)]
        made[start : start + len(piece)] = piece
    return bytes(made)


def _pages(start: int, stop: int) -> range:
    return range(start // PAGE_BYTES, -(-stop // PAGE_BYTES))


def _different(one: bytes, other: bytes) -> set[int]:
    count = -(-max(len(one), len(other)) // PAGE_BYTES)
    size = count * PAGE_BYTES
    first, second = (
        np.frombuffer(data.ljust(size, b"\0"), np.uint8).reshape(count, PAGE_BYTES)
        for data in (one, other)
    )
    found = set(np.flatnonzero((first != second).any(axis=1)).tolist())
    # A size that changed is news, even where the new bytes are zero.
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
