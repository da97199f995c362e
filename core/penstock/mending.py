"""The first changes to a store that is opened for writing: its marks, the end of its log, names made durable."""

import contextlib
import time
from pathlib import Path

from penstock.discover import write_geometry
from penstock.files import Files
from penstock.geometry import Geometry
from penstock.log import SegmentedLog
from penstock.looking import Findings
from penstock.progress import SideFolder
from penstock.recovery import LogEnd, rewrite


def claim(files: Files, found: Findings, geometry: Geometry) -> None:
    """Leave the marks of a store in use: abort marker, holder, our own time on the lock file."""
    root = found.side.path.parent
    found.side.make()
    if found.is_new:
        for name in ("commitlog", "consumequeue"):
            files.make_folder_durably(root / name)
    if not files.exists(found.side.path / "geometry.json"):
        write_geometry(files, root, geometry, is_made_here=found.is_new)
    files.write_whole(root / "abort", str(files.process_id()).encode())
    found.side.remove_clean()
    found.side.write_holder(files.process_id())
    if not found.is_ours:
        # Its time tells who wrote last. Left alone where that was us: a crash before the marks say so
        # would make the store a stranger's.
        _write_lock_file(files, root / "lock")


def _write_lock_file(files: Files, path: Path) -> None:
    file = files.open(path, writable=True)
    try:
        file.pwrite(b"lock", 0)
        file.sync_all()
    finally:
        file.close()


def put_log_right(files: Files, log: SegmentedLog, found: Findings) -> LogEnd:
    """Cut what is behind the end, and make durable again what may not be; returns the end."""
    end = found.end
    if found.is_clean or not log.segments:
        return end
    keep_in = None
    if end.survivor is not None:
        found.saved_to = save_tail(log, found.side, end)
        keep_in = found.side.saved
    found.mended.extend(log.truncate(end.offset, keep_in))
    if found.is_ours:
        durable = found.state.flushed_offset
        found.rewritten = rewrite(files, log, durable, end.offset)
    elif found.was_abnormal:
        # How much of it the other program synced is not known.
        log.sync_from(found.walked_from)
        found.rewritten = rewrite(files, log, log.segments[-1].base_offset, end.offset)
    if end.dirty_bytes:
        found.mended.append(
            f"cut a torn tail of {end.dirty_bytes} bytes at log offset {end.offset}: {end.reason}"
        )
    return end


def save_tail(log: SegmentedLog, side: SideFolder, end: LogEnd) -> str:
    """Keep what is about to be cut off the segment that holds the end; returns where.

    What lies in later segments is moved by `SegmentedLog.truncate`.
    """
    segment = log.find(end.offset)
    assert segment is not None
    data = bytes(log.read(end.offset, segment.end_offset - end.offset)).rstrip(b"\0")
    return str(side.save(f"cut-{end.offset}-{time.time_ns()}", data))


def sync_names_up(files: Files, path: Path) -> None:
    """Make the name of a folder durable, and those of its parents, as far as they may be opened."""
    for folder in path.parents:
        with contextlib.suppress(PermissionError):
            files.sync_folder(folder)


def sync_names_below(files: Files, path: Path) -> None:
    """Make all names in a folder durable, and in the folders below it."""
    files.sync_folder(path)
    for entry in files.entries(path):
        if entry.is_folder:
            sync_names_below(files, entry.path)
