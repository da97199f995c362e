"""Makes the files of dispatchers anew, beside the store, and puts them in place of the old ones.

    penstock/repair/journal      a repair is under way, and where it saves what it takes away
    penstock/repair/new/         the files in the making, laid out as in a store
    penstock/repair/parts/<run>  what they are put together from, where that is done in parallel
    penstock/repair/ready        they are whole and durable: these names are to be swapped

Nothing of the store changes until `ready` is there. From then on the swap is finished by whoever comes
next, a repair, a reindex or an opening for writing, before it looks at anything: in the midst of a swap the
old files may be gone and the new ones not there yet. Where another program has opened the store in between,
queues and index have moved on, and what was made is thrown away. Either way `ready` does not survive an
opening for writing. The old files are renamed into `penstock/saved/`, never removed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from penstock.contracts import QueueIndex
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.dispatch.store_view import StoreView
from penstock.durability.side_folder import lock_mtime_ns, penstock_wrote_last
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.salvage import Valid, walk_segment

logger = get_logger(__name__)


class RebuildJournal:
    """The folder `penstock/repair` of one store, whose lock the caller holds."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._folder = root / SIDE_FOLDER / "repair"
        self.new = self._folder / "new"
        self.parts = self._folder / "parts"
        self._ready = self._folder / "ready"
        # Where this run has put what it took out of the store, by its name there.
        self._taken: dict[str, Path] = {}
        self.saved = Path()

    def is_begun(self) -> bool:
        """Whether a repair was begun and not ended."""
        return self._files.exists(self._folder)

    def begin(self) -> None:
        """Open the journal, or go on with one that was left; finish a swap that was ready."""
        journal = self._folder / "journal"
        saved_root = self._root / SIDE_FOLDER / "saved"
        name = self._read(journal).get("saved")
        if not (isinstance(name, str) and name.startswith("repair-") and "/" not in name):
            number = 1
            while self._files.exists(saved_root / f"repair-{number}"):
                number += 1
            name = f"repair-{number}"
            self._files.make_folder_durably(self._folder)
            self._files.write_whole(journal, json.dumps({"saved": name}).encode())
        self.saved = saved_root / name
        ready = self._read(self._ready)
        noted_ns = ready.get("lock_mtime_ns")
        if isinstance(noted_ns, int) and penstock_wrote_last(self._files, self._root, noted_ns):
            self._swap(_names(ready.get("made")), _names(ready.get("gone")))
        self._clear()

    def settle(self) -> None:
        """Finish a swap that was ready, or throw away what was made; for whoever is about to open the store."""
        if self._files.exists(self._ready):
            self.begin()

    def _read(self, path: Path) -> dict[str, object]:
        try:
            found = json.loads(self._files.read_whole(path, 1 << 16))
        except (ValueError, OSError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def save_bytes(self, name: str, data: bytes) -> None:
        """Keep bytes that are about to be overwritten; what was saved before is not replaced."""
        self._files.make_folder_durably(self.saved)
        if not self._files.exists(self.saved / name):
            self._files.write_whole(self.saved / name, data)

    def save_file(self, path: Path) -> None:
        """Take a file or a folder out of the store, durably."""
        target = self._room_for(path)
        self._files.rename(path, target)
        self._taken[path.name] = target
        self._files.sync_folder(path.parent)
        self._files.sync_folder(target.parent)

    def _room_for(self, path: Path) -> Path:
        """Return a name among what is saved that is free, in a folder that is there."""
        target = self.saved / path.relative_to(self._root)
        number = 1
        while self._files.exists(target):
            number += 1
            target = target.with_name(f"{path.name}-{number}")
        self._files.make_folder_durably(target.parent)
        return target

    def rebuild(self, view: StoreView, damages: list[tuple[int, int]], wrong: set[str]) -> None:
        """Make the files of dispatchers anew from the sound records, and swap them in.

        Args:
            view: the dispatchers as the store has them, and the log, mended.
            damages: stretches of it that are no sound record.
            wrong: names in the store's folder that must go even if nothing comes in their place.
        """
        log, olds = view.log, view.dispatchers
        news = view.begin_anew(self.new, log)
        for segment in log.segments:
            for piece in walk_segment(log, segment):
                if isinstance(piece, Valid) and len(piece.columns):
                    for new in news:
                        new.dispatch(DispatchBatch(piece.columns, piece.start, piece.stop))
        for new, old in zip(news, olds, strict=True):
            if isinstance(new, QueueIndex) and isinstance(old, QueueIndex):
                new.adopt(old, damages)
            new.flush()
            new.close()
        self.put_in_place(wrong, [stray for old in olds for stray in old.strays()])

    def put_in_place(self, wrong: set[str], strays: Sequence[Path] = ()) -> bool:
        """Swap in what is in `new`, which is whole and durable; `wrong` as for `rebuild`.

        `strays` lie among the old files and are none of them: they are put back where they were. A crash
        before that leaves them with what is saved. Returns whether all are where they were.
        """
        names = {e.name for e in self._files.entries(self.new)} - {SIDE_FOLDER}
        self._files.sync_folder(self.new)
        swap = {"made": sorted(names), "gone": sorted(wrong - names)}
        ready = {**swap, "lock_mtime_ns": lock_mtime_ns(self._files, self._root)}
        self._files.write_whole(self._ready, json.dumps(ready).encode())
        self._swap(swap["made"], swap["gone"])
        are_back = self._put_back(strays)
        try:
            self._clear()
        except OSError as error:
            # All is in place; the next opening for writing throws away what is left.
            logger.warning("%s is not tidied up: %s", self._folder, error)
        return are_back

    def _put_back(self, strays: Sequence[Path]) -> bool:
        for path in strays:
            name, *below = path.relative_to(self._root).parts
            source = self._taken.get(name, self.saved / name).joinpath(*below)
            if not self._files.exists(source) or self._files.exists(path):
                continue
            try:
                self._files.make_folder_durably(path.parent)
                self._files.rename(source, path)
                self._files.sync_folder(path.parent)
                self._files.sync_folder(source.parent)
            except OSError as error:
                logger.warning("%s could not be put back, it is at %s: %s", path, source, error)
        return all(self._files.exists(path) for path in strays)

    def _swap(self, made: list[str], gone: list[str]) -> None:
        """Put the new in place of the old; running it again from anywhere ends the same."""
        for name in made:
            old, new = self._root / name, self.new / name
            if self._files.exists(new):
                if self._files.exists(old):
                    target = self._room_for(old)
                    # Next to each other: in between there is neither, for readers and for other programs.
                    self._files.rename(old, target)
                    self._taken[name] = target
                    self._files.rename(new, old)
                    self._files.sync_folder(target.parent)
                else:
                    self._files.rename(new, old)
            self._files.sync_folder(self._root)
            self._files.sync_folder(self.new)
        for name in gone:
            if self._files.exists(self._root / name):
                self.save_file(self._root / name)

    def _clear(self) -> None:
        """Throw away what was made and not used."""
        if self._files.exists(self._ready):
            self._files.remove(self._ready)
            self._files.sync_folder(self._folder)
        if self._files.is_folder(self.new):
            self._remove_tree(self.new)
        try:
            if self._files.is_folder(self.parts):
                self._remove_tree(self.parts)
        except OSError as error:
            # Tasks of a run that is dead may still write there. Another run has another folder.
            logger.warning("%s is not cleared yet: %s", self.parts, error)

    def _remove_tree(self, folder: Path) -> None:
        for entry in self._files.entries(folder):
            if entry.is_folder:
                self._remove_tree(entry.path)
            else:
                self._files.remove(entry.path)
        self._files.remove_folder(folder)

    def forget_saved(self) -> None:
        """Remove what this repair has taken out of the store."""
        self._remove_tree(self.saved)
        self._files.sync_folder(self.saved.parent)

    def end(self) -> None:
        """Close the journal: all is done."""
        if self._files.is_folder(self._folder):
            self._clear()
            self._remove_tree(self._folder)
            self._files.sync_folder(self._root / SIDE_FOLDER)


def _names(value: object) -> list[str]:
    """Return the names of a list that are names of something in the store's folder, and no way out of it."""
    names = value if isinstance(value, list) else []
    plain = [name for name in names if isinstance(name, str) and Path(name).name == name]
    return [name for name in plain if name not in ("", "..", SIDE_FOLDER)]
