"""The medium of a simulated disk: files and folders, and what a power cut leaves of them.

Names are as volatile as bytes: each change of a folder is pending until that folder is synced. Until then, each
change may survive or be lost independently of others, except that a rename is atomic, and a change survives only if
the earlier ones that it depends on do.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from random import Random

import attrs

from penstock.testing.inode import PAGE_BYTES, SECTOR_BYTES, Inode, Still, with_pages

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
            if any(number == folder.number for number, _, _ in change.steps)
        }
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
