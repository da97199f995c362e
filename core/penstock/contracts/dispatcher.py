"""Dispatchers derive files, such as queues and index, from the log; what they receive, and what their checkers find."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import attrs

from penstock.contracts.base import NO_HISTORY, QUEUE_ENTRY_SIZE, History, Strategy
from penstock.contracts.foreign import Foreign
from penstock.errors import PluginError
from penstock.format.arrays import Int64s
from penstock.format.columns import Buffer, Indexed, Keys, RecordColumns, ScannedColumns
from penstock.format.names import check_queue, check_topic
from penstock.format.properties import DELAY
from penstock.message import StoredMessage

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
# Any caller can set the property, and Python refuses to convert numbers of some thousand digits.
_LEVEL = re.compile(rb"[0-9]{1,9}")
# RocketMQ's messageDelayLevel, in seconds; level 1 is the first.
DELAY_SECONDS = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


@attrs.frozen(eq=False, kw_only=True)
class IndexColumns:
    """The columns of many records from which queues and index are built, one row a record.

    Attributes:
        topics: the distinct topics, and for each row the index of its topic.
        tag_codes: the third field of each queue entry, delivery times included.
        keys: every key to be indexed.
    """

    log_offsets: Int64s
    sizes: Int64s
    queues: Int64s
    queue_offsets: Int64s
    store_times_ms: Int64s
    transaction_types: Int64s
    topics: tuple[list[bytes], Int64s]
    tag_codes: Int64s
    keys: Keys

    def __len__(self) -> int:
        return len(self.log_offsets)


@attrs.define(slots=False, eq=False)
class DispatchBatch:
    """Valid records of the log in [start_offset, end_offset), as columns of one row a record.

    `end_offset` may be after the end of the last record: filler at a segment's end counts as consumed.
    A dispatcher must not keep the batch or views of its columns: the memory is reused afterwards.
    """

    _rows: RecordColumns | IndexColumns = attrs.field(alias="columns")
    start_offset: int
    end_offset: int

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> RecordColumns:
        """All columns of the records, with their bytes; raises `PluginError` in a reindex, which sends no records."""
        if isinstance(self._rows, IndexColumns):
            raise PluginError(
                "a dispatcher needs the records themselves, so reindex cannot rebuild its files; nothing was changed. "
                "Run reindex without that dispatcher in index.use, and rebuild its files with penstock repair"
            )
        return self._rows

    @property
    def log_offsets(self) -> Int64s:
        """Byte addresses in the commit log, ascending."""
        return self._rows.log_offsets

    @property
    def sizes(self) -> Int64s:
        """Record sizes in bytes."""
        return self._rows.sizes

    @property
    def queues(self) -> Int64s:
        """Queue numbers as the records state them; in a hostile log they may be any number."""
        return self._rows.queues

    @property
    def queue_offsets(self) -> Int64s:
        """Ordinals in the queues."""
        return self._rows.queue_offsets

    @property
    def store_times_ms(self) -> Int64s:
        """Store times, Unix milliseconds."""
        return self._rows.store_times_ms

    @cached_property
    def transaction_types(self) -> Int64s:
        """0, PREPARED, COMMIT or ROLLBACK of `penstock.format.record`."""
        return self._rows.transaction_types

    @property
    def topics(self) -> list[bytes]:
        """The distinct topics of the batch."""
        rows = self._rows
        return rows.topic_names if isinstance(rows, ScannedColumns) else rows.topics[0]

    @property
    def topic_rows(self) -> Int64s:
        """For each row the index of its topic in `topics`."""
        return self._rows.topics[1]

    @cached_property
    def _indexed(self) -> Indexed:
        return self.columns.indexed()

    @cached_property
    def tag_codes(self) -> Int64s:
        """The queue entry's third field: tag hash, or delivery time on the schedule topic."""
        if isinstance(self._rows, IndexColumns):
            return self._rows.tag_codes
        codes = self._indexed.tag_codes
        return self._with_delivery_times(codes) if SCHEDULE_TOPIC in self.topics else codes

    def _with_delivery_times(self, tag_codes: Int64s) -> Int64s:
        """Return the tag codes with delivery times for records of the schedule topic (spec section 3.2)."""
        codes = tag_codes.copy()
        scheduled = self.topic_rows == self.topics.index(SCHEDULE_TOPIC)
        delays = self.columns.properties.named(DELAY.encode())
        for row, text in zip(delays.rows.tolist(), delays.texts(), strict=True):
            if scheduled[row] and _LEVEL.fullmatch(text) and int(text) > 0:
                level = min(int(text), len(DELAY_SECONDS))
                codes[row] = int(self.store_times_ms[row]) + DELAY_SECONDS[level - 1] * 1000
        return codes

    @property
    def keys(self) -> Keys:
        """Every key to be indexed, with the index hash of `topic#key`, in log order."""
        rows = self._rows
        return rows.keys if isinstance(rows, IndexColumns | ScannedColumns) else self._indexed.keys

    @property
    def scanned(self) -> ScannedColumns | None:
        """The records as the kernel's scan found them; None if they come from elsewhere."""
        return self._rows if isinstance(self._rows, ScannedColumns) else None

    def message(self, row: int) -> StoredMessage:
        """Return one record as a message, copied out of the batch."""
        start = int(self.columns.positions[row])
        return StoredMessage(bytes(self.columns.window[start : start + int(self.sizes[row])]))


class Finding(NamedTuple):
    """One problem in a store.

    Attributes:
        part: "log", "queue", "index", or a dispatcher's own word.
        path: the file.
        position: byte in the file; -1 if the finding is not about one byte.
        log_offset: log offset of the record; -1 if the finding is not about a record.
        text: the problem, in one sentence.
        what_now: what to do; `verify` fills it in if a checker leaves it empty, or sets `COPYING`.
        is_note: a remark, not a problem: it requires no repair, and nothing is refused because of it.
    """

    part: str
    path: Path
    position: int
    log_offset: int
    text: str
    what_now: str = ""
    is_note: bool = False

    def advised(self) -> "Finding":
        """Return the finding with `what_now` filled in."""
        if self.is_note or self.what_now not in ("", COPYING):
            return self
        derived = (
            "`penstock repair PATH --apply` rebuilds it from the log; it holds only derived data"
        )
        return self._replace(what_now=_WHAT_NOW.get(self.part, derived))


# The `what_now` of a finding that is not corruption if the store was copied while it was written. In any other store,
# `verify` replaces it by the usual advice.
COPYING = "copied while it was written"

# What else helps against corruption in the log, and what to do about it.
CUT_END = "`penstock repair PATH --apply` cuts the log there, and saves the rest; or restore the segment from a copy"
WITHOUT_REPAIR = "restore the segment from a copy, or export the readable messages and import them into a new store"
ONLY_CUT = (
    f"{WITHOUT_REPAIR}; as a last resort, `penstock repair PATH --apply --cut` cuts the log at the "
    "first corruption, and saves what it cuts off"
)
CORRUPT_LOG = (
    "`penstock repair PATH --apply --quarantine` marks the range as unreadable, and the store then opens for writing "
    f"with all other messages; if that is refused, {ONLY_CUT}"
)

_WHAT_NOW = {
    "log": CORRUPT_LOG,
    "digest": "restore the segment from a copy; `penstock repair PATH --apply` corrects a single flipped "
    "bit of a block, `--accept` accepts the bytes as they are",
    "marks": "`penstock repair PATH --apply` rewrites it; until then an opening reads more of the log",
}


def damaged_blocks(path: Path, base_offset: int, start: int, stop: int) -> Finding:
    """Return the finding for a range of a segment that differs from its digest."""
    text = f"bytes {start} to {stop} have changed since the segment was sealed"
    return Finding("digest", path, start, base_offset + start, text)


class Checker(ABC):
    """Compares derived files with the log for `verify`; changes nothing.

    Several processes may use a splittable checker, each for a part of the batches. The result of each one's
    `seen` is then passed to `take` of the checker whose `start` and `finish` are called.
    """

    is_splittable: ClassVar[bool] = False

    def start(self) -> Iterator[Finding]:
        """Return the problems that the derived files show without the log."""
        yield from ()

    def damage(self, start: int, stop: int) -> None:  # noqa: B027 - optional
        """Note that the log has no valid records in [start, stop)."""

    def seen(self) -> object:
        """Return the state that `finish` needs of the batches so far, and reset it; must be picklable."""
        return None

    def take(self, seen: Any) -> None:  # noqa: B027 - optional
        """Add the state that another checker's `seen` returned."""

    @abstractmethod
    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """Return the problems for these records; each batch is passed once, in log order."""

    @abstractmethod
    def finish(self, end: int) -> Iterator[Finding]:
        """Return the problems with content of the files, below log offset `end`, for which no record was passed."""


class LogView(Protocol):
    """The commit log as a dispatcher may read it while it loads."""

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that the log still has."""

    @property
    def end_offset(self) -> int:
        """Log offset after the last valid record."""

    def read(self, log_offset: int, size: int) -> Buffer:
        """Return `size` bytes; raises `OffsetError` if the log does not have them."""

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the valid records in [start, stop); a record must begin at `start`."""

    def spans(self) -> list[tuple[int, int]]:
        """Return the ranges of bytes that the log has, one a segment, oldest first."""


@attrs.frozen(kw_only=True)
class Trust:
    """How far a dispatcher may trust its files when a store is opened.

    Attributes:
        log: the recovered commit log; if derived files differ from it, the log is right.
        durable_offset: the offset that the dispatcher's `flush` last returned, or 0 if that is not known:
            entries of records after it may be torn or missing. If openings have left the dispatcher out, entries of
            records after it may also be of records that the log has lost since.
        is_clean: the store was closed cleanly and no file has changed since: all files may be trusted.
        index_time_ms: the checkpoint's indexMsgTimestamp, which the Java store's rule uses.
        was_abnormal: the last writer did not close the store.
        history: returns which topics a broker may have deleted. A record of such a topic that Penstock did not
            write gets no queue entry, unless there is an entry of the topic for that record or for an earlier one.
        survivors: the existing queues, if queues are rebuilt beside them. An entry there that shows where a queue
            begins counts like an entry of the dispatcher itself.
        summary: the result of the dispatcher's own `closing_summary` at the clean close, of files that have not changed
            since; None if there is none. Only passed if `is_clean`. A CRC and a digest protect it, so its bytes are
            those that were written. Nevertheless, no content may make `load` raise, or use more memory than its size.
    """

    log: LogView
    durable_offset: int
    is_clean: bool
    was_abnormal: bool
    index_time_ms: int = 0
    history: History = NO_HISTORY
    survivors: "QueueIndex | None" = None
    summary: bytes | None = None


class Dispatcher(Strategy):
    """Derives files from new records (`[index]`), and keeps its own progress.

    The kernel passes batches in log order. After a restart it may pass batches again, from any offset at or
    below `progress`; they must not change anything then.
    Capabilities: "own-files" (does not access its files through `Context.files`; for example a database).
    """

    @property
    @abstractmethod
    def progress(self) -> int:
        """Every record below this log offset is in the derived files."""

    @abstractmethod
    def load(self, trust: Trust) -> list[str]:
        """Read the files, remove content that cannot be trusted, and set `progress`.

        Everything from `progress` on is dispatched again afterwards. Returns one sentence for each
        repair.
        """

    @abstractmethod
    def dispatch(self, batch: DispatchBatch) -> None:
        """Process a batch and move `progress` to its end; on an error `progress` must not change.

        A batch may be empty, for example over what retention has deleted.
        """

    @abstractmethod
    def flush(self) -> int:
        """Make the derived files durable; return the log offset below which all records are durable in them."""

    def give_back(self) -> None:
        """At a clean close, after the last `flush`: free blocks that were allocated ahead, durably."""

    def closing_summary(self) -> bytes | None:
        """Return a summary at a clean close, after the last change of a file: the next `load` need not read the files.

        None for no summary. It must not hold facts that the files do not hold: a summary may be lost.
        """
        return None

    def compare_summary(self, summary: bytes) -> Iterator[str]:
        """Yield one sentence for each difference between a summary and the files; called by `verify`."""
        yield from ()

    @abstractmethod
    def truncate(self, log_offset: int) -> None:
        """Forget every record at or after `log_offset`, and erase what was derived from them.

        Called while a store is opened for writing, after `load` and before any batch, in three cases. Bytes after the
        log's end were cut in this opening (a torn tail after a crash). Or the dispatcher's progress, or the offset that
        `flush` last returned, is after that end (a log that lost its tail, a repair that cut it). In both cases the log
        ends at `log_offset`. Or the log may have lost its tail in an opening without this dispatcher, or of another
        program: it has other records from `log_offset` on. Never called
        while batches are dispatched, and never for a store that is opened for reading. `progress` must be at most
        `log_offset` afterwards, and the next `flush` must make the change durable. A second call with the same offset
        must change nothing. A call must also change nothing if no record is at or after `log_offset`. Other records
        will be written at these offsets. If this raises, the store is not opened.
        """

    @abstractmethod
    def trim(self, log_offset: int) -> None:
        """Forget records before `log_offset`, which retention has deleted from the log."""

    def not_understood(self, log: LogView) -> Iterator[Foreign]:
        """Return data of another program in the derived files that this dispatcher does not write.

        Called before `load`, on an instance with a read-only context. Opening for writing is refused for kinds of data
        that prevent it. Missing or corrupt files must not make this raise.
        """
        yield from ()

    def checker(self) -> Checker | None:
        """Return an object that compares the derived files with the log; None if the dispatcher has none.

        An instance of a store that is opened read-only, or repaired, never gets `load`: it must read the files itself.
        """
        return None

    def strays(self) -> list[Path]:
        """Return files in the dispatcher's folders that do not belong to it; a rebuild does not remove them."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Close all files; nothing is flushed."""


class QueueEntries(NamedTuple):
    """Entries of one queue as columns: numpy int64 arrays of equal length.

    An entry that is missing inside the range has size 0; where no record belongs, for example after a repair, it has
    log offset -1, too.
    """

    log_offsets: Any
    sizes: Any
    tag_codes: Any


class EntryChunk(NamedTuple):
    """Consecutive entries of one queue, as in `QueueEntries`; at least one.

    Attributes:
        start: the queue offset of the first entry.
    """

    start: int
    log_offsets: Any
    sizes: Any
    tag_codes: Any


class QueueBounds(NamedTuple):
    """The readable messages of one queue: queue offsets [min_offset, max_offset).

    Attributes:
        topic: the topic.
        queue: the queue's number.
        min_offset: the first queue offset whose record the log still has.
        max_offset: the queue offset after the last entry.
        first_log_offset: log offset of the first message; 0 if there is none.
        last_log_offset: log offset of the last message; 0 if there is none.
        record_bytes: the mean size of the last few records.
    """

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    first_log_offset: int = 0
    last_log_offset: int = 0
    record_bytes: float = 0.0


# A queue of RocketMQ has no larger offset, and no record or address is larger.
_END_MAX, _SIZE_END, _OFFSET_END = (1 << 62) // QUEUE_ENTRY_SIZE, (1 << 31) - 1, 1 << 63


class QueueEnd(NamedTuple):
    """The last entry of a queue without records, which retention has deleted: the queue goes on after it.

    Attributes:
        topic: the topic.
        queue: the queue's number.
        offset: the queue offset of the entry.
        log_offset: the entry's three fields, as in `QueueEntries`.
    """

    topic: str
    queue: int
    offset: int
    log_offset: int
    size: int
    tag_code: int

    @classmethod
    def of(cls, told: Sequence[Any]) -> "QueueEnd":
        """Return what another store has told; raises `TypeError`, `ValueError` or `MessageError` if no store has it."""
        end = cls(*told)
        check_topic(end.topic, long=True)
        check_queue(end.queue)
        limits = zip(
            end[2:],
            (0, 0, 1, -_OFFSET_END),
            (_END_MAX, _OFFSET_END, _SIZE_END, _OFFSET_END),
            strict=True,
        )
        if not all(type(number) is int and low <= number < stop for number, low, stop in limits):
            raise ValueError(f"{end[2:]} is no entry of a queue")
        return end


# Entries that are read at once: at a queue's end, and in a loop over a queue.
_LAST = 64
_CHUNK = 512


class QueueReader(ABC):
    """Maps the offsets of each queue to records."""

    @abstractmethod
    def queues(self) -> list[tuple[str, int]]:
        """Return all queues as (topic, queue), sorted."""

    @abstractmethod
    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset whose record the log still has; 0 if there is no such queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset after the last entry; 0 if there is no such queue."""

    def ends(self, topic: str, queue: int) -> tuple[int, int]:
        """Return `min_offset` and `max_offset`; an index that has a faster way to both should override it."""
        return self.min_offset(topic, queue), self.max_offset(topic, queue)

    def reaches(self, topic: str, queue: int, offset: int) -> bool:
        """Return whether a queue ends at or after an offset; may return True on the basis of the last clean close."""
        return offset <= self.max_offset(topic, queue)

    @abstractmethod
    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries [start, stop), fewer if the queue ends or a file is missing."""

    def place(self, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
        """Return log offset and size of the record that an entry points at; None if there is no entry.

        Must agree with `entries`; an index that has a faster way should override it.
        """
        log_offsets, sizes, _ = self.entries(topic, queue, offset, offset + 1)
        return (int(log_offsets[0]), int(sizes[0])) if len(sizes) and sizes[0] else None

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """Return the next queue offset to read if `entries` has nothing at `offset`, for example after a missing file.

        Returns `max_offset` if there are no later entries, or the index has no gaps.
        """
        return self.max_offset(topic, queue)

    def iter_entries(
        self, topic: str, queue: int, start: int, stop: int, chunk: int = _CHUNK
    ) -> Iterator[EntryChunk]:
        """Yield the entries [start, stop), at most `chunk` at a time; ranges whose files are missing are skipped."""
        at = start
        while at < stop:
            found = self.entries(topic, queue, at, min(at + chunk, stop))
            if len(found.sizes):
                yield EntryChunk(at, *found)
                at += len(found.sizes)
            else:
                following = self.resume_at(topic, queue, at)
                # Stop if it does not advance: another process has cut or removed the queue.
                at = following if following > at else stop

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        """Return the readable messages of each queue of the wanted topics, sorted.

        If `below` is given, only entries of records that end at or before that log offset count.
        """
        for topic, queue in self.queues():
            if wanted(topic):
                yield self.bounds_of(topic, queue, below)

    def bounds_of(self, topic: str, queue: int, below: int | None) -> QueueBounds:
        """Return the readable messages of one queue; see `bounds`."""
        low, high = self.min_offset(topic, queue), self.max_offset(topic, queue)
        end, chunk = high if below is None else 0, _LAST
        while high > low:
            start = max(high - chunk, low)
            found = list(self.iter_entries(topic, queue, start, high, chunk))
            for at, offsets, sizes, _ in reversed(found):
                good = sizes > 0
                if below is not None:
                    good &= offsets + sizes <= below
                present = good.nonzero()[0]
                if len(present):
                    last = int(present[-1])
                    first = self.entries(topic, queue, low, low + 1).log_offsets
                    return QueueBounds(
                        topic, queue, low, max(at + last + 1, end), int(first[0]) if len(first) else 0,
                        int(offsets[last]), float(sizes[present].mean()),
                    )  # fmt: skip
            high, chunk = start, min(chunk * 4, 1 << 16)
        return QueueBounds(topic, queue, low, low)

    def lone_ends(self) -> Iterator[QueueEnd]:
        """Yield the ends of the queues without records: retention has deleted them, and the queues go on there."""
        for topic, queue in self.queues():
            low, high = self.ends(topic, queue)
            last = self.entries(topic, queue, high - 1, high) if low == high > 0 else ()
            for log_offset, size, code in zip(*last, strict=True):
                if size > 0:
                    yield QueueEnd(topic, queue, high - 1, int(log_offset), int(size), int(code))

    @abstractmethod
    def end_log_offset(self) -> int:
        """Return the log offset after the newest record that any queue points to; 0 if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Close all files."""


class QueueIndex(QueueReader, Dispatcher):
    """A dispatcher that writes the queues. Exactly one must be configured."""

    def move_min(self, log_offset: int) -> None:
        """Move each queue's `min_offset` to that of its first record at or after `log_offset`.

        Called before retention makes earlier records unreadable; their files are deleted later, see `trim`. An index
        that can move its bounds without deleting files should do so: a crash may come in between.
        """
        self.trim(log_offset)

    def remove_topic(self, topic: str, log_offset: int) -> None:
        """Remove all queues of a topic, and from now on leave out its records before `log_offset`.

        The removal is already recorded durably (`History.removed`), so a crash in between is completed by the next
        `load`, which must leave out such records as well. Called with no batch of later records dispatched yet; batches
        that were not dispatched may hold earlier records. An index that does not override this cannot remove topics.
        """
        raise NotImplementedError

    def adopt(self, old: "QueueIndex", damages: Sequence[tuple[int, int]]) -> None:
        """Copy from `old` the entries of records within corrupt ranges of the log.

        Called when the queues are rebuilt beside the old ones, after the last batch. RocketMQ reads a record by its
        entry and does not check it.

        Args:
            old: the existing queues.
            damages: the corrupt ranges of the log.
        """

    def keep_end(self, end: QueueEnd) -> None:
        """Let a queue go on after its last entry, whose record the log does not have; its offsets would begin at 0.

        Called after the last batch of a rebuild, and on a copy of another store, for queues that may be
        without records. A queue that ends later must not change. The next `flush` makes it durable.
        """


class KeyIndex(Dispatcher):
    """A dispatcher that finds records by key."""

    @abstractmethod
    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return log offsets, newest first, of records that may have this key and store time.

        The caller checks topic, key and time of each record. The result must include every matching record.
        """
