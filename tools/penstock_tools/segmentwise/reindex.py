"""Rebuilds queues and index of a whole store in parallel, and replaces the old files in one swap.

    1. For each segment, in any process: the rows from which queues and index are built are written to
       `penstock/repair/parts/<run>/` (without record bodies), by shard of queues.
    2. For each shard of queues, and for the index, in any process: a new dispatcher processes the rows of all
       segments in log order, so its files are the same as after dispatching in order.
    3. In one process: the parts are combined in `penstock/repair/new/`, and swapped in (see `rebuild`).

The store's lock is held throughout. Nothing in the store changes before the swap. A reindex that was killed starts
again; if it was killed during the swap, the swap is finished first. Log and metadata files do not change, except
the clean-close file, which then covers the new files.

Tasks of a run that has ended may continue for a while. Each run has its own folder, and its tasks end when the folder
is deleted. The number of rows in the parts must equal the number of rows of the segments.

A file of rows is numpy's `.npz` of plain arrays, not checksummed: it is deleted once its files are in place::

    log_offsets i64  sizes i32  queues i32  queue_offsets i64  store_times_ms i64
    transaction_types i32  tag_codes i64  topic_rows i32        one row a record, in log order
    key_rows i32  key_hashes i32                                one row a key
    topics u8                                                   JSON list of the topics, latin-1
    bounds i64                                                  first and end log offset
"""

import io
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import attrs
import numpy as np

from penstock.contracts import KeyIndex, QueueIndex
from penstock.contracts.dispatcher import DispatchBatch, IndexColumns
from penstock.dispatch.rebuild import RebuildJournal, Recipe, StoreView
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
from penstock.format.arrays import Int64s
from penstock.format.columns import Keys
from penstock.format.hashes import distinct_of
from penstock.format.names import SIDE_FOLDER
from penstock.log.resync import Corrupt, Valid, walk_segment
from penstock.recovery.store_layout import check_foreign
from penstock.store.open import Opener

logger = get_logger(__name__)


_KINDS = {
    "log_offsets": np.int64, "sizes": np.int32, "queues": np.int32, "queue_offsets": np.int64,
    "store_times_ms": np.int64, "transaction_types": np.int32, "tag_codes": np.int64,
    "topic_rows": np.int32,
}  # fmt: skip
_TOPIC_TEXT = "latin-1"


def condense(batch: DispatchBatch, rows: Int64s | None = None, *, keys: bool) -> bytes:
    """Return rows of a batch (all if None) as the content of a file, with or without their keys."""
    picked = np.arange(len(batch)) if rows is None else rows
    arrays: dict[str, Any] = {
        name: getattr(batch, name)[picked].astype(kind) for name, kind in _KINDS.items()
    }
    key_rows, hashes = batch.keys if keys else Keys(np.zeros(0, np.int64), np.zeros(0, np.int32))
    if rows is not None and keys:
        raise ValueError("keys can only be stored with all rows of the batch: rows must be None")
    topics = json.dumps([topic.decode(_TOPIC_TEXT) for topic in batch.topics])
    out = io.BytesIO()
    np.savez(
        out, **arrays, key_rows=key_rows.astype(np.int32), key_hashes=hashes.astype(np.int32),
        topics=np.frombuffer(topics.encode(), np.uint8),
        bounds=np.array([batch.start_offset, batch.end_offset], np.int64),
    )  # fmt: skip
    return out.getvalue()


def restore(data: bytes) -> DispatchBatch:
    """Return the rows of such a file as a batch that has only these columns."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = json.loads(arrays["topics"].tobytes())
    rows = {name: arrays[name].astype(np.int64) for name in _KINDS}
    topics = [name.encode(_TOPIC_TEXT) for name in names], rows.pop("topic_rows")
    keys = Keys(arrays["key_rows"].astype(np.int64), arrays["key_hashes"])
    first, stop = arrays["bounds"].tolist()
    return DispatchBatch(IndexColumns(**rows, topics=topics, keys=keys), first, stop)


def shard_rows(batch: DispatchBatch, shards: int) -> Iterator[tuple[int, Int64s]]:
    """Yield each non-empty shard with the rows of its queues, in log order."""
    seeds = np.array([zlib.crc32(topic) for topic in batch.topics], np.int64)
    cursors = (seeds[batch.topic_rows] + batch.queues) % shards
    for shard in distinct_of(cursors):
        yield shard, np.nonzero(cursors == shard)[0]


@attrs.frozen
class Stretch:
    """The result of scanning one segment.

    Attributes:
        base: base offset of the segment.
        records: number of valid records.
        keys: number of their keys that are indexed.
        end: log offset after the last record, or after the filler; 0 if there are none.
        stop: where the records end without a blank record; -1 if a blank record ends them.
        damages: ranges within the segment that are not valid records.
    """

    base: int
    records: int
    keys: int
    end: int
    stop: int
    damages: tuple[tuple[int, int], ...]


# The part with all keys; the other parts are shards of queues.
KEYS = -1
SHARDS_MAX = 256
_FILE_BYTES_MAX = 1 << 40
# Folders of derived files, which are removed even if no new ones replace them.
_OF_QUEUES = ("consumequeue", "consumequeue_ext")
_OF_KEYS = ("index",)


@attrs.frozen(kw_only=True)
class ReindexReport:
    """The result of a reindex.

    Attributes:
        segments: number of segments read.
        records: number of records indexed.
        queues: number of queues after the reindex.
        damages: log ranges that are not valid records; the old queues' entries for them are kept.
        left: dispatchers that were not rebuilt, since they need the records themselves.
        saved_to: the folder with the replaced files; None if it was deleted, or nothing was replaced.
    """

    segments: int
    records: int
    queues: int
    damages: tuple[tuple[int, int], ...]
    left: tuple[str, ...]
    saved_to: Path | None


@attrs.frozen
class Made:
    """The result of `make` for one part: the name of its folder, and its number of rows (for `KEYS`: of keys)."""

    name: str
    entries: int


@attrs.frozen
class ReindexTask:
    """Everything a process needs for a part of the work; it is sent to the process."""

    recipe: Recipe
    folder: Path
    shards: int

    def condense(self, base: int) -> Stretch:
        """Write the rows of one segment; idempotent. Raises `ConfigError` if the segment does not exist any more."""
        files = Files()
        log = StoreView.open(files, self.recipe.log_only).log
        segment = log.find(base)
        if segment is None:
            raise ConfigError(
                f"segment {base} of {self.recipe.root} does not exist any more; start the reindex again"
            )
        records, keys, end, stop, number = 0, 0, 0, -1, 0
        damages: list[tuple[int, int]] = []
        for scanned in walk_segment(log, segment):
            if isinstance(scanned, Valid):
                if len(scanned.columns):
                    batch = DispatchBatch(scanned.columns, scanned.start, scanned.stop)
                    self._write_rows(files, batch, base, number)
                    records, keys = records + len(scanned.columns), keys + len(batch.keys.rows)
                    end, number = scanned.stop, number + 1
            elif isinstance(scanned, Corrupt):
                damages.append((scanned.start, scanned.stop))
            elif scanned.is_blank:
                end = segment.end_offset
            else:
                stop = scanned.start
        log.close()
        return Stretch(base, records, keys, end, stop, tuple(damages))

    def _write_rows(self, files: Files, batch: DispatchBatch, base: int, number: int) -> None:
        name = f"{base:020d}-{number:06d}"
        if len(batch.keys.rows):
            _write(files, self._rows_folder(KEYS) / name, condense(batch, keys=True))
        for shard, rows in shard_rows(batch, self.shards):
            _write(files, self._rows_folder(shard) / name, condense(batch, rows, keys=False))

    def _rows_folder(self, part: int) -> Path:
        return self.folder / f"rows{part}"

    def make(self, part: int) -> Made:
        """Build the files of one part in a new folder."""
        files, entries = Files(), 0
        name = f"made{part}-{uuid.uuid4().hex}"
        root = self.folder / name
        log = StoreView.open(files, self.recipe.log_only).log
        view = StoreView.open(files, self.recipe)
        _check_run(files, self.folder)
        kind = KeyIndex if part == KEYS else QueueIndex
        news = [d for d in view.begin_anew(root, log) if isinstance(d, kind)]
        rows = self._rows_folder(part)
        for entry in files.entries(rows) if files.is_folder(rows) else ():
            # Skips a file that was incomplete when its process was killed.
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
    """Raise `StorageError` if the run of this task has ended, since its results are no longer needed."""
    if not files.is_folder(folder):
        raise StorageError(
            f"the reindex of this task has ended and deleted {folder}; the task's result is discarded"
        )


def _write(files: Files, path: Path, data: bytes) -> None:
    """Write a file under a unique name, then rename it: another process may write the same part."""
    _check_run(files, path.parent.parent)
    files.make_folder(path.parent)
    temporary = path.with_name(f"{path.name}-{uuid.uuid4().hex}.new")
    with files.create(temporary) as file:
        file.pwrite(data, 0)
    files.rename(temporary, path)


class Reindex:
    """One reindex of one store: holds its lock, plans, and combines the results of the tasks.

    Use it as a context manager. Call `task.condense` for each of `bases`, then `task.make` for each of `parts`,
    then `finish` here. Not thread-safe.
    """

    def __init__(self, opener: Opener, recipe: Recipe, *, shards: int) -> None:
        if not 1 <= shards <= SHARDS_MAX:
            raise ConfigError(f"shards is {shards}; it must be 1 to {SHARDS_MAX}")
        self._files, self._root = opener.files, opener.root
        self._lock = opener.lock("the reindexing")
        try:
            check_foreign(self._root, opener.foreign(recipe.geometry), "the reindex is refused")
            self._begin(recipe, shards)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, recipe: Recipe, shards: int) -> None:
        """Create the journal, and plan segments and parts."""
        files, root = self._files, self._root
        side_folder = SideFolder(files, root)
        side_folder.make()
        self._was_clean = self._read_clean(side_folder)
        self._journal = RebuildJournal(files, root)
        self._journal.begin()
        kinds = (QueueIndex, KeyIndex)
        known = tuple(each for each in recipe.dispatchers if issubclass(each[0], kinds))
        self._left = tuple(cls.name for cls, _ in recipe.dispatchers if not issubclass(cls, kinds))
        self._recipe = attrs.evolve(recipe, dispatchers=known)
        self._log = StoreView.open(files, recipe.log_only).log
        self.bases = [segment.base_offset for segment in self._log.segments]
        has_keys = any(issubclass(cls, KeyIndex) for cls, _ in known)
        self.parts = [*([KEYS] if has_keys else []), *range(shards)]
        self._strays: list[Path] = []
        folder = self._journal.parts / uuid.uuid4().hex
        files.make_folder_durably(folder)
        self.task = ReindexTask(self._recipe, folder, shards)

    def _read_clean(self, side_folder: SideFolder) -> CleanClose | None:
        """Return the content of the clean-close file, if it can be trusted."""
        clean = side_folder.read_clean()
        noted_ns = Progress(self._files, self._root).read().lock_mtime_ns
        if clean is None or not penstock_wrote_last(self._files, self._root, noted_ns):
            return None
        is_right = clean.digest == fingerprint(self._files, vouched_for(self._root))
        return clean if is_right else None

    def finish(
        self, stretches: Iterable[Stretch], made: Mapping[int, Made], *, keep: bool = True
    ) -> ReindexReport:
        """Combine the parts and swap them in; raises `StorageError` if rows are missing.

        Args:
            stretches: the result of `condense` for each segment.
            made: the result of `make` for each part.
            keep: keep the replaced files in `penstock/saved`.
        """
        condensed = sorted(stretches, key=lambda stretch: stretch.base)
        self._check_whole(condensed, made)
        for part in self.parts:
            self._join(self.task.folder / made[part].name, self._journal.new)
        damages = _damages(condensed, self._recipe.geometry.segment_bytes)
        queues = self._adopt(damages, max((each.end for each in condensed), default=0))
        side_folder = SideFolder(self._files, self._root)
        side_folder.remove_clean()
        gone = _OF_QUEUES + (_OF_KEYS if KEYS in self.parts else ())
        keep = not self._journal.put_in_place(set(gone), self._strays) or keep
        if self._was_clean is not None:
            digest = fingerprint(self._files, vouched_for(self._root))
            side_folder.write_clean(attrs.evolve(self._was_clean, digest=digest))
        return ReindexReport(
            segments=len(condensed), records=sum(each.records for each in condensed), queues=queues,
            damages=tuple(damages), left=self._left, saved_to=self._clean_up(keep=keep),
        )  # fmt: skip

    def _check_whole(self, condensed: list[Stretch], made: Mapping[int, Made]) -> None:
        """Raise `StorageError` unless the parts contain exactly the rows of all segments."""
        queues = sum(made[part].entries for part in self.parts if part != KEYS)
        pairs = [(sum(each.records for each in condensed), queues, "records")]
        if KEYS in self.parts:
            pairs.append((sum(each.keys for each in condensed), made[KEYS].entries, "keys"))
        for expected, found, what in pairs:
            if [each.base for each in condensed] != self.bases or expected != found:
                raise StorageError(
                    f"the new files of {self._root} have {found} {what} of {len(condensed)} segments, but should "
                    f"have {expected} of {len(self.bases)}: nothing was changed; start the reindex again"
                )

    def _clean_up(self, *, keep: bool) -> Path | None:
        """Delete files that are no longer needed, as far as possible; returns the folder with the saved files."""
        saved: Path | None = self._journal.saved
        try:
            if saved is not None and not self._files.exists(saved):
                saved = None
            if saved is not None and not keep:
                self._journal.forget_saved()
                saved = None
            self._journal.end()
        except OSError as error:
            # Not an error: the new files are in place.
            logger.warning(
                "%s: the reindex is complete, but its temporary files could not be deleted: %s",
                self._root,
                error,
            )
        return saved

    def _join(self, source: Path, target: Path) -> None:
        """Move everything below one folder into another; merges folders that exist in both."""
        files = self._files
        files.make_folder_durably(target)
        for entry in files.entries(source):
            if entry.name == SIDE_FOLDER and source.parent == self.task.folder:
                continue
            there = target / entry.name
            if entry.is_folder and files.is_folder(there):
                self._join(entry.path, there)
            elif files.exists(there):
                raise PluginError(
                    f"two parts of the reindex have created {there}: their dispatcher cannot be split; nothing was "
                    "changed"
                )
            else:
                files.rename(entry.path, there)
        files.sync_folder(target)

    def _adopt(self, damages: list[tuple[int, int]], end: int) -> int:
        """Copy from the old queues what the log does not contain; returns the number of queues."""
        view = StoreView.open(self._files, self._recipe)
        news = view.begin_anew(self._journal.new, self._log, end)
        self._strays = [stray for old in view.dispatchers for stray in old.strays()]
        queues = 0
        for old, new in zip(view.dispatchers, news, strict=True):
            if isinstance(new, QueueIndex) and isinstance(old, QueueIndex):
                new.adopt(old, damages)
                for lone in old.lone_ends():
                    new.keep_end(lone)
                new.flush()
                queues += len(new.queues())
        for new in news:
            new.close()
        view.close()
        return queues

    def close(self) -> None:
        """Release the store. The next reindex or repair deletes files that were built and not swapped in."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _damages(condensed: list[Stretch], segment_bytes: int) -> list[tuple[int, int]]:
    """Return the log ranges before the last record that are not valid records, including missing segments."""
    found: list[tuple[int, int]] = []
    last = max((each.base for each in condensed if each.records), default=-1)
    expected = None
    for each in condensed:
        if expected is not None and each.base != expected and each.base <= last:
            found.append((expected, each.base))
        found += each.damages
        expected = each.base + segment_bytes
        if each.stop >= 0 and each.base < last:
            found.append((each.stop, expected))
    return found
