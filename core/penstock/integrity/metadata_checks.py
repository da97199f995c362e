"""Checks the metadata files: checkpoint, progress file, clean-close file, manifest, and digest files."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.contracts.dispatcher import COPYING, Finding
from penstock.durability.checkpoint import CHECKPOINT_BYTES
from penstock.durability.manifest import manifest_path, read_manifest
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import CleanClose, SideFolder, fingerprint, vouched_for
from penstock.durability.written_ranges import read_ranges
from penstock.errors import FormatVersionError
from penstock.files import Files
from penstock.format.names import NAME_DIGITS, SIDE_FOLDER, segment_name
from penstock.integrity.segment_digests import Digests, file_bytes
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
    side = root / SIDE_FOLDER
    if files.is_folder(side):
        yield from _check_progress(files, root, log_end, is_ours=is_ours)
        path = side / "clean"
        side_folder = SideFolder(files, root)
        clean = side_folder.read_clean()
        # Read again: the file may have been created after the first read.
        if clean is None and files.exists(path) and (clean := side_folder.read_clean()) is None:
            yield Finding("marks", path, 0, -1, "the clean-close file has no valid content")
        elif clean is not None and is_ours and clean.log_end != log_end:
            text = f"the clean-close file has the log's end at {clean.log_end}, but the log ends at {log_end}"
            yield Finding("marks", path, 0, log_end, text)
        if clean is not None and is_ours:
            for text in _check_manifest(files, root, clean, dispatchers):
                yield Finding("marks", manifest_path(root), 0, -1, text)
        if read_ranges(files, root) is None:
            text = (
                "the file of written ranges has no valid content: the existing records are checked like those of a "
                "store whose records have no CRC of the whole record"
            )
            yield Finding("marks", side / "ranges", 0, -1, text)


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
