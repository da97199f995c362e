"""Consume queues: for each topic and queue, the places of its records in the log, in order.

The files are RocketMQ's own (see `queue_files`). Each entry is written at the position that the record's queue
offset gives, so dispatching a record twice changes nothing, and a hole is repaired by dispatching the log again from
the hole on. Entries of a broker may hold the addresses of units in extension files (see `queue_files`); readers get
the tag codes of the units.

Invariants:
    * Entry n of a queue is the record whose QUEUEOFFSET is n in the queue's present generation, or a pre-blank
      entry if there is no such record. Log offsets ascend from entry to entry.
    * Between `min_offset` and `max_offset` no entry is absent (zero): Java's scan would end there.
    * No entry exists for records of prepared and rolled back transactions, of deleted topics, and of earlier
      generations of a queue (see `queue_generations`).

Safe from any thread; one lock guards all state, and no sync happens under it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from penstock.contracts import (
    QUEUE_ENTRY_SIZE,
    Checker,
    Context,
    DispatchBatch,
    QueueEnd,
    QueueIndex,
    Trust,
    is_database,
    limits,
)
from penstock.errors import StrayFileError
from penstock.escape import get_logger
from penstock.format.arrays import np
from penstock.format.names import SIDE_FOLDER
from penstock_index.queue_catalog import (
    UNKNOWN,
    ClosedQueue,
    Key,
    decode_summary,
    encode_summary,
    is_number,
)
from penstock_index.queue_files import ENTRY, PRE_BLANK, Syncs, is_whole_name
from penstock_index.queue_generations import First, Generations, select_rows, valid_end
from penstock_index.queue_lookup import QueueLookUp
from penstock_index.queue_state import SCHEDULE_TOPIC, Queue, Run, runs_of, with_present_codes

logger = get_logger(__name__)


# More files than a process may have; a greater number means "no limit".
COUNT_MAX = 1 << 31
# Entries of a queue read at once.
_READ_ENTRIES = 1 << 14


@attrs.frozen(kw_only=True)
class ConsumeQueueOptions:
    """Options of the consume queues.

    Attributes:
        open_files_max: maximum number of open queue files; more files cost descriptors, fewer files cost opens.
        sync_volume_from: from this number of unsynced files and folders on, one sync of their whole file system
            (`syncfs`) makes them durable; it also waits for others' data. Below it, each is synced separately.
            0: never.
        summary_from: from this number of queues on, a clean close records where each queue begins and ends
            (`penstock/manifest`), so that the next opening need not read their files. 0: never.
    """

    open_files_max: int = attrs.field(default=256, validator=limits(1, COUNT_MAX))
    sync_volume_from: int = attrs.field(default=256, validator=limits(0, COUNT_MAX))
    summary_from: int = attrs.field(default=256, validator=limits(0, COUNT_MAX))


class ConsumeQueueDispatcher(QueueLookUp):
    """RocketMQ's consume queues. Safe from any thread."""

    name: ClassVar[str] = "consume-queue"
    Options: ClassVar[type] = ConsumeQueueOptions

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._dirty: set[Path] = set()
        self._dirty_folders: set[Path] = set()
        self._refused: set[object] = set()
        self._compare = self._has_extensions = False
        self._generations: Generations | None = None
        self._excluded_topics: set[str] = set()
        # Removed topics, each with the log offset before which its records have no entries.
        self._removed: dict[str, int] = {}
        self._syncs = Syncs(self._files, self._pool, options.sync_volume_from)
        # Where the log began and ended at the opening, for queues opened later; the log may begin later by now.
        self._log_min = self._opened_min = self._opened_end = 0

    # --- dispatching records

    def dispatch(self, batch: DispatchBatch) -> None:
        """Write the entries of a batch, one write for each run of a queue."""
        with self._lock:
            for run in runs_of(batch, self._removed):
                if run.topic is None:
                    self._refuse(f"a record near log offset {run.log_offset}")
                    continue
                for piece in self._select_rows(run, (run.topic, run.queue)):
                    queue = self._queue_for(run.topic, run.queue)
                    if run.topic == SCHEDULE_TOPIC or self._has_extensions:
                        piece = with_present_codes(queue, piece)  # noqa: PLW2901 - the same rows
                    self._write_run(queue, piece.ordinal, piece.data)
            self._progress = max(self._progress, batch.end_offset)

    def _select_rows(self, run: Run, key: Key) -> Iterable[Run]:
        """Return the parts of a run that belong to its queue; cut the queue if they begin another generation."""
        queue, generations = self._queues.get(key), self._generations
        if generations is None or (queue is not None and queue.is_followed_by(run)):
            return (run,)
        verdict = generations.judge(key, queue, run)
        if queue is not None and verdict.cut is not None:
            self._cut_at(queue, verdict.cut)
            if verdict.cut == 0:
                self._start_generation(key, queue, run)
        if queue is None and not verdict.keep.all():
            self._warn_excluded(key[0])
        return select_rows(run, verdict.keep)

    def _start_generation(self, key: Key, queue: Queue, run: Run) -> None:
        """Start a new generation of a queue with a run; all files of the previous generation are removed."""
        assert self._generations is not None
        for base in list(queue.folder.bases):
            queue.folder.remove(base)
        self._generations.begin(key, First(run.ordinal, run.log_offset))
        logger.warning(
            "queue %s/%d restarts at 0 at log offset %d: its topic was deleted and created again; older "
            "records stay in the log without a queue entry", *key, run.log_offset,
        )  # fmt: skip

    def _warn_excluded(self, topic: str) -> None:
        if topic not in self._excluded_topics:
            self._excluded_topics.add(topic)
            logger.warning(
                "records of topic %r stay in the log without a queue entry: a broker deleted the topic, or created "
                "it again (as config/topics.json and its other queues show). To have them in queues again, list "
                "the topic there and run penstock reindex", topic,
            )  # fmt: skip

    def _refuse(self, what: str) -> None:
        if what not in self._refused:
            self._refused.add(what)
            logger.error(
                "no queue entry for %s: its topic or queue cannot be a folder name. The record stays in the log, and "
                "no other record is affected", what,
            )  # fmt: skip

    def _queue_for(self, topic: str, number: int) -> Queue:
        if (queue := self._queues.get((topic, number))) is None:
            path = self._root / topic / str(number)
            if self._files.exists(path.parent) and not self._files.is_folder(path.parent):
                raise StrayFileError(path.parent, "it is a link, or not a folder")
            # Noted before: an interrupt may come right after the folders were made.
            self._dirty_folders.update((self._root, path.parent))
            self._dirty_folders.update(self._files.make_folder(path))
            self._queues[topic, number] = queue = self._new_queue(topic, number)
        return queue

    def _write_run(self, queue: Queue, ordinal: int, data: bytes) -> None:
        folder = queue.folder
        count = len(data) // QUEUE_ENTRY_SIZE
        first = folder.file_base(ordinal)
        for base in range(first, ordinal + count, self.context.geometry.queue_entries):
            if base not in folder.bases:
                self._dirty_folders.add(folder.folder)
                folder.make_file(base, self.context.root / SIDE_FOLDER)
        end = queue.max_offset
        if queue.min_offset >= end > ordinal:
            # The queue has no entry; only its first file's name gave its end, and the log disagrees.
            end = 0
        # A gap may begin in an earlier file.
        for base in folder.bases if end < ordinal else ():
            start, stop = max(base, end), min(folder.stop_of(base), ordinal)
            self._dirty.update(folder.write(start, PRE_BLANK * (stop - start)))
        # When records are dispatched again, most entries exist already and are left unchanged. Not so after
        # the durable offset: there the page cache may show what a failed sync never wrote.
        is_known = self._compare and ordinal < queue.max_offset
        if not is_known or folder.read(ordinal, ordinal + count).tobytes() != data:
            self._dirty.update(folder.write(ordinal, data))
        # If no entry counted before, this is the first.
        counted = queue.min_offset if queue.min_offset < queue.max_offset else ordinal
        queue.min_offset = min(counted, ordinal)
        if ordinal + count >= end:
            queue.max_offset = ordinal + count
            queue.reached = int.from_bytes(data[-QUEUE_ENTRY_SIZE:][:8], "big")

    # --- durability, cutting, trimming

    def flush(self) -> int:
        """Sync the files written since the last flush; return the progress that is now durable."""
        with self._lock:
            reached = self._progress
            dirty, folders = self._dirty, self._dirty_folders
        try:
            with self._lock:
                self._dirty, self._dirty_folders = set(), set()
            self._syncs.sync(dirty, folders)
        except BaseException:
            # An interrupt leaves open which of them are synced, as a failure does.
            with self._lock:
                self._dirty |= dirty
                self._dirty_folders |= folders
            raise
        return reached

    def truncate(self, log_offset: int) -> None:
        """Cut every queue at the first entry of a record at or after `log_offset`."""
        with self._lock:
            for queue in self._queues.values():
                self._cut_queue(queue, log_offset)
            self._progress = min(self._progress, log_offset)

    def _cut_queue(self, queue: Queue, log_offset: int) -> bool:
        # Neither a binary search, nor from the first entry on: after a power cut there may be holes.
        low = min([queue.min_offset, *queue.folder.bases[:1]])
        end = queue.folder.scan_below(log_offset, low, queue.max_offset)
        if end >= queue.max_offset:
            return False
        self._cut_at(queue, end)
        return True

    def _cut_at(self, queue: Queue, ordinal: int) -> None:
        if not self._log_min and ordinal <= min(queue.folder.bases, default=0):
            # No entry is left (see `Queue.find_bounds`).
            ordinal = 0
        self._dirty.update(queue.folder.cut(ordinal))
        self._dirty_folders.add(queue.folder.folder)
        queue.max_offset = ordinal
        queue.min_offset = min(queue.min_offset, ordinal)
        queue.reached = None

    def trim(self, log_offset: int) -> None:
        """Remove leading files whose records are deleted, except the last; trim extension files; move the minimum."""
        with self._lock:
            self._log_min = max(self._log_min, log_offset)
            for queue in self._queues.opened_or_with_files(2):
                if queue.trim(log_offset):
                    self._dirty_folders.add(queue.folder.folder)
                if self._has_extensions and queue.trim_extension():
                    self._dirty_folders.add(queue.extension.folder)

    def move_min(self, log_offset: int) -> None:
        with self._lock:
            self._log_min = max(self._log_min, log_offset)
            for queue in self._queues.opened():
                queue.move_min(log_offset)

    def remove_topic(self, topic: str, log_offset: int) -> None:
        with self._lock:
            self._removed[topic] = log_offset
            for key in [key for key in self._queues if key[0] == topic]:
                self._remove_queue(key)
            folder = self._root / topic
            if self._files.is_folder(folder) and not self._files.listing(str(folder)):
                self._files.remove_folder(folder)
                self._dirty_folders.discard(folder)
                self._dirty_folders.add(self._root)

    def _remove_queue(self, key: Key) -> None:
        """Remove the files of a queue, and the queue; a file that does not belong to it stays, with its folder."""
        queue = self._queues.pop(key)
        for folder in (queue.folder.folder, self._extension_root.joinpath(key[0], str(key[1]))):
            if not self._files.is_folder(folder):
                continue
            for entry in self._files.entries(folder):
                if entry.is_file and is_number(entry.name):
                    self._pool.forget(entry.path)
                    self._files.remove(entry.path)
                    self._dirty.discard(entry.path)
            self._dirty_folders.discard(folder)
            if not self._files.listing(str(folder)):
                self._files.remove_folder(folder)
                self._dirty_folders.add(folder.parent)
        if self._generations is not None:
            self._generations.begin(key, None)

    def adopt(self, old: QueueIndex, damages: Sequence[tuple[int, int]]) -> None:
        for topic, number, ordinal, data in entries_within(old, damages):
            queue = self._queue_for(topic, number)
            if not self.entries(topic, number, ordinal, ordinal + 1).sizes.any():
                self._write_run(queue, ordinal, data)

    def keep_end(self, end: QueueEnd) -> None:
        with self._lock:
            known = self._queues.get((end.topic, end.queue))
            if known is None or known.max_offset <= end.offset:
                queue = self._queue_for(end.topic, end.queue)
                self._write_run(queue, end.offset, np.array([end[3:]], ENTRY.dtype).tobytes())
                queue.move_min(self._log_min)

    def close(self) -> None:
        self._syncs.close()
        self._pool.close()

    def stats(self) -> dict[str, int]:
        return {"queues": len(self._queues)}

    def strays(self) -> list[Path]:
        return [finding.path for finding in self._names.findings()]

    def checker(self) -> Checker | None:
        """See `Dispatcher`; queues in a database are not checked."""
        from penstock_index.queue_check import QueueChecker  # noqa: PLC0415 - only verifying needs it

        if is_database(self._files, self._root):
            return None
        return QueueChecker(self, self._names, self.context.read_history())

    # --- opening

    def load(self, trust: Trust) -> list[str]:
        """See `Dispatcher`: repair what the files themselves show, then determine where dispatch resumes."""
        self._syncs.begin(self.context.root)
        self._log_min = self._opened_min = trust.log.min_offset
        self._opened_end = trust.log.end_offset
        self._removed = dict(trust.history.removed)
        self._has_extensions = self._files.is_folder(self._extension_root)
        repairs: list[str] = []
        keys = list(self._names.folders())
        recorded = self._read_summary(trust, keys)
        if recorded is not None:
            self._queues.add_unopened(self._open_queue, recorded)
        else:
            self._open_all(keys, trust, repairs)
            if self._dirty_folders:
                # A file was removed: its entries are missing, whatever was trusted.
                trust = attrs.evolve(trust, is_clean=False)
        if not trust.is_clean:
            for queue in self._queues.values():
                valid = valid_end(queue, trust.log, trust.durable_offset)
                if valid < queue.max_offset:
                    self._cut_at(queue, valid)
        again_from = self._remove_again(repairs)
        self._generations = Generations(trust, self._queues)
        self._progress = self._resume_offset(trust, repairs)
        if again_from is not None:
            self._progress = max(min(self._progress, again_from), trust.log.min_offset)
        return repairs

    def _remove_again(self, repairs: list[str]) -> int | None:
        """Remove the queues of removed topics that have entries of removed records; return where to dispatch again.

        A crash came during the removal, or another program restored the queues. A queue without entries is removed,
        too: the name of an old file would give its end.
        """
        again_from: int | None = None
        for key in [key for key in self._queues if key[0] in self._removed]:
            before, queue = self._removed[key[0]], self._queues[key]
            first = min(queue.folder.bases, default=0)
            offsets = [log_offset for _, log_offset in queue.present(first)]
            if min(offsets, default=-1) < before:
                repairs.append(
                    f"queue {key[0]}/{key[1]} had files of a removed topic; removed them"
                )
                self._remove_queue(key)
                again_from = before if again_from is None else min(again_from, before)
        return again_from

    def _read_summary(self, trust: Trust, keys: Collection[Key]) -> dict[Key, ClosedQueue] | None:
        """Return the queues from the summary of the clean close; None if there is no valid summary."""
        if trust.summary is None:
            return None
        per_file = self.context.geometry.queue_entries
        recorded = decode_summary(trust.summary, per_file, trust.log.end_offset)
        if recorded is None or recorded.keys() != set(keys):
            logger.warning(
                "the queue summary of the last close does not match the queues and is ignored; the queue files are "
                "read instead"
            )
            return None
        return recorded

    def closing_summary(self) -> bytes | None:
        """See `Dispatcher`: where each queue begins and ends, if there are many."""
        with self._lock:
            is_wanted = 0 < self.options.summary_from <= len(self._queues)
            if not is_wanted:
                return None
            has_moved = self._log_min > self._opened_min
            known = self._queues.known(has_moved=has_moved)
            return encode_summary(self.context.geometry.queue_entries, known)

    def _unchanged(self, keys: Iterable[Key]) -> Iterator[tuple[Key, ClosedQueue]]:
        """Yield the queues whose folder has only complete files, with the first entries of these files."""
        size, root = self.context.geometry.queue_file_bytes, str(self._root)
        for topic, number in keys:
            found = self._files.listing(f"{root}/{topic}/{number}")
            if all(e.is_file and e.size == size and is_whole_name(e.name, size) for e in found):
                bases = sorted(int(e.name) // QUEUE_ENTRY_SIZE for e in found)
                yield (topic, number), ClosedQueue(tuple(bases))

    def _open_queue(self, key: Key, known: ClosedQueue) -> Queue:
        """Open a queue that was not changed since the clean close, and find its bounds."""
        queue = self._new_queue(*key)
        queue.folder.bases = list(known.bases)
        if known.max_offset != UNKNOWN and queue.confirm(known, self._log_min):
            return queue
        for stray in queue.folder.scan():
            logger.warning("%s", self._remove_stray(stray.path, stray.is_file))
        queue.find_bounds(self._log_min)
        if self._cut_queue(queue, self._opened_end):
            logger.warning("%s", _cut_message(key))
        if known.max_offset not in (UNKNOWN, queue.max_offset):
            logger.warning(
                "queue %s/%d ends at %d, not at %d as recorded at the last close; the end found in its files is "
                "used", *key, queue.max_offset, known.max_offset,
            )  # fmt: skip
        return queue

    def _open_all(self, keys: Collection[Key], trust: Trust, repairs: list[str]) -> None:
        """Open all queues; after a clean close only list the files of unchanged ones."""
        if trust.is_clean:
            self._queues.add_unopened(self._open_queue, self._unchanged(keys))
        opened = []
        for topic, number in keys:
            if (topic, number) in self._queues:
                continue
            queue = self._new_queue(topic, number)
            repairs += [self._remove_stray(s.path, s.is_file) for s in queue.folder.scan()]
            self._queues[topic, number] = queue
            queue.find_bounds(trust.log.min_offset)
            if not trust.is_clean and queue.drop_leftovers(trust.log.min_offset):
                self._dirty_folders.add(queue.folder.folder)
            opened.append(((topic, number), queue))
        for key, queue in opened:
            if self._cut_queue(queue, trust.log.end_offset):
                repairs.append(_cut_message(key))

    def _remove_stray(self, path: Path, is_file: bool) -> str:
        """Remove a queue file of a wrong size, which is rebuilt from the log; return a message that says so."""
        if not is_file or not is_number(path.name):
            return f"{path} does not belong in a queue's folder; it was not changed"
        self._files.remove(path)
        self._dirty_folders.add(path.parent)
        return f"removed queue file {path}, whose size or name is wrong; its entries are rebuilt from the log"

    def _resume_offset(self, trust: Trust, repairs: list[str]) -> int:
        """Return the log offset from which records must be dispatched again."""
        log = trust.log
        if trust.is_clean:
            return trust.durable_offset
        if trust.durable_offset <= 0:
            # Correct entries are left as they are, but whether they were synced is unknown.
            self._compare = True
            for queue in self._queues.values():
                self._dirty.update(queue.folder.path(base) for base in queue.folder.bases)
                self._dirty.update(queue.extension.paths())
            return log.min_offset
        durable = max(min(trust.durable_offset, log.end_offset), log.min_offset)
        assert self._generations is not None
        hole = self._generations.first_hole(self._queues, durable)
        if hole is not None:
            repairs.append(f"queue entries were missing from log offset {hole} on; rebuilt")
        return durable if hole is None else hole


def _cut_message(key: Key) -> str:
    return f"queue {key[0]}/{key[1]} had entries after the log's end; removed them"


def entries_within(
    old: QueueIndex, corrupt_ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield topic, queue, ordinal and bytes of the entries whose whole record is in a corrupt range."""
    for topic, number in old.queues():
        low, high = old.ends(topic, number)
        for found in old.iter_entries(topic, number, low, high, _READ_ENTRIES):
            inside = np.zeros(len(found.sizes), np.bool_)
            ends = found.log_offsets + found.sizes
            for begin, stop in corrupt_ranges:
                inside |= (found.log_offsets >= begin) & (ends <= stop) & (found.sizes > 0)
            for row in np.nonzero(inside)[0].tolist():
                fields = (found.log_offsets[row], found.sizes[row], found.tag_codes[row])
                yield topic, number, found.start + row, np.array([fields], ENTRY.dtype).tobytes()
