"""The first changes to a store that is opened for writing: its marks, and the end of its log."""

import time

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
        write_geometry(files, root, geometry)
    files.write_whole(root / "abort", str(files.process_id()).encode())
    found.side.remove_clean()
    found.side.write_holder(files.process_id())
    file = files.open(root / "lock", writable=True)
    try:
        file.pwrite(b"lock", 0)
        file.sync()
    finally:
        file.close()


def put_log_right(files: Files, log: SegmentedLog, found: Findings) -> LogEnd:
    """Cut what is behind the end, and make durable again what may not be; returns the end."""
    end = found.end
    if found.is_clean or not log.segments:
        return end
    if end.survivor is not None:
        found.saved_to = save_tail(log, found.side, end)
    found.mended.extend(log.truncate(end.offset))
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
    """Keep what is about to be cut off the segment that holds the end; returns where."""
    segment = log.find(end.offset)
    assert segment is not None
    stop = min(end.offset + end.dirty_bytes, segment.end_offset)
    data = bytes(log.read(end.offset, stop - end.offset))
    return str(side.save(f"cut-{end.offset}-{time.time_ns()}", data))
