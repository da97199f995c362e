"""Queues and index of a whole store made anew in parallel, and swapped in whole.

    1. For each segment, anywhere: the rows that queues and index are made from go into
       `penstock/repair/parts/<run>/` (see `row_files`), by shard of queues.
    2. For each shard of queues, and for the index, anywhere: a fresh dispatcher takes in the rows of all
       segments in log order, so its files are what dispatching in order makes.
    3. In one place: the parts are put together in `penstock/repair/new/`, and swapped in (see `rebuild`).

The store's lock is held throughout. Nothing of the store changes before the swap; a reindex that was
killed is begun anew, one that was killed within the swap has it finished first. Log and marks stay as
they are, but for the mark of a clean close, which vouches for the new files then.

Tasks of a run that is dead may go on for a while. They have a folder of their run's own, and end when it is
gone; and what the parts were made from is counted against what the segments gave.
"""

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import attrs

from penstock.contracts import KeyIndex, QueueIndex
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.dispatch.rebuild import RebuildJournal
from penstock.dispatch.store_view import Recipe, StoreView
from penstock.durability.progress import Progress
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    penstock_wrote_last,
    vouched_for,
)
from penstock.errors import ConfigError, PluginError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.salvage import Corrupt, Valid, walk_segment
from penstock.recovery.foreign_content import check_foreign
from penstock.segmentwise.row_files import Stretch, condense, restore, shard_rows
from penstock.store.open import Opener

logger = get_logger(__name__)

# The part of all keys; the others are shards of queues.
KEYS = -1
SHARDS_MAX = 256
_FILE_BYTES_MAX = 1 << 40
# Files of derived data that go where nothing is made in their place.
_OF_QUEUES = ("consumequeue", "consumequeue_ext")
_OF_KEYS = ("index",)


@attrs.frozen(kw_only=True)
class ReindexReport:
    """What was made anew.

    Attributes:
        segments: segments that were read.
        records: records whose places were noted.
        queues: queues that there are now.
        damages: stretches of the log that are no sound records; entries of the old queues for them stay.
        left: dispatchers that were left alone, since they need the records themselves.
        saved_to: the folder with what was replaced; None where it was removed, or nothing was there.
    """

    segments: int
    records: int
    queues: int
    damages: tuple[tuple[int, int], ...]
    left: tuple[str, ...]
    saved_to: Path | None


@attrs.frozen
class Made:
    """What `make` made of a part: the name of its folder, and how many rows it took in (of `KEYS`: keys)."""

    name: str
    entries: int


@attrs.frozen
class ReindexTask:
    """What a process needs to do pieces of the work: sent to it whole."""

    recipe: Recipe
    folder: Path
    shards: int

    def condense(self, base: int) -> Stretch:
        """Note the rows of one segment; doing it twice changes nothing."""
        files = Files()
        log = StoreView.open(files, self.recipe.log_only).log
        segment = log.find(base)
        if segment is None:
            raise ConfigError(f"segment {base} of {self.recipe.root} is gone")
        records, keys, end, stop, number = 0, 0, 0, -1, 0
        damages: list[tuple[int, int]] = []
        for piece in walk_segment(log, segment):
            if isinstance(piece, Valid):
                if len(piece.columns):
                    batch = DispatchBatch(piece.columns, piece.start, piece.stop)
                    self._note(files, batch, base, number)
                    records, keys = records + len(piece.columns), keys + len(batch.keys.rows)
                    end, number = piece.stop, number + 1
            elif isinstance(piece, Corrupt):
                damages.append((piece.start, piece.stop))
            elif piece.is_blank:
                end = segment.end_offset
            else:
                stop = piece.start
        log.close()
        return Stretch(base, records, keys, end, stop, tuple(damages))

    def _note(self, files: Files, batch: DispatchBatch, base: int, number: int) -> None:
        name = f"{base:020d}-{number:06d}"
        if len(batch.keys.rows):
            _write(files, self._rows(KEYS) / name, condense(batch, keys=True))
        for shard, rows in shard_rows(batch, self.shards):
            _write(files, self._rows(shard) / name, condense(batch, rows, keys=False))

    def _rows(self, part: int) -> Path:
        return self.folder / f"rows{part}"

    def make(self, part: int) -> Made:
        """Make the files of one part in a folder of its own."""
        files, entries = Files(), 0
        name = f"made{part}-{uuid.uuid4().hex}"
        root = self.folder / name
        log = StoreView.open(files, self.recipe.log_only).log
        view = StoreView.open(files, self.recipe)
        _check_run(files, self.folder)
        kind = KeyIndex if part == KEYS else QueueIndex
        news = [d for d in view.begin_anew(root, log) if isinstance(d, kind)]
        rows = self._rows(part)
        for entry in files.entries(rows) if files.is_folder(rows) else ():
            # Not one that was half written when its process was killed.
            if entry.path.suffix != ".new":
                batch = restore(files.read_whole(entry.path, _FILE_BYTES_MAX))
                entries += len(batch.keys.rows) if part == KEYS else len(batch)
                for new in news:
                    new.dispatch(batch)
        for new in news:
            new.flush()
            new.close()
        log.close()
        view.close()
        return Made(name, entries)


def _check_run(files: Files, folder: Path) -> None:
    """Raise in a task that has outlived its run: nothing of it is wanted any more."""
    if not files.is_folder(folder):
        raise StorageError(f"the reindex that this task belongs to has ended: {folder} is gone")


def _write(files: Files, path: Path, data: bytes) -> None:
    """Write a file under a name of its own first: another process may do the same piece."""
    _check_run(files, path.parent.parent)
    files.make_folder(path.parent)
    side = path.with_name(f"{path.name}-{uuid.uuid4().hex}.new")
    file = files.create(side)
    try:
        file.pwrite(data, 0)
    finally:
        file.close()
    files.rename(side, path)


class Reindex:
    """One reindex of one store: holds its lock, plans, and puts together what tasks have made.

    Use it as a context manager. `task.condense` is to be called for each of `bases`, then `task.make` for
    each of `parts`, then `finish` here. Not thread-safe.
    """

    def __init__(self, opener: Opener, recipe: Recipe, *, shards: int) -> None:
        if not 1 <= shards <= SHARDS_MAX:
            raise ConfigError(f"shards is {shards}; it must be 1 to {SHARDS_MAX}")
        self._files, self._root = opener.files, opener.root
        self._lock = opener.lock()
        try:
            check_foreign(self._root, opener.foreign(recipe.geometry), "the reindex is refused")
            self._begin(recipe, shards)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, recipe: Recipe, shards: int) -> None:
        files, root = self._files, self._root
        side = SideFolder(files, root)
        side.make()
        self._was_clean = self._read_clean(side)
        self._workshop = RebuildJournal(files, root)
        self._workshop.begin()
        kinds = (QueueIndex, KeyIndex)
        known = tuple(each for each in recipe.dispatchers if issubclass(each[0], kinds))
        self._left = tuple(cls.name for cls, _ in recipe.dispatchers if not issubclass(cls, kinds))
        self._recipe = attrs.evolve(recipe, dispatchers=known)
        self._log = StoreView.open(files, recipe.log_only).log
        self.bases = [segment.base_offset for segment in self._log.segments]
        has_keys = any(issubclass(cls, KeyIndex) for cls, _ in known)
        self.parts = [*([KEYS] if has_keys else []), *range(shards)]
        self._strays: list[Path] = []
        folder = self._workshop.parts / uuid.uuid4().hex
        files.make_folder_durably(folder)
        self.task = ReindexTask(self._recipe, folder, shards)

    def _read_clean(self, side: SideFolder) -> CleanClose | None:
        """Return the mark of a clean close, if it is to be believed."""
        mark = side.read_clean()
        noted_ns = Progress(self._files, self._root).read().lock_mtime_ns
        if mark is None or not penstock_wrote_last(self._files, self._root, noted_ns):
            return None
        is_right = mark.digest == fingerprint(self._files, vouched_for(self._root))
        return mark if is_right else None

    def finish(
        self, stretches: Iterable[Stretch], made: Mapping[int, Made], *, keep: bool = True
    ) -> ReindexReport:
        """Put the parts together and swap them in.

        Args:
            stretches: what `condense` returned, of each segment.
            made: what `make` returned, of each part.
            keep: keep what is replaced, in `penstock/saved`.
        """
        walked = sorted(stretches, key=lambda stretch: stretch.base)
        self._check_whole(walked, made)
        for part in self.parts:
            self._join(self.task.folder / made[part].name, self._workshop.new)
        damages = _damages(walked, self._recipe.geometry.segment_bytes)
        queues = self._adopt(damages, max((each.end for each in walked), default=0))
        side = SideFolder(self._files, self._root)
        side.remove_clean()
        gone = _OF_QUEUES + (_OF_KEYS if KEYS in self.parts else ())
        keep = not self._workshop.put_in_place(set(gone), self._strays) or keep
        if self._was_clean is not None:
            digest = fingerprint(self._files, vouched_for(self._root))
            side.write_clean(attrs.evolve(self._was_clean, digest=digest))
        return ReindexReport(
            segments=len(walked), records=sum(each.records for each in walked), queues=queues,
            damages=tuple(damages), left=self._left, saved_to=self._tidied(keep=keep),
        )  # fmt: skip

    def _check_whole(self, walked: list[Stretch], made: Mapping[int, Made]) -> None:
        """Raise if the parts were not made from just what the segments gave."""
        queues = sum(made[part].entries for part in self.parts if part != KEYS)
        pairs = [(sum(each.records for each in walked), queues, "records")]
        if KEYS in self.parts:
            pairs.append((sum(each.keys for each in walked), made[KEYS].entries, "keys"))
        for expected, found, what in pairs:
            if [each.base for each in walked] != self.bases or expected != found:
                raise StorageError(
                    f"the new files of {self._root} have {found} {what} of {len(walked)} segments, and should have "
                    f"{expected} of {len(self.bases)}: nothing was changed; begin the reindex anew"
                )

    def _tidied(self, *, keep: bool) -> Path | None:
        """Remove what is not needed any more, as far as that can be done; returns what was saved."""
        saved: Path | None = self._workshop.saved
        try:
            if saved is not None and not self._files.exists(saved):
                saved = None
            if saved is not None and not keep:
                self._workshop.forget_saved()
                saved = None
            self._workshop.end()
        except OSError as error:
            # The new files are in place.
            logger.warning("%s is not tidied up after a reindex: %s", self._root, error)
        return saved

    def _join(self, source: Path, target: Path) -> None:
        """Move everything below one folder into another; folders that both have are put together."""
        files = self._files
        files.make_folder_durably(target)
        for entry in files.entries(source):
            if entry.name == SIDE_FOLDER and source.parent == self.task.folder:
                continue
            there = target / entry.name
            if entry.is_folder and files.is_folder(there):
                self._join(entry.path, there)
            elif files.exists(there):
                raise PluginError(f"two parts have made {there}: their dispatcher cannot be split")
            else:
                files.rename(entry.path, there)
        files.sync_folder(target)

    def _adopt(self, damages: list[tuple[int, int]], end: int) -> int:
        """Take over from the old queues what the log does not tell; returns how many queues there are."""
        view = StoreView.open(self._files, self._recipe)
        news = view.begin_anew(self._workshop.new, self._log, end)
        self._strays = [stray for old in view.dispatchers for stray in old.strays()]
        queues = 0
        for old, new in zip(view.dispatchers, news, strict=True):
            if isinstance(new, QueueIndex) and isinstance(old, QueueIndex):
                new.adopt(old, damages)
                new.flush()
                queues += len(new.queues())
        for new in news:
            new.close()
        view.close()
        return queues

    def close(self) -> None:
        """Let the store go. What was made and not swapped in is thrown away by the next reindex or repair."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _damages(walked: list[Stretch], segment_bytes: int) -> list[tuple[int, int]]:
    """Return what is no sound record though there is more behind, the gaps between segments included."""
    found: list[tuple[int, int]] = []
    last = max((each.base for each in walked if each.records), default=-1)
    expected = None
    for each in walked:
        if expected is not None and each.base != expected and each.base <= last:
            found.append((expected, each.base))
        found += each.damages
        expected = each.base + segment_bytes
        if each.stop >= 0 and each.base < last:
            found.append((each.stop, expected))
    return found
