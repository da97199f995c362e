"""Export: messages of a store, by topic, queue, time, tag and key, to one file, which appears whole or not.

The rows are written to `FILE.part`, which is synced and renamed at the end: a file called FILE is complete. If the
export fails or is interrupted, the part is removed. A killed process leaves it, and the next export of the same file
overwrites it. A lock on the part keeps two exports to the same file apart.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import attrs

from penstock.contracts import is_light
from penstock.errors import BusyError, ConfigError, OffsetError
from penstock.escape import near
from penstock.files import Files
from penstock.format.names import is_hidden, is_waiting
from penstock.message import StoredMessage
from penstock.read.filters import TagFilter, has_key
from penstock.read.spans import Lost, QueueSpan, refuse_lost
from penstock.store.store import Store
from penstock_tools.exchange.rows import MessageRow, batches_of, row_of
from penstock_tools.exchange.text_files import (
    ARROW,
    CSV,
    NDJSON,
    CsvWriter,
    FileFormat,
    NdjsonWriter,
    compressed,
    kind_of,
)

# Topics that one line lists.
_LISTED_MAX = 20


@attrs.frozen(kw_only=True)
class Selection:
    """Which messages to export; all by default. All given conditions must hold.

    Attributes:
        topics: the topics; all if empty, except those whose queues only refer to messages of other topics (`%LMQ%`),
            and those whose messages wait to be delivered or committed (`penstock.format.names.is_waiting`).
        queues: the numbers of the queues; all if empty.
        since_ms: stored at or after this time, in Unix milliseconds.
        until_ms: stored at or before this time, in Unix milliseconds.
        tag: a tag expression: `*`, one tag, or multiple tags joined by `||`.
        keys: the message has one of these keys; any if empty.
    """

    topics: Sequence[str] = ()
    queues: Sequence[int] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    tag: str = "*"
    keys: Sequence[str] = ()

    def spans(self, store: Store) -> list[QueueSpan]:
        """Return the ranges of queues to read, as they are now.

        Raises `ConfigError` for a topic or a queue that the store does not have.
        """
        known = store.topics(system=True)
        for topic in self.topics:
            if topic not in known:
                shown = [name for name in known if not is_hidden(name)]
                listed = ", ".join(shown[:_LISTED_MAX]) or "none"
                more = f" and {len(shown) - _LISTED_MAX} more" if len(shown) > _LISTED_MAX else ""
                raise ConfigError(
                    f"there is no topic {topic!r}{near(topic, shown)}; topics in the store: {listed}{more}"
                )
        bounds = store.lowlevel.bounds(self._has_topic)
        there = {each.queue for each in bounds}
        for queue in self.queues:
            if queue not in there:
                raise ConfigError(f"there is no queue {queue}; queues: {sorted(there)}")
        # If nothing was ever deleted, queues begin at 0, even one that has lost its first entries.
        is_whole = store.stats()["log_min_offset"] == 0
        found = []
        for each in bounds:
            if not self.queues or each.queue in self.queues:
                start, stop = self._range(store, each.topic, each.queue)
                start, stop = max(start, each.min_offset), min(stop, each.max_offset)
                if is_whole and start == each.min_offset:
                    start = 0
                found.append(QueueSpan(each.topic, each.queue, start, max(start, stop)))
        return found

    def _has_topic(self, topic: str) -> bool:
        if self.topics:
            return topic in self.topics
        return not is_light(topic) and not is_waiting(topic)

    def _range(self, store: Store, topic: str, queue: int) -> tuple[int, int]:
        start, stop = 0, 1 << 62
        if self.since_ms is not None:
            start = store.offset_at(topic, queue, self.since_ms / 1000)
        if self.until_ms is not None:
            stop = store.offset_at(topic, queue, (self.until_ms + 1) / 1000)
        return start, stop

    def messages(
        self, store: Store, spans: Sequence[QueueSpan], lost: Lost = refuse_lost
    ) -> Iterator[StoredMessage]:
        """Yield the messages of these ranges that the conditions select, in the order in which they were stored."""
        tags = TagFilter(self.tag).tags
        for message in store.lowlevel.scan_spans(spans, tags=tags, lost=lost):
            if not self.keys or any(has_key(message, key) for key in self.keys):
                yield message


_BUFFER = 1 << 20

OnProgress = Callable[[int, int], None]


class RowWriter(Protocol):
    """Writes rows in one format."""

    def write(self, rows: list[MessageRow]) -> None:
        """Write some rows."""

    def finish(self) -> None:
        """Write what ends the file."""


@attrs.frozen(kw_only=True)
class ExportSummary:
    """The result of an export.

    Attributes:
        path: the file; `-` for standard output.
        format: its format.
        messages: exported messages.
        bytes: size of the file.
        topics: exported messages by topic.
        unreadable: selected messages that are corrupt, or whose segment or queue entry is missing, and are not in the
            file.
        deleted: selected messages that retention deleted during the export, and are not in the file.
    """

    path: str
    format: str
    messages: int
    bytes: int
    topics: dict[str, int]
    unreadable: int
    deleted: int


def export_messages(
    store: Store,
    path: str | Path,
    selection: Selection | None = None,
    *,
    kind: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = lambda _done, _total: None,
) -> ExportSummary:
    """Export messages of a store to a file, in the order in which they were stored.

    The messages are those that are there at the call. The memory used does not depend on their number. Raises
    `ConfigError` if the format is not known, the topic does not exist or the file exists, `BusyError` if another export
    writes it, and `OSError` if it cannot be written; then there is no file.

    Args:
        store: the store, read-only or not.
        path: the file. Its name's ending selects the format: `.ndjson`, `.csv`, `.parquet`, `.arrow`; with
            `.gz` after the first two, the file is compressed.
        selection: which messages; all by default.
        kind: the format, one of `formats.FORMATS`, if the name does not say it.
        overwrite: replace an existing file.
        on_progress: called with the messages read, and how many there are to read.
    """
    target, asked = Path(path), kind_of(str(path), kind)
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists: give another name, or --overwrite to replace it")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is not a folder: create it first")
    exporting = _Export(store, selection or Selection(), on_progress)
    with _part_of(target, Files()) as part:
        exporting.write(part, asked)
        size = part.tell()
    return exporting.report(str(path), asked.format, size)


def export_stream(
    store: Store,
    file: BinaryIO,
    selection: Selection | None = None,
    *,
    kind: str,
    on_progress: OnProgress = lambda _done, _total: None,
) -> ExportSummary:
    """Export messages of a store to an open file, for example a pipe; see `export_messages`.

    The format `arrow` is written as an Arrow stream, which needs no seeking.
    """
    exporting = _Export(store, selection or Selection(), on_progress)
    counted = _Counted(file)
    exporting.write(cast("BinaryIO", counted), kind_of("-", kind), is_stream=True)
    file.flush()
    return exporting.report("-", kind, counted.count)


@contextmanager
def _part_of(target: Path, files: Files) -> Iterator[BinaryIO]:
    """Open the part of a file, and rename it to the file at the end; remove it if the block fails."""
    path = target.with_name(target.name + ".part")
    lock = files.lock_one(path)
    if lock is None:
        raise BusyError(f"another export writes {path}", 0)
    try:
        with path.open("wb", buffering=_BUFFER) as part:
            yield part
        with files.open(path, writable=True) as synced:
            synced.sync_all()
        files.rename(path, target)
        files.sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        lock.release()


class _Counted(io.RawIOBase):
    """Counts the bytes written to a file that cannot tell its position, and stays open. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.count = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._file.write(data)
        self.count += size
        return size

    def tell(self) -> int:
        return self.count

    def writable(self) -> bool:
        return True


class _Export:
    """One export: reads, writes and counts. Not thread-safe."""

    def __init__(self, store: Store, selection: Selection, on_progress: OnProgress) -> None:
        self._store = store
        self._selection = selection
        self._on_progress = on_progress
        self._topics: Counter[str] = Counter()
        self._deleted = self._missing = 0
        self._unreadable_before = store.lowlevel.damaged_reads

    def write(self, file: BinaryIO, kind: FileFormat, *, is_stream: bool = False) -> None:
        """Write all selected messages."""
        spans = self._selection.spans(self._store)
        total = sum(span.stop - span.start for span in spans)
        inner = compressed(file) if kind.is_gzip else file
        writer = writer_of(inner, kind.format, is_stream=is_stream)
        self._on_progress(0, total)
        found = map(row_of, self._selection.messages(self._store, spans, self._lost))
        for rows in batches_of(found, lambda row: row.size):
            writer.write(rows)
            self._topics.update([row.topic for row in rows])
            self._on_progress(self._topics.total(), total)
        writer.finish()
        if inner is not file:
            inner.close()

    def _lost(self, span: QueueSpan, error: OffsetError | None) -> None:
        count = span.stop - span.start
        # Retention deletes the oldest segments, and the beginnings of queues.
        if error is not None:
            is_missing = error.offset >= self._store.stats()["log_min_offset"]
        else:
            low = self._store.min_offset(span.topic, span.queue)
            if span.start < low and self._store.stats()["log_min_offset"] == 0:
                low = 0
            # A topic that was deleted meanwhile has an earlier end.
            is_missing = low <= span.start < self._store.max_offset(span.topic, span.queue)
        if is_missing:
            self._missing += count
        else:
            self._deleted += count

    def report(self, path: str, kind: str, size: int) -> ExportSummary:
        return ExportSummary(
            path=path, format=kind, messages=self._topics.total(), bytes=size,
            topics=dict(sorted(self._topics.items())), deleted=self._deleted,
            unreadable=self._store.lowlevel.damaged_reads - self._unreadable_before + self._missing,
        )  # fmt: skip


def writer_of(file: BinaryIO, kind: str, *, is_stream: bool) -> RowWriter:
    """Return the writer of a format."""
    if kind == NDJSON:
        return NdjsonWriter(file)
    if kind == CSV:
        return CsvWriter(file)
    # pyarrow is an extra; this raises `MissingExtraError` if it is not installed.
    arrow_files = import_module("penstock_tools.exchange.arrow_files")
    if kind == ARROW:
        made: RowWriter = arrow_files.ArrowWriter(file, is_stream=is_stream)
    else:
        made = arrow_files.ParquetWriter(file)
    return made
