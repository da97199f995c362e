"""Changes the ends of a follower's log while it is not being written: cuts it, or lets it begin elsewhere.

Each change can be interrupted: the next recovery finds the log as it was, or as it should be. A cut is noted before it
begins (`penstock/cut`), and the next opening of the follower completes it. The caller holds the store's lock, and has left the
abort marker, so that the next opening recovers.
"""

import json
from pathlib import Path

import attrs

from penstock.contracts.geometry import Geometry
from penstock.durability.checkpoint import Checkpoint, Times
from penstock.durability.progress import Progress
from penstock.durability.side_folder import SideFolder
from penstock.errors import CorruptionError, OffsetError
from penstock.files import Files
from penstock.format.names import segment_name
from penstock.log.scan import Checks, StopReason, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

_PIECE_BYTES = 1 << 20
_NOTE = "cut"
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, RecursionError, OSError)


def newest_before(log: SegmentedLog, log_offset: int) -> int:
    """Return the greatest store time in the last segment with records before a log offset; 0 if there is no record.

    Raises `OffsetError` unless a record or filler begins there, or the log ends.
    """
    segment = log.find(log_offset - 1)
    if segment is None:
        return 0
    at, newest_ms = segment.base_offset, 0
    checks = Checks(log.coverage, crc=False)
    stop = StopReason.END
    for records, at, stop in scan_segment(log, segment, segment.base_offset, log_offset, checks):  # noqa: B007 - the last one counts
        if len(records):
            newest_ms = max(newest_ms, int(records.store_times_ms.max()))
    is_end = stop is StopReason.FILLER and log_offset == segment.end_offset
    if at != log_offset and not is_end:
        raise OffsetError(log_offset, log.min_offset, at, "log offset of a record's beginning")
    return newest_ms


def cut_log(
    files: Files, root: Path, geometry: Geometry, log_offset: int, end_offset: int, newest_ms: int
) -> Path:
    """Cut the log at the beginning of a record, after its bytes from there on were saved; returns where.

    `newest_ms` is the store time of a record before `log_offset`, 0 for none.
    """
    log = SegmentedLog(files, root / "commitlog", geometry.segment_bytes, mapped=False)
    log.load(repair=False)
    side = SideFolder(files, root)
    try:
        saved = _save(files, side, log, log_offset, end_offset)
    finally:
        log.close()
    # From now on the cut is completed, whatever happens: valid records after erased ones would look like corruption.
    note = json.dumps({"at": log_offset, "newest_ms": newest_ms})
    files.write_whole(side.path / _NOTE, note.encode())
    complete_cut(files, root, geometry)
    return saved


def complete_cut(files: Files, root: Path, geometry: Geometry) -> None:
    """Complete a cut that was begun, if there is one; raises `CorruptionError` if its note cannot be read."""
    side = SideFolder(files, root)
    path = side.path / _NOTE
    if not files.exists(path):
        return
    try:
        note = json.loads(files.read_whole(path, 4096))
        log_offset, newest_ms = note["at"], note["newest_ms"]
        if type(log_offset) is not int or type(newest_ms) is not int or log_offset < 0:
            raise ValueError("its numbers are not offset and time")
    except _NOT_UNDERSTOOD as error:
        advice = "nothing was changed; make the copy anew from its master"
        raise CorruptionError(path, 0, "where the log is to be cut", str(error), advice) from error
    # RocketMQ begins its recovery by these times.
    Checkpoint(files, root).write(Times(newest_ms, newest_ms, newest_ms))
    lower_progress(files, root, log_offset)
    log = SegmentedLog(files, root / "commitlog", geometry.segment_bytes, mapped=False)
    log.load(repair=False)
    try:
        files.make_folder_durably(side.saved)
        log.truncate(log_offset, side.saved)
    finally:
        log.close()
    files.remove(path)
    files.sync_folder(side.path)


def lower_progress(files: Files, root: Path, log_offset: int) -> None:
    """Record durably that nothing is known from a log offset on."""
    progress = Progress(files, root)
    state = progress.read()
    progress.replace(
        attrs.evolve(
            state,
            flushed_offset=min(state.flushed_offset, log_offset),
            visible_offset=min(state.visible_offset, log_offset),
            dispatched={name: min(at, log_offset) for name, at in state.dispatched.items()},
        )
    )


def _save(
    files: Files, side: SideFolder, log: SegmentedLog, log_offset: int, end_offset: int
) -> Path:
    """Copy the bytes of the segment that will be cut; later segments are moved as they are. Returns the file, or the folder."""
    files.make_folder_durably(side.saved)
    segment = log.find(log_offset)
    stop = end_offset if segment is None else min(end_offset, segment.end_offset)
    # A segment that is removed whole is moved.
    if segment is None or stop <= log_offset or _is_moved(log, segment, log_offset):
        return side.saved
    path = files.unused(side.saved / f"cut-{log_offset}")
    fresh = side.path / f"new-cut-{log_offset}"
    if files.exists(fresh):
        files.remove(fresh)
    file = files.create(fresh)
    try:
        for at in range(log_offset, stop, _PIECE_BYTES):
            data = log.read_from(segment, at, min(_PIECE_BYTES, stop - at))
            file.pwrite(data, at - log_offset)
        file.sync_all()
    finally:
        file.close()
    files.rename(fresh, path)
    files.sync_folder(side.saved)
    files.sync_folder(side.path)
    return path


def _is_moved(log: SegmentedLog, segment: Segment, log_offset: int) -> bool:
    return segment.base_offset >= log_offset and segment is not log.segments[0]


def begin_log(files: Files, root: Path, geometry: Geometry, log_offset: int) -> None:
    """Let a log without records begin at a segment border: it gets an empty segment there, and loses others."""
    folder = root / "commitlog"
    name = segment_name(log_offset)
    lower_progress(files, root, log_offset)
    if not files.exists(folder / name):
        fresh = SideFolder(files, root).path / f"new-{name}"
        if files.exists(fresh):
            files.remove(fresh)
        file = files.create(fresh)
        try:
            file.resize(geometry.segment_bytes)
            file.sync_all()
        finally:
            file.close()
        files.rename(fresh, folder / name)
        files.sync_folder(folder)
        files.sync_folder(fresh.parent)
    for entry in files.entries(folder):
        if entry.is_file and entry.name != name:
            files.remove(entry.path)
    files.sync_folder(folder)
    progress = Progress(files, root)
    progress.replace(
        attrs.evolve(
            progress.read(), flushed_offset=log_offset, visible_offset=log_offset,
            dispatched=dict.fromkeys(progress.state.dispatched, log_offset),
        )
    )  # fmt: skip
