"""The files and folders of a simulated disk in two versions: as programs see them, and as they are on the medium.

The version that programs see is a real file in memory, so reads, writes and mappings are those of the
system. The other version has the bytes that a power cut would leave. Pages of 4 KiB are copied from the first to
the second: all of them by a sync, any of them at any time by the system's write-back.

A page whose sync failed counts as written afterwards, although the medium has the old bytes, as in Linux
(Rebello and others, "Can Applications Recover from fsync Failures?", USENIX ATC 2020).

Names are as volatile as bytes: each change of a folder is pending until that folder is synced. Until then, each
change may survive or be lost independently of others, except that a rename is atomic, and a change survives only if
the earlier ones that it depends on do.
"""

import os
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from random import Random

import attrs

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
            assert page in self._blocks or part.count(0) == len(part), (
                f"a store into a hole, at page {page}"
            )

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

    def sync(self) -> bool:
        """Write the contents to the medium: every dirty page, and the size; return whether anything was dirty."""
        seen = self.seen
        was_dirty = bool(self._touched) or seen != self._clean
        if self.durable == self._clean:
            self.durable = seen
        else:
            # Pages of a failed sync are not written, since they count as written.
            self.durable = with_pages(self.durable, seen, self.dirty(seen), len(seen))
        self._clean = seen
        self._touched.clear()
        return was_dirty

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
    """Return the pages in which two contents differ; if the sizes do, those after the shorter end, even if zero."""
    pages = _pages(0, max(len(one), len(other)))
    same_size = len(pages) if len(one) == len(other) else min(len(one), len(other)) // PAGE_BYTES
    return {
        page for page in pages
        if page >= same_size or one[(at := page * PAGE_BYTES) : at + PAGE_BYTES] != other[at : at + PAGE_BYTES]
    }  # fmt: skip


def _fill(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, len(data))
    for start in range(0, len(data), PAGE_BYTES):
        page = data[start : start + PAGE_BYTES]
        # Zero pages stay holes.
        if page.count(0) < len(page):
            os.pwrite(descriptor, page, start)


ROOT = 1
_NOTHING = 0


class Survival(Enum):
    """The bytes that survive a crash.

    `PROCESS`: only the process died; everything passed to the system survives. The others are power cuts: `NONE` of
    the unsynced pages reached the medium; `ALL` of them did; any subset of the `PAGES` did; the same with pages torn at
    512-byte `SECTORS`; or each file up to some `BYTE`, in the order of its bytes.
    """

    PROCESS = "process"
    NONE = "none"
    ALL = "all"
    PAGES = "pages"
    SECTORS = "sectors"
    BYTE = "byte"


@attrs.frozen
class NameChange:
    """A pending change of names: its steps are (folder, name, number of the file, or 0 if the name is removed)."""

    steps: tuple[tuple[int, str, int], ...]
    inode: int

    def needs(self, earlier: "NameChange") -> bool:
        """Return whether this change depends on an earlier one."""
        names = {(folder, name) for folder, name, _ in self.steps}
        return self.inode == earlier.inode or any(
            (folder, name) in names for folder, name, _ in earlier.steps
        )


@attrs.frozen
class Image:
    """A snapshot of a whole disk, which can be crashed in multiple ways."""

    stills: tuple[Still, ...]
    changes: tuple[NameChange, ...]
    next_number: int


class Platter:
    """Files and folders by number, and the pending changes of names. Not thread-safe."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {ROOT: Inode(ROOT, is_folder=True, mtime_ns=0)}
        self.changes: list[NameChange] = []
        self._next = ROOT + 1

    # --- names

    def find(self, path: Path) -> Inode | None:
        """Return the file or folder with this name; None if there is none."""
        at = self.inodes[ROOT]
        for part in path.parts[1:]:
            number = at.names.get(part)
            if number is None:
                return None
            at = self.inodes[number]
        return at

    def make(self, path: Path, *, is_folder: bool, mtime_ns: int) -> Inode:
        """Create a file or a folder under an unused name in an existing folder."""
        made = Inode(self._next, is_folder=is_folder, mtime_ns=mtime_ns)
        self._next += 1
        self.inodes[made.number] = made
        self.change((path, made.number), inode=made.number)
        return made

    def change(self, *steps: tuple[Path, int], inode: int) -> None:
        """Assign numbers to names (0 removes the name), as one atomic change."""
        done = []
        for path, number in steps:
            folder = self.find(path.parent)
            assert folder is not None
            done.append((folder.number, path.name, number))
            _set(folder.names, path.name, number)
        self.changes.append(NameChange(tuple(done), inode))

    def sync_folder(self, folder: Inode) -> None:
        """Write a folder's pending changes to the medium, and the changes that they depend on."""
        wanted = {
            index
            for index, change in enumerate(self.changes)
            for number, _, _ in change.steps
            if number == folder.number
        }
        if not wanted:
            return
        wanted = _with_needed(self.changes, wanted)
        for index in sorted(wanted):
            for number, name, target in self.changes[index].steps:
                _set(self.inodes[number].durable_names, name, target)
        self.changes = [c for i, c in enumerate(self.changes) if i not in wanted]
        self._sweep()

    def _sweep(self) -> None:
        """Delete inodes without any visible, durable or pending name."""
        named = {ROOT}
        for inode in self.inodes.values():
            named.update(inode.names.values(), inode.durable_names.values())
        for change in self.changes:
            named.add(change.inode)
            # A removed folder may still have changes that a power cut would keep.
            named.update(
                number for folder, _, target in change.steps for number in (folder, target)
            )
        for number in self.inodes.keys() - named:
            del self.inodes[number]

    # --- moments

    def image(self) -> Image:
        """Return a snapshot of the whole disk."""
        stills = tuple(inode.still() for inode in self.inodes.values())
        return Image(stills, tuple(self.changes), self._next)

    @classmethod
    def after(cls, image: Image, survival: Survival, chance: Random) -> "Platter":
        """Return the medium after a crash at the moment of an image."""
        made = cls()
        made._next = image.next_number
        if survival is Survival.PROCESS:
            made.inodes = {still.number: Inode.after_kill(still) for still in image.stills}
            made.changes = list(image.changes)
            return made
        for still in image.stills:
            content = _surviving(still, survival, chance)
            is_old = survival is Survival.NONE or (
                survival is not Survival.ALL and chance.random() < 0.5
            )
            mtime_ns = still.durable_mtime_ns if is_old else still.mtime_ns
            made.inodes[still.number] = Inode.after_power_cut(still, content, mtime_ns)
        made._put_names(image, survival, chance)
        return made

    def _put_names(self, image: Image, survival: Survival, chance: Random) -> None:
        for still in image.stills:
            self.inodes[still.number].durable_names = dict(still.durable_names)
        for change in _surviving_changes(image.changes, survival, chance):
            for number, name, target in change.steps:
                _set(self.inodes[number].durable_names, name, target)
        for inode in self.inodes.values():
            inode.names = dict(inode.durable_names)
        self._sweep()


def _set(names: dict[str, int], name: str, number: int) -> None:
    if number == _NOTHING:
        names.pop(name, None)
    else:
        names[name] = number


def _with_needed(changes: list[NameChange] | tuple[NameChange, ...], wanted: set[int]) -> set[int]:
    """Return the indexes of `wanted` changes and of all changes that they depend on."""
    found = set(wanted)
    for index in range(len(changes) - 1, -1, -1):
        if index in found:
            found.update(i for i in range(index) if changes[index].needs(changes[i]))
    return found


def _surviving_changes(
    changes: tuple[NameChange, ...], survival: Survival, chance: Random
) -> Iterator[NameChange]:
    """Yield the changes of names that survive a power cut."""
    if survival is Survival.NONE:
        return
    wanted: Iterable[int] = range(len(changes))
    if survival is not Survival.ALL:
        # With probability 0.5 a prefix, as a journaling file system keeps; otherwise any subset.
        if chance.random() < 0.5:
            wanted = range(chance.randint(0, len(changes)))
        else:
            wanted = _with_needed(changes, {i for i in wanted if chance.random() < 0.5})
    for index in sorted(wanted):
        yield changes[index]


def _surviving(still: Still, survival: Survival, chance: Random) -> bytes:
    """Return the content of one file after a power cut."""
    seen, durable, dirty = still.seen, still.durable, still.dirty
    if survival is Survival.NONE or (not dirty and len(seen) == len(durable)):
        return durable
    if survival is Survival.ALL:
        return with_pages(durable, seen, dirty, len(seen))
    if survival is Survival.BYTE:
        return _up_to_a_byte(still, chance)
    size = len(seen) if chance.random() < 0.7 else len(durable)
    share = chance.choice((0.2, 0.5, 0.8))
    kept = [page for page in dirty if chance.random() < share]
    made = with_pages(durable, seen, kept, size)
    if survival is Survival.SECTORS and dirty:
        made = _with_torn_page(made, seen, chance.choice(dirty), chance)
    return made


def _with_torn_page(made: bytes, seen: bytes, page: int, chance: Random) -> bytes:
    """Return `made` with some sectors of one page replaced by those of `seen`."""
    data = bytearray(made)
    start = page * PAGE_BYTES
    for sector in range(start, min(start + PAGE_BYTES, len(made)), SECTOR_BYTES):
        if chance.random() < 0.5:
            part = seen[sector : min(sector + SECTOR_BYTES, len(made))]
            data[sector : sector + len(part)] = part
    return bytes(data)


def _up_to_a_byte(still: Still, chance: Random) -> bytes:
    """Return the file with its dirty pages written in order up to some byte of one of them."""
    if not still.dirty:
        return still.durable
    torn = chance.randrange(len(still.dirty))
    made = with_pages(still.durable, still.seen, still.dirty[:torn], len(still.seen))
    start = still.dirty[torn] * PAGE_BYTES
    stop = start + chance.randint(0, PAGE_BYTES)
    return made[:start] + still.seen[start:stop] + made[stop:]
