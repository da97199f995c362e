"""Checks what is neither log nor derived: checkpoint, progress, clean mark, manifest, and the files of digests."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.contracts.findings import COPYING, Finding
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
    """Return what the marks of a store that nobody writes get wrong.

    Marks are lower bounds: one that says less than is true is no finding. What is in the side folder
    counts only if Penstock wrote last.

    Args:
        files: the file system.
        root: the store's folder.
        log_end: log offset behind the last sound record.
        last_time_ms: the latest store time of any record.
        is_ours: whether Penstock wrote last.
        dispatchers: opened read-only; they are asked about their summaries.
    """
    yield from _check_checkpoint(files, root / "checkpoint", last_time_ms, is_ours=is_ours)
    side = root / SIDE_FOLDER
    if files.is_folder(side):
        yield from _check_progress(files, root, log_end, is_ours=is_ours)
        path = side / "clean"
        side_folder = SideFolder(files, root)
        clean = side_folder.read_clean()
        # Read again where it was not there the first time.
        if clean is None and files.exists(path) and (clean := side_folder.read_clean()) is None:
            yield Finding("marks", path, 0, -1, "the clean mark cannot be understood")
        elif clean is not None and is_ours and clean.log_end != log_end:
            text = f"the clean mark says that the log ends at {clean.log_end}, not at {log_end}"
            yield Finding("marks", path, 0, log_end, text)
        if clean is not None and is_ours:
            for text in _wrong_in_manifest(files, root, clean, dispatchers):
                yield Finding("marks", manifest_path(root), 0, -1, text)
        if read_ranges(files, root) is None:
            text = (
                "it cannot be understood: what was written so far is checked as in a store whose records have no CRC "
                "of their own"
            )
            yield Finding("marks", side / "ranges", 0, -1, text)


def _wrong_in_manifest(
    files: Files, root: Path, clean: CleanClose, dispatchers: Sequence[Dispatcher]
) -> Iterator[str]:
    """Return what the manifest beside a clean mark gets wrong; nobody believes one without such a mark."""
    if not files.exists(manifest_path(root)):
        return
    found = read_manifest(files, root)
    if found is None:
        yield "the manifest cannot be understood; the next opening reads the files instead"
    elif found[0] != clean.digest:
        yield "the manifest is of another close than the clean mark; the next opening reads the files instead"
    elif clean.digest == fingerprint(files, vouched_for(root)):
        for dispatcher in dispatchers:
            summary = found[1].get(dispatcher.name)
            for text in () if summary is None else dispatcher.compare_summary(summary):
                yield f"the manifest is wrong of {dispatcher.name}: {text}"


def _check_checkpoint(
    files: Files, path: Path, last_time_ms: int, *, is_ours: bool
) -> Iterator[Finding]:
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
            text = f"{name} is {time_ms}, though the latest record is of {last_time_ms}"
            yield Finding("marks", path, 8 * number, -1, text, "" if time_ms < 0 else COPYING)


def _check_progress(files: Files, root: Path, log_end: int, *, is_ours: bool) -> Iterator[Finding]:
    path = root / SIDE_FOLDER / "progress"
    if not files.exists(path):
        yield Finding("marks", path, -1, -1, "the progress file is not there")
        return
    try:
        state = Progress(files, root).read()
    except (FormatVersionError, OSError) as error:
        yield Finding("marks", path, 0, -1, f"the progress file cannot be read: {error}")
        return
    if state == State():
        yield Finding("marks", path, 0, -1, "neither slot of the progress file is valid", COPYING)
    elif is_ours:
        said = {
            "flushed": state.flushed_offset,
            "visible": state.visible_offset,
            **state.dispatched,
        }
        for name, offset in said.items():
            if not 0 <= offset <= log_end:
                text = f"{name} is {offset}, though the log ends at {log_end}"
                yield Finding("marks", path, 0, offset, text)


def check_digest_files(
    files: Files, root: Path, log: SegmentedLog, *, is_live: bool = False
) -> Iterator[Finding]:
    """Return which files of digests belong to no segment or cannot be understood.

    Of a store that `is_live` segments come and go meanwhile, each before its digest, and a digest of an older
    Penstock is not there whole at once.
    """
    digests = Digests(files, root)
    if files.exists(digests.folder) and not files.is_folder(digests.folder):
        yield Finding("marks", digests.folder, -1, -1, "a folder of digests must stand there")
        return
    entries = files.entries(digests.folder) if files.is_folder(digests.folder) else []
    if is_live and not log.is_mapped:
        # After the entries: a segment is there before its digest is.
        log.refresh()
    segments = {segment_name(segment.base_offset): segment for segment in log.segments}
    for entry in entries:
        segment = segments.get(entry.name)
        base = int(entry.name) if _is_base(entry.name) else -1
        if segment is None:
            if is_live and (0 <= base < log.min_offset or not files.exists(entry.path)):
                # Retention took the segment, and takes its digest next.
                continue
            text = "no digest of any segment there is"
            # A copy may lack segments that retention took while it was made.
            what_now = COPYING if 0 <= base < log.min_offset else ""
            yield Finding("marks", entry.path, -1, base, text, what_now)
        elif digests.read(segment) is None and not (
            is_live and _is_changing(files, digests, segment)
        ):
            text = "the digest of its segment cannot be understood"
            yield Finding("marks", entry.path, 0, segment.base_offset, text)


def _is_base(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _is_changing(files: Files, digests: Digests, segment: Segment) -> bool:
    """Say whether a digest that could not be understood is being written, or taken away, just now."""
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
