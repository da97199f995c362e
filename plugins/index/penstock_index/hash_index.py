"""The hash index: finds records by key, in RocketMQ's own files (see `index_file`).

Files in `index/` are named by their creation time and filled one after the other; the keys of one record may be in
two files. Only the newest file is written. Entries are in log order, so the entries up to a log offset are a prefix
of the files: recovery uses that to cut and to find holes.

Invariants:
    * Every key of a record before `progress` is in the files once.
    * Look-ups return candidates: hashes collide, and an entry's time is rounded; the caller compares.

Safe from any thread; no sync happens under the lock.
"""

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from penstock.contracts import (
    TAG_KEYS,
    Checker,
    Context,
    DispatchBatch,
    Foreign,
    Geometry,
    KeyIndex,
    LogView,
    Trust,
    key_hash,
)
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.files import File, Files
from penstock.format.arrays import Int64s, np
from penstock.format.columns import Keys, RecordColumns
from penstock.format.names import SIDE_FOLDER
from penstock.format.record import FIXED_SIZE, ROLLBACK, SIZE_AND_MAGIC
from penstock.format.validity import is_valid
from penstock_index.index_file import (
    HEADER,
    Header,
    IndexFile,
    Peek,
    has_tag_keys,
    is_index_name,
    record_time_ms,
    seconds_since,
    valid_count,
)

logger = get_logger(__name__)

# Index files that stay open for look-ups.
_READERS_MAX = 16


class Readers:
    """A few index files kept open for look-ups; one that is dropped is closed after its last use. Safe from any thread.

    Args:
        files: the file system.
        folder: the folder of the files.
        geometry: their sizes.
        limit: maximum number of open files.
        mapped: read full files through maps: only in the process that alone shortens and removes them.
    """

    def __init__(
        self, files: Files, folder: Path, geometry: Geometry, limit: int, *, mapped: bool
    ) -> None:
        self._files = files
        self._folder = folder
        self._geometry = geometry
        self._limit = max(min(limit, files.descriptors_max // 16), 2)
        self._mapped = mapped
        self._open: dict[str, Peek] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Peek:
        """Return a current view of a file; raise `FileNotFoundError` if it was removed."""
        peek = self._open.get(name)
        if peek is not None:
            # The header of a full file is final.
            return peek if peek.is_full else peek.reopened()
        with self._lock:
            if len(self._open) >= self._limit:
                self._open.pop(next(iter(self._open)))
            peek = Peek(self._files.open(self._folder / name), self._geometry)
            self._open[name] = peek = peek.mapped() if self._mapped else peek
            return peek

    def close(self) -> None:
        """Drop all views; each file is closed when its last look-up has ended."""
        with self._lock:
            self._open.clear()


class IndexFolder:
    """The index files of one store, oldest first by their names. Safe from any thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = context.files
        self.path = context.root / "index"
        self._lock = threading.Lock()
        self._readers = Readers(
            context.files, self.path, context.geometry, _READERS_MAX, mapped=not context.read_only
        )
        # Names of the files, newest last; None if they may have changed.
        self._listed: list[str] | None = None

    def reader(self, name: str) -> Peek:
        """Return a view of a file kept open for look-ups; raise `FileNotFoundError` if it was removed."""
        return self._readers.get(name)

    def peekable(self, name: str) -> File:
        """Return a file opened for one view."""
        return self._files.open(self.path / name)

    def remove(self, name: str) -> None:
        """Remove one file."""
        self._files.remove(self.path / name)

    def sync(self) -> None:
        """Make the list of files durable."""
        self._files.sync_folder(self.path)

    def make(self, header: Header | None) -> IndexFile:
        """Create the next file, durable under its name and with this header; all zeros if that is None."""
        self._files.make_folder_durably(self.path)
        name = self._fresh_name()
        temporary = self._context.root / SIDE_FOLDER / f"new-index-{name}"
        if self._files.exists(temporary):
            self._files.remove(temporary)
        file = self._files.create(temporary)
        try:
            file.resize(self._context.geometry.index_file_bytes)
            if header is not None:
                file.pwrite(HEADER.pack(*header), 0)
            file.sync_all()
            self._files.rename(temporary, self.path / name)
            self._files.sync_folder(self.path)
        except OSError:
            file.close()
            if self._files.exists(temporary):
                self._files.remove(temporary)
            raise
        file.path = self.path / name
        self._listed = None
        return self._as_index_file(file)

    def _as_index_file(self, file: File) -> IndexFile:
        return IndexFile(file, self._context.geometry, self._context.clock.monotonic_ms)

    def _fresh_name(self) -> str:
        """Return the local time to the millisecond, increased if needed so that it sorts after all existing names."""
        now = self._context.clock.time_ms()
        names = self.names()
        while True:
            text = time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1000))
            name = f"{text}{now % 1000:03d}"
            if not names or name > names[-1]:
                return name
            # The clock or the zone was set back; a name must still sort after the others.
            if name < names[-1]:
                return str(int(names[-1]) + 1)
            now += 1

    def names(self) -> list[str]:
        """Return the names of the valid files that exist now."""
        if not self._files.is_folder(self.path):
            return []
        size = self._context.geometry.index_file_bytes
        return [
            e.name
            for e in self._files.entries(self.path)
            if e.is_file and is_index_name(e.name) and e.size == size
        ]

    def header(self, name: str) -> Header:
        """Return a file's header; `end_ms` and `end_offset` are 0 if the file has no entry."""
        with self._files.open(self.path / name) as file:
            head = Peek(file, self._context.geometry).header
            return head if head.index_count > 1 else head._replace(end_ms=0, end_offset=0)

    def open(self, name: str) -> IndexFile:
        """Open a file for writing."""
        return self._as_index_file(self._files.open(self.path / name, writable=True))

    def known_names(self) -> list[str]:
        """Return the names of the files, cached: only this process creates and removes them."""
        listed = self._listed
        if listed is not None:
            return listed
        with self._lock:
            if self._listed is None:
                self._listed = self.names()
            return self._listed

    def forget(self) -> None:
        """Drop the cached list of files: files were removed."""
        self._listed = None
        self._readers.close()

    def strays(self) -> Iterator[Path]:
        """Yield entries of the folder that have an index file's name but the wrong type or size."""
        if self._files.is_folder(self.path):
            for entry in self._files.entries(self.path):
                size = self._context.geometry.index_file_bytes
                if is_index_name(entry.name) and not (entry.is_file and entry.size == size):
                    yield entry.path

    def remove_strays(self) -> list[str]:
        """Remove index files of a wrong length; return messages, also for other entries of the folder."""
        repairs = []
        if self._files.is_folder(self.path):
            for entry in self._files.entries(self.path):
                if not (entry.is_file and is_index_name(entry.name)):
                    repairs.append(
                        f"{entry.path} does not belong in the index folder; it was not changed"
                    )
                elif entry.size != self._context.geometry.index_file_bytes:
                    self._files.remove(entry.path)
                    repairs.append(f"removed index file {entry.name}, whose length is wrong")
        return repairs


class HashIndexDispatcher(KeyIndex):
    """RocketMQ's index of keys. Safe from any thread."""

    name: ClassVar[str] = "hash-index"

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._folder = IndexFolder(context)
        self._lock = threading.RLock()
        self._progress = 0
        self._current: IndexFile | None = None
        self._dirty: list[IndexFile] = []

    @property
    def progress(self) -> int:
        return self._progress

    # --- dispatching records

    def dispatch(self, batch: DispatchBatch) -> None:
        """Add the keys of a batch; records before `progress` are skipped."""
        with self._lock:
            keys = self._new_keys(batch)
            if len(keys.rows):
                self._add(keys, batch)
            self._progress = max(self._progress, batch.end_offset)

    def _new_keys(self, batch: DispatchBatch) -> Keys:
        """Return the keys of a batch that must be added."""
        keys = batch.keys
        if not len(keys.rows):
            return keys
        is_rolled_back = batch.transaction_types == ROLLBACK
        if batch.start_offset >= self._progress and not is_rolled_back.any():
            return keys
        rows = keys.rows
        wanted = (batch.log_offsets[rows] >= self._progress) & ~is_rolled_back[rows]
        return Keys(rows[wanted], keys.hashes[wanted])

    def _add(self, keys: Keys, batch: DispatchBatch) -> None:
        """Add keys in order. A retry after an error or an interrupt continues after the keys that were added."""
        count = len(keys.rows)
        log_offsets, times_ms = batch.log_offsets, batch.store_times_ms
        done = min(self._count_added(), count)
        while done < count:
            file = self._current
            if file is None or file.is_full:
                file = self._roll()
            done += file.add(keys, log_offsets, times_ms, done)

    def _count_added(self) -> int:
        """Return how many keys of records from `progress` on are already in the files."""
        if self._current is None or self._current.header.end_offset < self._progress:
            return 0
        count = 0
        for name in reversed(self._folder.names()):
            with self._folder.peekable(name) as file:
                entries = Peek(file, self.context.geometry).entries()
            beyond = int((entries["log_offset"] >= self._progress).sum())
            count += beyond
            if beyond < len(entries):
                break
        return count

    def _roll(self) -> IndexFile:
        """Create the next file; its header starts with the end of the full file, as in Java."""
        full = self._current
        if full is None:
            fresh = self._folder.make(None)
        else:
            head = full.header
            fresh = self._folder.make(Header(
                begin_ms=head.end_ms, end_ms=head.end_ms,
                begin_offset=head.end_offset, end_offset=head.end_offset,
            ))  # fmt: skip
            self._dirty.append(full)
        self._current = fresh
        return fresh

    # --- durability, cutting, trimming

    def flush(self) -> int:
        """Sync the files written since the last flush; return the progress that is now durable."""
        with self._lock:
            reached = self._progress
            dirty, current = [*self._dirty], self._current
        for file in dirty:
            file.sync()
        if current is not None and current.is_dirty:
            current.sync()
        # Last: an interrupt before it leaves all of them to the next flush, which syncs some again.
        with self._lock:
            self._dirty = [file for file in self._dirty if file not in dirty]
        for file in dirty:
            file.close()
        return reached

    def give_back(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.give_back()

    def truncate(self, log_offset: int) -> None:
        """Remove the keys of records at or after `log_offset`."""
        with self._lock:
            if self._current is not None and self._current.is_dirty:
                # The part that is kept must be synced before it counts as durable.
                self._current.sync()
            self._close_current()
            if self._cut(log_offset, None):
                self._folder.sync()
            self._folder.forget()
            names = self._folder.names()
            # It has room: RocketMQ never creates a new file before the last one is full.
            self._current = self._folder.open(names[-1]) if names else None
            self._progress = min(self._progress, log_offset)

    def trim(self, log_offset: int) -> None:
        """Remove leading files whose records are all deleted, never the last file."""
        with self._lock:
            names = self._folder.names()
            for name in names[:-1]:
                with self._folder.peekable(name) as file:
                    end = Peek(file, self.context.geometry).header.end_offset
                if end >= log_offset:
                    break
                self._folder.remove(name)
            self._folder.forget()

    def stats(self) -> dict[str, int]:
        with self._lock:
            keys = self._current.header.index_count - 1 if self._current else 0
        return {"files": len(self._folder.names()), "keys_in_newest": keys}

    def not_understood(self, log: LogView) -> Iterator[Foreign]:
        """See `Dispatcher`: entries that newer brokers write for tags."""
        if has_tag_keys(self._peeks(self._folder.names()[-1:]), log):
            yield Foreign(TAG_KEYS, self._folder.path)

    def checker(self) -> Checker:
        from penstock_index.index_check import IndexChecker  # noqa: PLC0415 - only verifying needs it

        return IndexChecker(self._folder.path, self._peeks, self._folder.strays)

    def _peeks(self, names: Sequence[str] | None = None) -> Iterator[Peek]:
        for name in self._folder.names() if names is None else names:
            try:
                file = self._folder.peekable(name)
            except FileNotFoundError:
                continue
            with file:
                yield Peek(file, self.context.geometry)

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    def close(self) -> None:
        with self._lock:
            self._close_current()
            self._folder.forget()
            for file in self._dirty:
                file.close()
            self._dirty = []

    # --- opening

    def load(self, trust: Trust) -> list[str]:
        repairs = self._folder.remove_strays()
        with self._lock:
            if trust.is_clean:
                self._progress = trust.durable_offset
            elif trust.durable_offset > 0:
                self._progress = max(trust.durable_offset, trust.log.min_offset)
                self._progress = min(self._progress, trust.log.end_offset)
                if self._cut(self._progress, trust.log):
                    repairs.append(f"cut index entries after log offset {self._progress}; rebuilt")
            else:
                repairs.extend(self._load_foreign(trust))
            hole = None if trust.is_clean else self._first_hole(trust.log)
            if hole is not None:
                self._cut(hole, trust.log)
                self._progress = min(self._progress, hole)
                repairs.append(
                    f"keys were missing from the index from log offset {hole} on; rebuilt"
                )
            self._open_newest(trust, repairs)
            self._folder.forget()
        return repairs

    def _load_foreign(self, trust: Trust) -> list[str]:
        """Keep a Java store's files up to the point that it synced; the rest is rebuilt. Returns messages."""
        repairs = []
        if trust.was_abnormal:
            for name in self._folder.names():
                if self._folder.header(name)[1] > trust.index_time_ms:
                    self._folder.remove(name)
                    repairs.append(
                        f"removed index file {name}, which a crash may have left incomplete; rebuilt"
                    )
        # The last record's keys may be incomplete: the record is dispatched again.
        ends = [self._folder.header(name)[3] for name in self._folder.names()]
        self._progress = min(max([trust.log.min_offset, *ends]), trust.log.end_offset)
        self._cut(self._progress, trust.log)
        for name in self._folder.names():
            # Whether the other program synced it is unknown.
            file = self._folder.open(name)
            file.sync()
            file.close()
        return repairs

    def _cut(self, log_offset: int, log: LogView | None) -> bool:
        """Keep the entries of records before `log_offset`; return whether any were removed."""
        changed = False
        for name in reversed(self._folder.names()):
            file = self._folder.open(name)
            entries = file.entries()
            offsets = entries["log_offset"].astype(np.int64)
            keep = valid_count(entries, log_offset)
            if keep and log is not None and not _is_of_its_record(entries[:keep], log):
                # A torn entry: the sector with its first half reached the disk, the other did not. Or all from one on
                # are of records that are gone: an opening that did not use the index has cut the log.
                keep = bisect_left(range(keep - 1), True, key=partial(_is_stale, entries, log))
            if keep == 0 and not file.is_empty:
                file.close()
                self._folder.remove(name)
                changed = True
                continue
            if self._repair_file(file, offsets, keep, log):
                file.sync()
                changed = True
            file.close()
            if keep and log is None:
                # Entries are in log order: older files have nothing to remove.
                break
        return changed

    @staticmethod
    def _repair_file(file: IndexFile, offsets: Int64s, keep: int, log: LogView | None) -> bool:
        """Cut a file to its first entries, and repair header and chains; return whether that was needed."""
        if keep == 0:
            return False
        head = file.header
        begin_ms = record_time_ms(log, int(offsets[0]), head.begin_ms)
        end_ms = record_time_ms(log, int(offsets[keep - 1]), head.end_ms)
        bounds = (begin_ms, end_ms, int(offsets[0]), int(offsets[keep - 1]))
        if keep == len(offsets) and head[:4] == bounds and file.chains_are_valid():
            return False
        file.cut(keep, begin_ms, end_ms)
        return True

    def _first_hole(self, log: LogView) -> int | None:
        """Return the first record before `progress` whose keys are in no file."""
        covered = log.min_offset
        for name in self._folder.names():
            head = self._folder.header(name)
            if head[5] <= 1:
                continue
            hole = self._first_keyed(log, covered, min(head[2], self._progress))
            if hole is not None:
                return hole
            covered = max(covered, self._end_of_record(log, head[3]))
        return self._first_keyed(log, covered, self._progress)

    @staticmethod
    def _end_of_record(log: LogView, log_offset: int) -> int:
        """Return the offset after the record at `log_offset`."""
        try:
            head = log.read(log_offset, SIZE_AND_MAGIC.size)
        except OffsetError:
            return log_offset
        return log_offset + max(int(SIZE_AND_MAGIC.unpack(head)[0]), 0)

    @staticmethod
    def _first_keyed(log: LogView, start: int, stop: int) -> int | None:
        if start >= stop:
            return None
        for batch in log.batches(start, stop):
            rows = batch.keys.rows
            rows = rows[batch.transaction_types[rows] != ROLLBACK]
            if len(rows):
                return int(batch.log_offsets[rows[0]])
        return None

    def _open_newest(self, trust: Trust, repairs: list[str]) -> None:
        names = self._folder.names()
        if not names:
            return
        self._current = self._folder.open(names[-1])
        if not trust.is_clean:
            # A process that was killed did not release the blocks allocated ahead.
            self._current.clear_ahead()
        if not trust.is_clean and not self._current.chains_are_valid():
            head = self._current.header
            self._current.cut(len(self._current.entries()), head.begin_ms, head.end_ms)
            repairs.append(f"rebuilt the chains of index file {names[-1]}")
        self._current.warm()

    # --- look-ups

    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """See `KeyIndex`. Entry times are whole seconds, so the bounds are widened by that much."""
        hashed = key_hash(topic, key)
        if self.context.read_only:
            newest, older = None, self._folder.names()
        else:
            with self._lock:
                current, older = self._current, self._folder.known_names()
                newest = current.peek() if current is not None else None
        found = newest.candidates(hashed, begin_ms, end_ms) if newest is not None else ()
        older = older if newest is None else older[:-1]
        if not older:
            return iter(found)
        found_older = (view.candidates(hashed, begin_ms, end_ms) for view in self._views(older))
        return itertools.chain(found, itertools.chain.from_iterable(found_older))

    def _views(self, names: Sequence[str]) -> Iterator[Peek]:
        """Yield a view of each file, the newest first."""
        for name in reversed(names):
            try:
                yield self._folder.reader(name)
            except FileNotFoundError:
                continue


def _is_stale(entries: "np.ndarray", log: LogView, number: int) -> bool:
    return not _is_of_its_record(entries[: number + 1], log)


def _is_of_its_record(entries: "np.ndarray", log: LogView) -> bool:
    """Return whether the last entry belongs to its record, in key and time; True if the log lacks the record."""
    at, first = int(entries["log_offset"][-1]), int(entries["log_offset"][0])
    if at < log.min_offset:
        return True
    try:
        size = int(SIZE_AND_MAGIC.unpack(log.read(at, SIZE_AND_MAGIC.size))[0])
        record = log.read(at, max(size, FIXED_SIZE))
    except OffsetError:
        return False
    if not is_valid(record, at):
        return False
    batch = DispatchBatch(RecordColumns.parse(record, [0], at), at, at + size)
    base_ms = record_time_ms(log, first, 0)
    # A file's first entry counts from another base; without the first record the time cannot be checked.
    is_timed = (
        len(entries) == 1
        or base_ms <= 0
        or int(entries["seconds"][-1]) == int(seconds_since(batch.store_times_ms, base_ms)[0])
    )
    return is_timed and bool((batch.keys.hashes == int(entries["hash"][-1])).any())
