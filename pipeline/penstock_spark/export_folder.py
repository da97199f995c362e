"""A folder of exported messages: Parquet files by topic and date, and a manifest of the exported offset ranges.

    topic=orders/date=2026-03-01/data-3-0000000000000000100-0000000000000000600.parquet
    topic=<cut>~<digest>/_topic.json         {"topic": ...}: a topic whose name is too long for a folder
    _penstock/about.json                     {"format": 1, "columns": [...]}
    _penstock/lock                           held by the writer
    _penstock/data/store.json                {"path": ...}: which store is called `data` here
    _penstock/data/orders/3.json             {"done": [[100, 600]]}

A file is named by store, queue and offset range, and is created atomically: written under a name that
begins with a dot, synced, renamed. The exported ranges are those in the manifest and those in the file names;
if files have been moved away, only the manifest has their ranges. The date is the store time's, in UTC.

This module needs pyarrow, but not pyspark or a JVM, since the retention policy `archive` also uses it. The folder's
manifests have one writer at a time; tasks of that writer may write files from any machine.
"""

import hashlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import attrs
import numpy as np

import penstock
from penstock.errors import ConfigError, OffsetError, StorageError
from penstock.files import Files
from penstock_spark.arrow import converter, pa, pq, store_columns
from penstock_spark.errors import DataLossError
from penstock_spark.stores import StoreSpan

FORMAT = 1
# All but `topic`, which is in the path, as Hive does it. A format of files, which does not grow with the source.
EXPORTED = (
    "key", "value", "partition", "offset", "timestamp", "timestampType", "tags", "keys", "properties",
    "bornTimestamp", "storeTimestamp", "logOffset", "messageId", "sysFlag", "flag",
)  # fmt: skip
_STATE = "_penstock"
# In the folder of a topic whose name is too long for one.
TOPIC_FILE = "_topic.json"
_NAME = re.compile(
    r"(?P<store>.+)-(?P<queue>\d+(?:@\d+)?)-(?P<start>\d{19})-(?P<stop>\d{19})\.parquet"
)
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
# With the rest of a file's name, 255 bytes at most.
_STORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Other things in the same folder.
_NO_STORES = ("about.json", "lock")
_TOPIC_BYTES_MAX = 255 - len("topic=")
_DIGEST_CHARS = 16
# Rows of a row group: some 64 MB of messages of 1 KiB.
_ROWS = 65_536
_DAY_MS = 86_400_000

Ranges = list[tuple[int, int]]


def check_store_name(name: str) -> None:
    """Raise `ConfigError` if a store's name cannot begin the names of files."""
    if not _STORE_NAME.fullmatch(name) or name in _NO_STORES:
        raise ConfigError(
            f"{name!r} cannot be used in file names as a store's name; give another name, of letters, digits, '.', '_' "
            "and '-' that begins with a letter or digit: for the policy archive by retention.archive.name"
        )


@attrs.frozen
class Written:
    """The result of one slice; `lost` is the number of its messages that no longer existed."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges sorted, with adjacent ones merged."""
    found: Ranges = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def missing(done: Ranges, start: int, stop: int) -> Ranges:
    """Return the parts of [start, stop) that are in none of the ranges, which must be merged."""
    gaps, at = [], start
    for low, high in done:
        if at < min(low, stop):
            gaps.append((at, min(low, stop)))
        at = max(at, high)
    if at < stop:
        gaps.append((at, stop))
    return gaps


class Exported:
    """One folder of exported messages. Use it as a context manager to write; not thread-safe.

    Args:
        target: the folder; created if it does not exist.
        mode: permissions of new files and folders, as 0o600; what the umask leaves if None.
    """

    def __init__(self, target: Path, mode: int | None = None) -> None:
        self.target = target
        self._state = target / _STATE
        self._mode = mode
        self._lock: Any = None

    def __enter__(self) -> Self:
        self._make_folder(self._state)
        self._lock = Files().lock(self._state / "lock")
        if self._lock is None:
            raise StorageError(
                f"another export is writing to {self.target}; nothing was exported. Try again later"
            )
        try:
            self._check_about()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _check_about(self) -> None:
        path = self._state / "about.json"
        about = _read(path)
        expected = {"format": FORMAT, "columns": list(EXPORTED)}
        if about is None:
            self._write(path, expected)
        elif about != expected:
            raise StorageError(
                f"{self.target} was exported with format {about.get('format')!r} and other columns; "
                f"this Penstock writes {FORMAT}: give a new folder"
            )

    def claim(self, name: str, store: "penstock.Store", stop: int | None = None) -> None:
        """Record which store has a name in this folder, and up to which log offset its messages are exported.

        Raises `ConfigError` if another store has the name, or the log ends before what was exported: a new store.
        """
        check_store_name(name)
        path = self._state / name / "store.json"
        root, place = store.path, os.path.realpath(store.path)
        about = _read(path) or {"path": place}
        if os.path.realpath(str(about.get("path"))) != place:
            raise ConfigError(
                f"{self.target} already has messages of a store named {name!r} at {about.get('path')}; nothing was "
                f"exported. If {root} is another store, give it another name; if the store was moved, correct the path "
                f"in {path}"
            )
        figures, before = store.stats(), about.get("stop")
        before = before if isinstance(before, int) else 0
        if before > figures["log_min_offset"] + figures["log_bytes"]:
            raise ConfigError(
                f"{self.target} has messages of {root} up to log offset {before}, which is after the end of its files; "
                f"nothing was exported, since this is a new store, or has lost its end. Give it another name"
            )
        end = figures["log_end_offset"] or 0
        stop = end if stop is None else min(stop, end)
        self._write(path, {"path": place, "stop": max(before, stop)})

    def name_of(self, topic: str) -> str:
        """Return a topic's name in this folder, as in `done`; record the whole name of one that is cut."""
        name = shortened(topic)
        path = self._folder_of(name) / TOPIC_FILE
        if name != topic and _read(path) is None:
            self._write(path, {"topic": topic})
        return name

    def _folder_of(self, topic: str) -> Path:
        return self.target / f"topic={quoted(shortened(topic))}"

    # --- what is done

    def done(self, store: str) -> dict[tuple[str, str], Ranges]:
        """Return the exported offset ranges for each (topic, queue) of a store, including those of files moved away.

        A topic is named as `name_of` names it, and a queue as `StoreSpan.queue_name` does.
        """
        found: dict[tuple[str, str], Ranges] = {}
        for path in (self._state / store).glob("*/*.json"):
            about = _read(path) or {}
            ranges = [(int(start), int(stop)) for start, stop in about.get("done", [])]
            found[unquoted(path.parent.name), path.stem] = ranges
        for topic, folder in self._topics():
            for path in folder.glob("date=*/*.parquet"):
                name = _NAME.fullmatch(path.name)
                if name is not None and name["store"] == store:
                    bounds = int(name["start"]), int(name["stop"])
                    found.setdefault((topic, name["queue"]), []).append(bounds)
        return {key: merged(ranges) for key, ranges in found.items()}

    def _topics(self) -> Iterator[tuple[str, Path]]:
        for folder in self.target.glob("topic=*"):
            yield unquoted(folder.name.removeprefix("topic=")), folder

    def clear(self, store: str) -> None:
        """Delete the incomplete files of a killed export."""
        for _, folder in self._topics():
            for path in folder.glob(f"date=*/.{store}-*"):
                path.unlink(missing_ok=True)

    def note(self, store: str, done: dict[tuple[str, str], Ranges]) -> None:
        """Write the exported ranges to the manifest."""
        for (topic, queue), ranges in done.items():
            path = self._state / store / quoted(topic) / f"{queue}.json"
            text = {"done": [list(each) for each in merged(ranges)]}
            if _read(path) != text:
                self._write(path, text)

    # --- messages

    def write(
        self, piece: StoreSpan, source: "penstock.Store", *, counts_lost: bool = False
    ) -> Written:
        """Export one slice, with a file for each date; a repeated export keeps the files of an earlier attempt.

        Messages that were deleted meanwhile are an error, or are counted if no earlier attempt has exported them.
        """
        done, start, lost = Written(), piece.start, 0
        part: _Part | None = None

        def finished(stop: int) -> Written:
            # Without the deleted messages, an earlier attempt's files have other names.
            earlier = merged(self._files_of(piece).values()) if lost else []
            return done if part is None else part.finish(done, piece, start, stop, earlier)

        def count(span: "penstock.QueueSpan", _error: OffsetError | None) -> None:
            nonlocal lost
            lost += span.stop - span.start

        try:
            for day, rows in _by_day(piece, source, count if counts_lost else _refuse):
                if part is not None and part.day != day:
                    stop = rows.column("offset")[0].as_py()
                    done = finished(stop)
                    start, part = stop, None
                if part is None:
                    folder = self._folder_of(piece.topic) / f"date={day}"
                    self._make_folder(folder)
                    part = _Part(folder, day, piece.store, self._mode)
                part.add(rows)
            done = finished(piece.stop)
            return self._with_earlier(piece, lost) if lost else done
        except BaseException:
            if part is not None:
                part.discard()
            raise

    def _files_of(self, piece: StoreSpan) -> dict[Path, tuple[int, int]]:
        """Return the complete files of one slice with their ranges, whichever attempt wrote them."""
        found = {}
        for path in self._folder_of(piece.topic).glob("date=*/*.parquet"):
            name = _NAME.fullmatch(path.name)
            if name is not None and (name["store"], name["queue"]) == (
                piece.store,
                piece.queue_name,
            ):
                start, stop = int(name["start"]), int(name["stop"])
                if piece.start <= start and stop <= piece.stop:
                    found[path] = start, stop
        return found

    def _with_earlier(self, piece: StoreSpan, lost: int) -> Written:
        """Return the result of a slice some of whose messages were deleted: an earlier attempt may have had them."""
        files = self._files_of(piece)
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        lost = min(lost, piece.stop - piece.start - rows)
        return Written(rows, sum(path.stat().st_size for path in files), len(files), lost)

    # --- small files

    def _make_folder(self, folder: Path) -> None:
        """Create a folder durably, and make the names of the folders above it durable."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            mode = 0o777 if self._mode is None else self._mode | (self._mode & 0o444) >> 2
            folder.mkdir(mode, exist_ok=True)
        # A folder that exists may come from an export that was killed before the folder was durable.
        with suppress(PermissionError):
            Files().sync_folder(folder.parent)

    def _write(self, path: Path, about: dict[str, Any]) -> None:
        self._make_folder(path.parent)
        Files(self._mode).write_whole(path, json.dumps(about).encode())


class _Part:
    """One file that is being written."""

    def __init__(self, folder: Path, day: str, store: str, mode: int | None) -> None:
        self.day = day
        self._temporary = folder / f".{store}-{uuid.uuid4().hex}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._file = os.fdopen(os.open(self._temporary, flags, mode or 0o666), "wb")
        self._writer: Any = None
        self._rows = 0
        # The queue offsets of the first row, and after the last one.
        self._bounds = 0, 0

    def add(self, rows: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._file, rows.schema, compression="zstd", use_dictionary=["tags"]
            )
        self._writer.write_batch(rows)
        offsets = rows.column("offset")
        first = self._bounds[0] if self._rows else offsets[0].as_py()
        self._bounds = first, offsets[-1].as_py() + 1
        self._rows += rows.num_rows

    def finish(
        self, done: Written, piece: StoreSpan, start: int, stop: int, earlier: Ranges
    ) -> Written:
        """Sync the file and rename it to its final name, unless an earlier attempt has exported its messages.

        Return `done` with the file's messages added.
        """
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        name = f"{piece.store}-{piece.queue_name}-{start:019d}-{stop:019d}.parquet"
        path = self._temporary.with_name(name)
        if path.exists() or not missing(earlier, *self._bounds):
            self._temporary.unlink()
        else:
            self._temporary.rename(path)
        Files().sync_folder(self._temporary.parent)
        return Written(done.rows + self._rows, done.bytes + size, done.files + 1)

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def _refuse(span: "penstock.QueueSpan", error: OffsetError | None) -> None:
    if error is not None:
        raise error
    raise DataLossError(
        f"queue {span.queue} of topic {span.topic!r} has no entries of messages [{span.start}, {span.stop})",
        "`penstock repair PATH --apply` makes those of messages that the log has; to go on without the others, open "
        "the store once without the policy `archive`",
    )


def _by_day(
    piece: StoreSpan, source: "penstock.Store", lost: "penstock.Lost"
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of a piece in order, each batch of one date."""
    convert = converter(EXPORTED)
    for batch in source.lowlevel.arrow_spans(
        [piece.span], store_columns(EXPORTED), rows=_ROWS, lost=lost
    ):
        whole = convert(batch, str(source.path))
        # The store's own column: it has every time.
        days = batch.column("store_time").cast(pa.int64()).to_numpy() // _DAY_MS
        cuts = [0, *(np.nonzero(np.diff(days))[0] + 1).tolist(), len(days)]
        for low, high in itertools.pairwise(cuts):
            if low < high:
                yield _date(int(days[low])), whole.slice(low, high - low)


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))


def quoted(topic: str) -> str:
    """Return a topic as part of a folder's name, as Hive and Spark escape it."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", topic)


def shortened(topic: str) -> str:
    """Return a topic, or what its folder is called for if the name is too long: its beginning and a digest."""
    if len(quoted(topic).encode()) <= _TOPIC_BYTES_MAX:
        return topic
    kept, room = topic, _TOPIC_BYTES_MAX - 1 - _DIGEST_CHARS
    while len(quoted(kept).encode()) > room:
        kept = kept[:-1]
    return f"{kept}~{hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_CHARS]}"


def unquoted(name: str) -> str:
    """Return the topic that a folder's name represents."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), name)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path} is not valid JSON ({error}): delete it, or restore it from a copy"
        ) from error
    if not isinstance(found, dict):
        raise StorageError(
            f"{path} was not written by an export: delete it, or restore it from a copy"
        )
    return found


def whole_topic(folder: Path) -> str | None:
    """Return the topic of a folder that is called by a part of its name; None of another folder.

    Raises:
        StorageError: the file that has the name is not one that an export wrote.
    """
    about = _read(folder / TOPIC_FILE)
    if about is None:
        return None
    topic = about.get("topic")
    if not isinstance(topic, str):
        raise StorageError(
            f"{folder / TOPIC_FILE} names no topic: delete it, or restore it from a copy"
        )
    return topic
