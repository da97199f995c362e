"""The first changes to a store that is opened for writing: its marks, the end of its log, what dispatchers load, names."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import attrs

from penstock.config.profiles import Profile
from penstock.contracts import Dispatcher, History, LogView, Trust
from penstock.contracts.geometry import Geometry
from penstock.durability.side_folder import SideFolder, lock_mtime_ns
from penstock.durability.written_ranges import read_ranges, write_ranges
from penstock.errors import PluginError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import OpenState
from penstock.recovery.log_end import LogEnd, rewrite
from penstock.recovery.store_layout import own_profile, write_geometry

logger = get_logger(__name__)

# An opening after a crash of a store with so many folders makes their names durable together.
MANY_FOLDERS = 256


def claim(files: Files, found: OpenState, geometry: Geometry, profile: Profile) -> None:
    """Leave the marks of a store in use: abort marker, holder, our own time on the lock file.

    A new store gets `profile`; one that others made is noted as theirs, whatever was asked for this once.
    """
    root = found.side.path.parent
    found.side.make()
    if not files.exists(found.side.path / "geometry.json"):
        # Before there is a log: without this file a folder that has one is taken for a broker's.
        write_geometry(files, root, geometry, own_profile(files, root) or profile)
    if found.is_new:
        for name in ("commitlog", "consumequeue"):
            files.make_folder_durably(root / name)
    files.write_whole(root / "abort", str(files.process_id()).encode())
    found.side.remove_clean()
    found.side.write_holder(files.process_id())
    if not found.is_ours:
        # Its time tells who wrote last. Left alone where that was us: a crash before the marks say so
        # would make the store a stranger's.
        _write_lock_file(files, root / "lock")


def note_range(files: Files, found: OpenState, log: SegmentedLog, checksum: str) -> None:
    """Note, durably, with which checksum the log goes on from its end; before the first record that has it."""
    root = found.side.path.parent
    extended = found.ranges.extended(found.end.offset, log.min_offset, checksum)
    ranges = attrs.evolve(extended, lock_mtime_ns=lock_mtime_ns(files, root))
    if ranges != read_ranges(files, root):
        write_ranges(files, root, ranges)
    found.ranges = ranges
    log.coverage = ranges.coverage


def _write_lock_file(files: Files, path: Path) -> None:
    file = files.open(path, writable=True)
    try:
        file.pwrite(b"lock", 0)
        file.sync_all()
    finally:
        file.close()


def put_log_right(files: Files, log: SegmentedLog, found: OpenState) -> LogEnd:
    """Cut what is behind the end, and make durable again what may not be; returns the end."""
    end = found.end
    if found.is_clean or not log.segments:
        return end
    keep_in = None
    if end.dirty_bytes:
        # A record in it that no other byte vouches for may still be what somebody wants back.
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
    return str(side.save(f"cut-{end.offset}", data))


def load_all(
    dispatchers: Sequence[Dispatcher], log: LogView, found: OpenState, end: LogEnd, history: History
) -> None:
    """Let the dispatchers load, and tell each of them the log's end if the log was longer before."""
    # The checkpoint of a copy may be younger than the index files beside it.
    index_time_ms = 0 if found.is_copy else found.times.index_ms
    for dispatcher in dispatchers:
        durable = found.state.dispatched.get(dispatcher.name, 0) if found.is_ours else 0
        # Beyond the end of a clean log it is where a repair has cut it.
        is_clean = found.is_clean and durable == end.offset
        trust = Trust(
            log=log, durable_offset=durable, is_clean=is_clean or found.is_new,
            was_abnormal=found.was_abnormal, index_time_ms=index_time_ms, history=history,
            summary=found.summaries.get(dispatcher.name) if is_clean else None,
        )  # fmt: skip
        found.mended.extend(dispatcher.load(trust))
        if end.dirty_bytes or max(durable, dispatcher.progress) > end.offset:
            _truncate(dispatcher, end.offset)


def _truncate(dispatcher: Dispatcher, end_offset: int) -> None:
    try:
        dispatcher.truncate(end_offset)
    except Exception as error:
        raise StorageError(
            f"dispatcher {dispatcher.name} could not cut its files at log offset {end_offset}, where the log "
            f"now ends: {error!r}; the log is whole and nothing was put; mend or replace that plugin, see penstock "
            f"plugins, or leave it out of index.use"
        ) from error
    if dispatcher.progress > end_offset:
        raise PluginError(
            f"dispatcher {dispatcher.name} says after truncate({end_offset}) that its progress is "
            f"{dispatcher.progress}; the log is whole and nothing was put; mend or replace that plugin, see "
            f"penstock plugins"
        )


def sync_names_up(files: Files, path: Path) -> None:
    """Make the name of a folder durable, and those of its parents, as far as they may be opened."""
    for folder in path.parents:
        with contextlib.suppress(PermissionError):
            files.sync_folder(folder)


def sync_names_below(files: Files, path: Path) -> None:
    """Make all names in a folder durable, and in the folders below it."""
    folders = _folders_from(files, str(path))
    if len(folders) >= MANY_FOLDERS:
        folders = _not_together(files, path, folders)
    for folder in folders:
        files.sync_folder(Path(folder))


def _folders_from(files: Files, path: str) -> list[str]:
    """Return a folder and all below it, parents first."""
    found, waiting = list[str](), [path]
    while waiting:
        folder = waiting.pop()
        found.append(folder)
        below = [entry.name for entry in files.listing(folder) if entry.is_folder]
        waiting += [f"{folder}/{name}" for name in reversed(below)]
    return found


def _not_together(files: Files, path: Path, folders: list[str]) -> list[str]:
    """Make names durable by one sync of the file system; returns the folders that are left to be synced."""
    volume = files.volume(path)
    if volume is None:
        return folders
    try:
        volume.sync()
        return [folder for folder in folders if not volume.holds(folder)]
    except OSError as error:
        # It may be of another program's file, and long ago. Each folder by itself tells.
        logger.warning("%s: the file system could not be synced as a whole: %s", path, error)
        return folders
    finally:
        volume.close()
