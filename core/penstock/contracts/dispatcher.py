"""What is derived from the log."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import attrs

from penstock.contracts.base import Strategy
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.findings import Checker
from penstock.contracts.foreign import Foreign
from penstock.contracts.history import NO_HISTORY, History
from penstock.format.columns import Buffer


class LogView(Protocol):
    """The commit log as a dispatcher may read it while it loads."""

    @property
    def min_offset(self) -> int:
        """The first byte that the log still has."""

    @property
    def end_offset(self) -> int:
        """One past the last sound record."""

    def read(self, log_offset: int, size: int) -> Buffer:
        """Return `size` bytes; `OffsetError` where the log has none."""

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the sound records from `start`, which must begin a record, up to `stop`."""

    def spans(self) -> list[tuple[int, int]]:
        """Return the stretches of bytes the log has, one a segment, oldest first."""


@attrs.frozen(kw_only=True)
class Trust:
    """How far a dispatcher may believe what it finds on disk when a store is opened.

    Attributes:
        log: the recovered commit log; derived files are never trusted over it.
        durable_offset: what the dispatcher's `flush` last answered, or 0 if that is not known:
            entries for records behind it may be torn or missing.
        is_clean: the store was closed well and no file has changed since: all may be believed.
        index_time_ms: the checkpoint's indexMsgTimestamp, which the Java store's rule looks at.
        was_abnormal: the last writer did not close the store.
        history: tells which topics a broker may have deleted. A record of such a topic that Penstock did not
            write gets no queue entry, unless an entry of the topic survives at it or before it.
        survivors: the queues as they are, where they are built again beside the old ones. What an entry there
            says of where a queue begins counts as if it were the dispatcher's own.
        summary: what the dispatcher's own `closing_summary` answered at the clean close, of files that nobody has changed
            since; None where there is none. Only ever given with `is_clean`. A sum and a digest vouch for it, so bytes
            are those that were written; all the same, nothing in it may make `load` raise, or use more than its size.
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
    """Turns new records into a derived file (`[index]`), and keeps its own progress.

    The kernel hands over batches in log order; batches may come again after a restart, from any
    offset at or below `progress`, and must change nothing then.
    Capabilities: "queues" (a `QueueIndex`), "keys" (a `KeyIndex`), "checks" (has a `checker`),
    "own-files" (its files are not touched through `Context.files`, as those of a database).
    """

    @property
    @abstractmethod
    def progress(self) -> int:
        """Every record below this log offset is in the derived files."""

    @abstractmethod
    def load(self, trust: Trust) -> list[str]:
        """Take stock of the files, cut what is not to be trusted, set `progress`.

        Everything from `progress` on is dispatched again afterwards. Returns one sentence for each
        thing that had to be mended.
        """

    @abstractmethod
    def dispatch(self, batch: DispatchBatch) -> None:
        """Take in a batch and move `progress` to its end; on an error `progress` stays."""

    @abstractmethod
    def flush(self) -> int:
        """Make the derived files durable; returns the log offset below which they are."""

    def give_back(self) -> None:
        """At a clean close, after the last `flush`: return blocks that were allocated ahead to the disk, durably."""

    def closing_summary(self) -> bytes | None:
        """At a clean close, when no file changes any more: return what saves the next `load` looking at the files.

        None for nothing. It must say no more than the files do; they go without it from time to time.
        """
        return None

    def compare_summary(self, summary: bytes) -> Iterator[str]:
        """Return what a summary gets wrong of the files as they are, a sentence each; asked for by `verify`."""
        yield from ()

    @abstractmethod
    def truncate(self, log_offset: int) -> None:
        """Forget every record at or after `log_offset`, where the log now ends, and erase what said so.

        Called while a store is opened for writing, after `load` and before any batch, if bytes after the log's
        end were cut in this opening (a torn tail after a crash), or if the dispatcher's progress or what its
        `flush` last answered is beyond that end (a log that lost its tail, a repair that cut it). Never while
        batches come, and never for a store that is opened to read. `progress` is at most `log_offset` afterwards,
        and the next `flush` makes it durable. A second call with the same offset changes nothing, nor does one
        where nothing lies at or after `log_offset`. Other records will come at these offsets. If it raises, the store
        is not opened.
        """

    @abstractmethod
    def trim(self, log_offset: int) -> None:
        """Forget what lies before `log_offset`, where retention has cut the log."""

    def not_understood(self, log: LogView) -> Iterator[Foreign]:
        """Return what another program keeps in the derived files that this dispatcher does not write.

        Asked of an instance with a read-only context, before `load`: opening for writing is refused for
        kinds that stop it. Files that are missing or damaged are no reason to raise.
        """
        yield from ()

    def checker(self) -> Checker | None:
        """Return what compares the derived files with the log, if this can be done."""
        return None

    def strays(self) -> list[Path]:
        """Return what lies among its files and is none of them; it stays there when they are rebuilt."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Let go of all files; nothing is flushed by this."""


class QueueEntries(NamedTuple):
    """Entries of one queue as columns: numpy int64 arrays of equal length.

    An entry that is missing inside the range has size 0.
    """

    log_offsets: Any
    sizes: Any
    tag_codes: Any


class EntryChunk(NamedTuple):
    """Entries of one queue that follow each other, as `QueueEntries`; at least one.

    Attributes:
        start: the queue offset of the first one.
    """

    start: int
    log_offsets: Any
    sizes: Any
    tag_codes: Any


class QueueBounds(NamedTuple):
    """What there is to read of one queue: messages [min_offset, max_offset).

    Attributes:
        topic: the topic.
        queue: the queue's number.
        min_offset: the first queue offset whose record the log still has.
        max_offset: the one behind the last entry.
        first_log_offset: log offset of the first of them; 0 where there is none.
        last_log_offset: log offset of the last of them; 0 where there is none.
        record_bytes: the mean size of the last few records.
    """

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    first_log_offset: int = 0
    last_log_offset: int = 0
    record_bytes: float = 0.0


# Entries looked at in one read at a queue's end, and in one of many.
_LAST = 64
_CHUNK = 512


class QueueIndex(Dispatcher):
    """A dispatcher that knows the order of each queue. Exactly one is configured."""

    @abstractmethod
    def queues(self) -> list[tuple[str, int]]:
        """Return every (topic, queue) there is, sorted."""

    @abstractmethod
    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset whose record the log still has; 0 for no such queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset behind the last entry; 0 for no such queue."""

    def reaches(self, topic: str, queue: int, offset: int) -> bool:
        """Return whether a queue ends at or after an offset; what the last clean close noted is enough to say yes."""
        return offset <= self.max_offset(topic, queue)

    @abstractmethod
    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries [start, stop), fewer where the queue ends or a file is missing."""

    def place(self, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
        """Return log offset and size of the record that one entry leads to, None where there is none.

        What `entries` says; an index that can tell it in less should.
        """
        log_offsets, sizes, _ = self.entries(topic, queue, offset, offset + 1)
        return (int(log_offsets[0]), int(sizes[0])) if len(sizes) and sizes[0] else None

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """Return from where to read on when `entries` has nothing at `offset`: behind a missing file, say.

        `max_offset` where nothing lies behind, and for an index that has no gaps.
        """
        return self.max_offset(topic, queue)

    def iter_entries(
        self, topic: str, queue: int, start: int, stop: int, chunk: int = _CHUNK
    ) -> Iterator[EntryChunk]:
        """Yield the entries [start, stop), at most `chunk` at a time, without the ranges whose files are missing."""
        at = start
        while at < stop:
            found = self.entries(topic, queue, at, min(at + chunk, stop))
            if len(found.sizes):
                yield EntryChunk(at, *found)
                at += len(found.sizes)
            else:
                following = self.resume_at(topic, queue, at)
                # Not forwards where another process has cut the queue, or taken it away.
                at = following if following > at else stop

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        """Return what there is to read of each queue of the wanted topics, sorted.

        Only entries of records that end at or before log offset `below` count, if it is given.
        """
        for topic, queue in self.queues():
            if wanted(topic):
                yield self.bounds_of(topic, queue, below)

    def bounds_of(self, topic: str, queue: int, below: int | None) -> QueueBounds:
        """Return what there is to read of one queue; see `bounds`."""
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

    @abstractmethod
    def end_log_offset(self) -> int:
        """Return the log offset behind the newest record that any queue points to; 0 for none."""

    def move_min(self, log_offset: int) -> None:
        """From now on name no queue offset below that of the first record at or after `log_offset` as there.

        Called before retention refuses readers the records before it; their files go later, see `trim`. An
        index that can move its bounds without taking files away should: a crash may come between.
        """
        self.trim(log_offset)

    def adopt(self, old: "QueueIndex", damages: Sequence[tuple[int, int]]) -> None:
        """Take over from `old` what the log does not tell any more.

        Called when the queues are made anew beside the old ones, after the last batch. That is the
        entries of records that lie within damaged stretches of the log: RocketMQ reads a record by its
        entry and does not check it, so an entry that led somewhere must go on to. And the ends of queues
        of which the log has no record left, or their offsets would begin at 0 again.
        """


class KeyIndex(Dispatcher):
    """A dispatcher that finds records by key."""

    @abstractmethod
    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return log offsets, newest first, of records that may have this key and store time.

        The caller checks topic, key and time in the record. None that matches may be left out.
        """
