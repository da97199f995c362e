"""The hash index: finds records by key, in RocketMQ's own files (see `index_file`).

Files in `index/` are named by their time of making and filled one after the other; a record's keys may
lie in two. Only the newest is written. Entries are in log order, so "all up to a log offset" is a prefix
of the files: that is how recovery cuts and how it finds holes.

Invariants:
    * Every key of a record below `progress` is in the files once.
    * Lookups return candidates: hashes collide, and an entry's time is rounded; the caller compares.

Safe from any thread; no sync happens under the lock.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.contracts import (
    TAG_KEYS,
    Checker,
    Context,
    DispatchBatch,
    Foreign,
    KeyIndex,
    LogView,
    Trust,
    key_hash,
)
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.format.columns import RecordColumns
from penstock.format.java_hash import Int64s
from penstock.format.record import FIXED_SIZE, ROLLBACK, SIZE_AND_MAGIC
from penstock.format.text_columns import Keys
from penstock.format.validity import is_valid
from penstock_index.index_file import (
    Header,
    IndexFile,
    Peek,
    record_time_ms,
    seconds_since,
    sound_count,
)
from penstock_index.index_folder import IndexFolder
from penstock_index.tag_keys import has_tag_keys

logger = get_logger(__name__)


class HashIndexDispatcher(KeyIndex):
    """RocketMQ's index of keys. Safe from any thread."""

    name: ClassVar[str] = "hash-index"
    capabilities: ClassVar[frozenset[str]] = frozenset({"checks", "keys"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._folder = IndexFolder(context)
        self._lock = threading.RLock()
        self._progress = 0
        self._current: IndexFile | None = None
        self._dirty: list[IndexFile] = []

    @property
    def progress(self) -> int:
        """See `Dispatcher`."""
        return self._progress

    # --- taking records in

    def dispatch(self, batch: DispatchBatch) -> None:
        """Add the keys of a batch; records before `progress` are passed over."""
        with self._lock:
            self._add(self._wanted(batch), batch)
            self._progress = max(self._progress, batch.end_offset)

    def _wanted(self, batch: DispatchBatch) -> Keys:
        """Return the keys of a batch that are to be added."""
        keys = batch.keys
        is_rolled_back = batch.transaction_types == ROLLBACK
        if batch.start_offset >= self._progress and not is_rolled_back.any():
            return keys
        rows = keys.rows
        wanted = (batch.log_offsets[rows] >= self._progress) & ~is_rolled_back[rows]
        return Keys(rows[wanted], keys.hashes[wanted])

    def _add(self, keys: Keys, batch: DispatchBatch) -> None:
        """Add keys in order; tried again after an error or an interrupt, it goes on behind those that were added then."""
        count = len(keys.rows)
        log_offsets, times_ms = batch.log_offsets, batch.store_times_ms
        done = min(self._added(), count)
        while done < count:
            file = self._current
            if file is None or file.is_full:
                file = self._roll()
            done += file.add(keys, log_offsets, times_ms, done)

    def _added(self) -> int:
        """Return how many keys of records from `progress` on are in the files already."""
        if self._current is None or self._current.header.end_offset < self._progress:
            return 0
        count = 0
        for name in reversed(self._folder.names()):
            file = self._folder.peekable(name)
            entries = Peek(file, self.context.geometry).entries()
            file.close()
            beyond = int((entries["log_offset"] >= self._progress).sum())
            count += beyond
            if beyond < len(entries):
                break
        return count

    def _roll(self) -> IndexFile:
        """Make the next file; it takes over the full one's end as Java's does."""
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
        """Sync the files written since the last time."""
        with self._lock:
            reached = self._progress
            dirty, self._dirty = self._dirty, []
            current = self._current
        try:
            for file in dirty:
                file.sync()
            if current is not None and current.is_dirty:
                current.sync()
        except OSError:
            with self._lock:
                self._dirty = dirty + self._dirty
            raise
        for file in dirty:
            file.close()
        return reached

    def give_back(self) -> None:
        """See `Dispatcher`."""
        with self._lock:
            if self._current is not None:
                self._current.give_back()

    def truncate(self, log_offset: int) -> None:
        """Drop the keys of records at or after `log_offset`."""
        with self._lock:
            if self._current is not None and self._current.is_dirty:
                # What is kept of it must not count as durable unsynced.
                self._current.sync()
            self._close_current()
            if self._cut(log_offset, None):
                self._folder.sync()
            self._folder.forget()
            names = self._folder.names()
            # It has room: a fresh file before it is full would be none of RocketMQ's.
            self._current = self._folder.open(names[-1]) if names else None
            self._progress = min(self._progress, log_offset)

    def trim(self, log_offset: int) -> None:
        """Remove leading files whose records are all gone, never the last."""
        with self._lock:
            names = self._folder.names()
            for name in names[:-1]:
                file = self._folder.peekable(name)
                end = Peek(file, self.context.geometry).header.end_offset
                file.close()
                if end >= log_offset:
                    break
                self._folder.remove(name)
            self._folder.forget()

    def stats(self) -> dict[str, int]:
        """See `Dispatcher`."""
        with self._lock:
            keys = self._current.header.index_count - 1 if self._current else 0
        return {"files": len(self._folder.names()), "keys_in_newest": keys}

    def not_understood(self, log: LogView) -> Iterator[Foreign]:
        """See `Dispatcher`: the tags that newer brokers give entries of their own."""
        if has_tag_keys(self._newest_peek(), log):
            yield Foreign(TAG_KEYS, self._folder.path)

    def _newest_peek(self) -> Iterator[Peek]:
        for name in self._folder.names()[-1:]:
            file = self._folder.peekable(name)
            try:
                yield Peek(file, self.context.geometry)
            finally:
                file.close()

    def checker(self) -> Checker:
        """See `Dispatcher`."""
        from penstock_index.index_check import IndexChecker  # noqa: PLC0415 - only verifying needs it

        return IndexChecker(self._folder.path, self._peeks, self._folder.strays)

    def _peeks(self) -> Iterator[Peek]:
        for name in self._folder.names():
            try:
                file = self._folder.peekable(name)
            except FileNotFoundError:
                continue
            try:
                yield Peek(file, self.context.geometry)
            finally:
                file.close()

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    def close(self) -> None:
        """See `Dispatcher`."""
        with self._lock:
            self._close_current()
            self._folder.forget()
            for file in self._dirty:
                file.close()
            self._dirty = []

    # --- opening

    def load(self, trust: Trust) -> list[str]:
        """See `Dispatcher`."""
        mended = self._folder.set_aside()
        with self._lock:
            if trust.is_clean:
                self._progress = trust.durable_offset
            elif trust.durable_offset > 0:
                self._progress = max(trust.durable_offset, trust.log.min_offset)
                self._progress = min(self._progress, trust.log.end_offset)
                if self._cut(self._progress, trust.log):
                    mended.append(
                        f"cut index entries behind log offset {self._progress}; made again"
                    )
            else:
                mended.extend(self._load_foreign(trust))
            hole = None if trust.is_clean else self._first_hole(trust.log)
            if hole is not None:
                self._cut(hole, trust.log)
                self._progress = min(self._progress, hole)
                mended.append(
                    f"keys were missing from the index from log offset {hole} on; made again"
                )
            self._open_newest(trust, mended)
            self._folder.forget()
        return mended

    def _load_foreign(self, trust: Trust) -> list[str]:
        """Believe a Java store's files as far as it synced them; the rest is made again."""
        mended = []
        if trust.was_abnormal:
            for name in self._folder.names():
                if self._folder.header(name)[1] > trust.index_time_ms:
                    self._folder.remove(name)
                    mended.append(
                        f"removed index file {name}, which a crash left in doubt; made again"
                    )
        # The last record's keys may be in only partly: it is handed over again.
        ends = [self._folder.header(name)[3] for name in self._folder.names()]
        self._progress = min(max([trust.log.min_offset, *ends]), trust.log.end_offset)
        self._cut(self._progress, trust.log)
        for name in self._folder.names():
            # Whether the other program synced it is not known.
            file = self._folder.open(name)
            file.sync()
            file.close()
        return mended

    def _cut(self, log_offset: int, log: LogView | None) -> bool:
        """Keep the entries of records before `log_offset`; says whether any had to go."""
        changed = False
        for name in reversed(self._folder.names()):
            file = self._folder.open(name)
            entries = file.entries()
            offsets = entries["log_offset"].astype(np.int64)
            keep = sound_count(entries, log_offset)
            if keep and log is not None and not _is_of_its_record(entries[:keep], log):
                # Torn within: the sector with its first half reached the disk, the other did not.
                keep -= 1
            if keep == 0 and not file.is_empty:
                file.close()
                self._folder.remove(name)
                changed = True
                continue
            if self._put_right(file, offsets, keep, log):
                file.sync()
                changed = True
            file.close()
            if keep and log is None:
                # Entries are in log order: the older files have none to be dropped.
                break
        return changed

    @staticmethod
    def _put_right(file: IndexFile, offsets: Int64s, keep: int, log: LogView | None) -> bool:
        """Cut a file to its first entries, and mend header and chains; says whether that was needed."""
        if keep == 0:
            return False
        head = file.header
        begin_ms = record_time_ms(log, int(offsets[0]), head.begin_ms)
        end_ms = record_time_ms(log, int(offsets[keep - 1]), head.end_ms)
        bounds = (begin_ms, end_ms, int(offsets[0]), int(offsets[keep - 1]))
        if keep == len(offsets) and head[:4] == bounds and file.chains_are_sound():
            return False
        file.cut(keep, begin_ms, end_ms)
        return True

    def _first_hole(self, log: LogView) -> int | None:
        """Return the first record below `progress` whose keys no file has."""
        covered = log.min_offset
        for name in self._folder.names():
            head = self._folder.header(name)
            if head[5] <= 1:
                continue
            hole = self._first_keyed(log, covered, min(head[2], self._progress))
            if hole is not None:
                return hole
            covered = max(covered, self._behind(log, head[3]))
        return self._first_keyed(log, covered, self._progress)

    @staticmethod
    def _behind(log: LogView, log_offset: int) -> int:
        """Return the offset behind the record at `log_offset`."""
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

    def _open_newest(self, trust: Trust, mended: list[str]) -> None:
        names = self._folder.names()
        if not names:
            return
        self._current = self._folder.open(names[-1])
        if not trust.is_clean:
            # A process that was killed gave nothing back.
            self._current.clear_ahead()
        if not trust.is_clean and not self._current.chains_are_sound():
            head = self._current.header
            self._current.cut(len(self._current.entries()), head.begin_ms, head.end_ms)
            mended.append(f"made the chains of index file {names[-1]} anew")
        self._current.warm()

    # --- looking up

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
        looks = (look.candidates(hashed, begin_ms, end_ms) for look in self._looks(older))
        return itertools.chain(found, itertools.chain.from_iterable(looks))

    def _looks(self, names: Sequence[str]) -> Iterator[Peek]:
        """Return a look at each file, the newest first."""
        for name in reversed(names):
            try:
                yield self._folder.reader(name)
            except FileNotFoundError:
                continue


def _is_of_its_record(entries: np.ndarray, log: LogView) -> bool:
    """Say whether the last entry is that of a key of its record, with its time; yes where the log is gone."""
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
    # A file's first entry counts from another base; without the first record nothing can be said.
    is_timed = (
        len(entries) == 1
        or base_ms <= 0
        or int(entries["seconds"][-1]) == int(seconds_since(batch.store_times_ms, base_ms)[0])
    )
    return is_timed and bool((batch.keys.hashes == int(entries["hash"][-1])).any())
