"""Checks beside those of records: metadata files, marks of atomic batches, and what explains findings in a copy.

A copy of a store that was made during writes contains each file at a different time, so its queues, index and metadata
files may be ahead of its log or lag it, and the log may end with an incomplete record. Opening the copy for writing
repairs all of that. Copying never explains invalid bytes before the last valid record of the log.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.contracts.dispatcher import COPYING, Finding
from penstock.durability.progress import CHECKPOINT_BYTES, Progress, State
from penstock.durability.replica_file import read_replica
from penstock.durability.side_folder import (
    CleanClose,
    SideFolder,
    fingerprint,
    manifest_path,
    read_manifest,
    vouched_for,
)
from penstock.durability.written_ranges import read_ranges
from penstock.errors import CorruptionError, FormatVersionError, StorageError
from penstock.files import Files
from penstock.format.arrays import np
from penstock.format.columns import RecordColumns
from penstock.format.names import NAME_DIGITS, SIDE_FOLDER, segment_name
from penstock.integrity.segment_digests import BLOCK_BYTES, Digests, file_bytes
from penstock.log.scan import batch_marks, read_mark
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

_TIMES = struct.Struct(">qqq")
_TIME_NAMES = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")


def check_marks(
    files: Files,
    root: Path,
    log_end: int,
    last_time_ms: int,
    *,
    is_ours: bool,
    dispatchers: Sequence[Dispatcher] = (),
) -> Iterator[Finding]:
    """Yield the findings in the metadata files of a store that no process writes.

    The offsets in them are lower bounds: a value that is too low is not a finding. The files in the side folder
    are checked only if Penstock wrote last.

    Args:
        files: the file system.
        root: the store's folder.
        log_end: log offset after the last valid record.
        last_time_ms: the greatest store time of any record.
        is_ours: whether Penstock wrote last.
        dispatchers: opened read-only; they check their summaries in the manifest.
    """
    yield from _check_checkpoint(files, root / "checkpoint", last_time_ms, is_ours=is_ours)
    folder = root / SIDE_FOLDER
    if files.is_folder(folder):
        yield from _check_progress(files, root, log_end, is_ours=is_ours)
        yield from _check_clean(files, root, log_end, dispatchers, is_ours=is_ours)
        try:
            has_ranges = read_ranges(files, root) is not None
        except StorageError as error:
            yield Finding("marks", folder / "ranges", 0, -1, str(error))
            has_ranges = True
        if not has_ranges:
            text = (
                "the file of written ranges has no valid content: the existing records are checked like those of a "
                "store whose records have no CRC of the whole record"
            )
            yield Finding("marks", folder / "ranges", 0, -1, text)
        try:
            read_replica(files, root)
        except CorruptionError as error:
            yield Finding(
                "marks", folder / "replica", 0, -1, f"it has no valid content: {error.found}"
            )
        except StorageError as error:
            yield Finding("marks", folder / "replica", 0, -1, str(error))


def _check_clean(
    files: Files, root: Path, log_end: int, dispatchers: Sequence[Dispatcher], *, is_ours: bool
) -> Iterator[Finding]:
    """Yield the findings in the clean-close file, and in what must agree with it."""
    side_folder = SideFolder(files, root)
    path, clean = side_folder.path / "clean", side_folder.read_clean()
    # Read again: the file may have been created after the first read.
    if clean is None and files.exists(path) and (clean := side_folder.read_clean()) is None:
        yield Finding("marks", path, 0, -1, "the clean-close file has no valid content")
    if clean is None or not is_ours:
        return
    if clean.log_end != log_end:
        text = f"the clean-close file has the log's end at {clean.log_end}, but the log ends at {log_end}"
        yield Finding("marks", path, 0, log_end, text)
    for text in _check_manifest(files, root, clean, dispatchers):
        yield Finding("marks", manifest_path(root), 0, -1, text)


def _check_manifest(
    files: Files, root: Path, clean: CleanClose, dispatchers: Sequence[Dispatcher]
) -> Iterator[str]:
    """Yield the errors in the manifest; it is used only together with a clean-close file."""
    if not files.exists(manifest_path(root)):
        return
    found = read_manifest(files, root)
    if found is None:
        yield "the manifest has no valid content; the next open reads the files instead"
    elif found[0] != clean.digest:
        yield "the manifest does not belong to the clean-close file; the next open reads the files instead"
    elif clean.digest == fingerprint(files, vouched_for(root)):
        for dispatcher in dispatchers:
            summary = found[1].get(dispatcher.name)
            for text in () if summary is None else dispatcher.compare_summary(summary):
                yield f"the manifest is wrong about {dispatcher.name}: {text}"


def _check_checkpoint(
    files: Files, path: Path, last_time_ms: int, *, is_ours: bool
) -> Iterator[Finding]:
    """Yield the findings in the checkpoint: its length, and times after the last record."""
    try:
        data = files.read_whole(path)
    except OSError as error:
        yield Finding("marks", path, -1, -1, f"the checkpoint cannot be read: {error.strerror}")
        return
    if len(data) != CHECKPOINT_BYTES:
        text = f"the checkpoint has {len(data)} bytes, not {CHECKPOINT_BYTES}"
        yield Finding("marks", path, len(data), -1, text)
    if len(data) < _TIMES.size:
        return
    for number, (name, time_ms) in enumerate(
        zip(_TIME_NAMES, _TIMES.unpack_from(data), strict=True)
    ):
        if time_ms < 0 or (is_ours and time_ms > last_time_ms):
            text = f"{name} is {time_ms}, but the latest record has the store time {last_time_ms}"
            yield Finding("marks", path, 8 * number, -1, text, "" if time_ms < 0 else COPYING)


def _check_progress(files: Files, root: Path, log_end: int, *, is_ours: bool) -> Iterator[Finding]:
    """Yield the findings in the progress file: unreadable, or offsets after the log's end."""
    path = root / SIDE_FOLDER / "progress"
    if not files.exists(path):
        yield Finding("marks", path, -1, -1, "the progress file does not exist")
        return
    try:
        state = Progress(files, root).read()
    except (FormatVersionError, OSError) as error:
        yield Finding("marks", path, 0, -1, f"the progress file cannot be read: {error}")
        return
    if state == State():
        yield Finding("marks", path, 0, -1, "neither slot of the progress file is valid", COPYING)
    elif is_ours:
        offsets = {
            "flushed": state.flushed_offset,
            "visible": state.visible_offset,
            **state.dispatched,
        }
        for name, offset in offsets.items():
            if not 0 <= offset <= log_end:
                text = f"{name} is {offset}, but the log ends at {log_end}"
                yield Finding("marks", path, 0, offset, text)
        clean = SideFolder(files, root).read_clean()
        if clean is not None and state.visible_offset < clean.log_end:
            text = f"visible is {state.visible_offset}, but the store was closed with the log's end at {clean.log_end}"
            yield Finding("marks", path, 0, state.visible_offset, text)


def check_digest_files(
    files: Files, root: Path, log: SegmentedLog, *, is_live: bool = False
) -> Iterator[Finding]:
    """Yield a finding for each digest file that belongs to no segment or has no valid content.

    If the store `is_live`, segments are created and deleted during the check, each before its digest, and an older
    Penstock does not write a digest file atomically.
    """
    digests = Digests(files, root)
    if files.exists(digests.folder) and not files.is_folder(digests.folder):
        yield Finding(
            "marks", digests.folder, -1, -1, "it must be a folder, the one of the digests"
        )
        return
    entries = files.entries(digests.folder) if files.is_folder(digests.folder) else []
    if is_live and not log.is_mapped:
        # After the entries were listed: a segment exists before its digest does.
        log.refresh()
    segments = {segment_name(segment.base_offset): segment for segment in log.segments}
    for entry in entries:
        segment = segments.get(entry.name)
        base = int(entry.name) if _is_base(entry.name) else -1
        if segment is None:
            if is_live and (0 <= base < log.min_offset or not files.exists(entry.path)):
                # Retention has deleted the segment, and deletes its digest next.
                continue
            text = "the file is not the digest of an existing segment"
            # A copy may lack segments that retention deleted during the copying.
            what_now = COPYING if 0 <= base < log.min_offset else ""
            yield Finding("marks", entry.path, -1, base, text, what_now)
        elif digests.read(segment) is None and not (
            is_live and _is_changing(files, digests, segment)
        ):
            text = "the digest of its segment has no valid content"
            yield Finding("marks", entry.path, 0, segment.base_offset, text)


def _is_base(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _is_changing(files: Files, digests: Digests, segment: Segment) -> bool:
    """Return whether a digest that could not be understood is being written or deleted at this moment."""
    path = digests.path(segment.base_offset)
    try:
        before = files.read_whole(path)
        return (
            len(before) < file_bytes(segment.capacity)
            or digests.read(segment) is not None
            or files.read_whole(path) != before
        )
    except OSError:
        return True


class BatchCheck:
    """Checks the records of a segment in the order of the log. Not thread-safe.

    The findings are notes: the records themselves are valid, and nothing can complete a batch.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        # The batch that is not complete yet: where it begins and ends, and the mark of its other records.
        self._begin = self._end = self._other = 0
        self._reached = 0

    def add(self, columns: RecordColumns) -> Iterator[Finding]:
        """Yield the findings in the next valid records."""
        numbers = columns.prepared_offsets
        if self._end == 0 and not (numbers < 0).any():
            return
        marked = np.flatnonzero(numbers < 0)
        parts = numbers[marked], columns.log_offsets[marked], columns.sizes[marked]
        for number, at, size in zip(*(part.tolist() for part in parts), strict=True):
            yield from self._add_one(number, at, at + size)

    def _add_one(self, number: int, at: int, end: int) -> Iterator[Finding]:
        if self._end and at == self._reached and number == self._other and end <= self._end:
            self._reached = end
            if end == self._end:
                self._end = 0
            return
        yield from self.finish()
        if number >= 0:
            return
        base, mark = self._segment.base_offset, read_mark(number)
        if (
            mark is None
            or not mark.is_first
            or not end - base <= mark.end <= self._segment.capacity
        ):
            text = f"PREPAREDTRANSACTIONOFFSET {number} is negative, and no mark of an atomic batch that fits there"
            yield self._note(at, f"{text}; it means nothing, and the record is valid")
        elif end - base < mark.end:
            decision = mark.decision if mark.is_decided else None
            self._begin, self._end, self._reached = at, base + mark.end, end
            self._other = batch_marks(at - base, mark.end, decision)[1]

    def finish(self) -> Iterator[Finding]:
        """Yield the finding of a batch that is not complete when other records follow, or the records end."""
        if self._end == 0:
            return
        begin, end, reached, self._end = self._begin, self._end, self._reached, 0
        yield self._note(
            begin,
            f"messages that were to be stored together, at log offsets {begin} to {end}, are there only up to "
            f"{reached}: a process was killed meanwhile, and another program has written the store before Penstock "
            "opened it; or the store is a copy, and its master has not sent the rest",
        )

    def _note(self, log_offset: int, text: str) -> Finding:
        segment = self._segment
        return Finding(
            "log", segment.path, log_offset - segment.base_offset, log_offset, text, is_note=True
        )


_PART = "copy"
_WHAT_NOW = (
    "open the copy for writing once: this cuts off the bytes after the log's last record, and updates queues, index "
    "and metadata. Messages put during the copying may be missing: if they matter, copy again after the "
    "writer has closed the store"
)


class CopyFindings:
    """Combines the findings in a copy that copying explains into one finding. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self._parts: set[str] = set()
        self._undecided: list[Finding] = []

    def sift(self, found: Iterable[Finding], log_end: Callable[[], int]) -> Iterator[Finding]:
        """Yield the findings that copying does not explain, then one finding for all others.

        Args:
            found: the findings, those of the log in log order.
            log_end: returns the offset after the last valid record scanned so far.
        """
        for finding in found:
            if finding.what_now == COPYING:
                self._explain(finding)
            elif _reach(finding) >= log_end():
                # The scan has not yet shown whether valid records follow.
                self._undecided.append(finding)
            else:
                yield finding
        end = log_end()
        for finding in self._undecided:
            if _reach(finding) >= end:
                self._explain(finding)
            else:
                yield finding
        if self._count:
            yield self._combine(end)

    def _explain(self, finding: Finding) -> None:
        self._count += 1
        self._parts.add(finding.part)

    def _combine(self, end: int) -> Finding:
        what = ", ".join(sorted(self._parts))
        text = (
            f"the store was copied while it was written, which explains {self._count} differences ({what}); the "
            f"log's last valid record ends at log offset {end}"
        )
        return Finding(_PART, self._root, -1, end, text, _WHAT_NOW)


def _reach(finding: Finding) -> int:
    """Return the last log offset of a finding: a block of a digest may extend past the log's end."""
    if finding.log_offset < 0:
        return -1
    return finding.log_offset + (BLOCK_BYTES - 1 if finding.part == "digest" else 0)
