"""The first changes to a store that is opened for writing: metadata, log end, dispatchers, directory entries."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import attrs

from penstock.config.model import Profile
from penstock.contracts import Dispatcher, History, LogView, Trust
from penstock.contracts.base import Geometry
from penstock.dispatch.rebuild import deleted_since_close
from penstock.durability.side_folder import RemovedTopicsFile, SideFolder, lock_mtime_ns
from penstock.durability.written_ranges import read_ranges, write_ranges
from penstock.errors import PluginError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import OpenState
from penstock.recovery.log_end import LogEnd, complete_fillers, rewrite
from penstock.recovery.store_layout import own_profile, write_geometry

logger = get_logger(__name__)

# After a crash, a store with at least this many folders syncs their names with one sync of the file system.
MANY_FOLDERS = 256


def claim(files: Files, found: OpenState, geometry: Geometry, profile: Profile) -> None:
    """Mark the store as in use: write the abort marker, the holder file, and the time of the lock file.

    A new store records `profile`. A store of another program records that program's profile, whatever profile was
    requested for this opening.
    """
    root = found.side_folder.path.parent
    found.side_folder.make()
    if not files.exists(found.side_folder.path / "geometry.json"):
        # Before the log exists: a folder with a log and without this file counts as a broker's store.
        write_geometry(files, root, geometry, own_profile(files, root) or profile)
    if found.is_new:
        for name in ("commitlog", "consumequeue"):
            files.make_folder_durably(root / name)
    files.write_whole(root / "abort", str(files.process_id()).encode())
    found.side_folder.remove_clean()
    found.side_folder.write_holder(files.process_id())
    if not found.is_ours:
        # Its time shows who wrote last. It does not change if that was Penstock: after a crash before the progress
        # file records the new time, the store would count as another program's.
        _write_lock_file(files, root / "lock")


def note_deleted_topics(files: Files, root: Path, file: RemovedTopicsFile) -> None:
    """Record the topics that another program has deleted, before the list of the last close goes."""
    known = removed = file.read()
    for topic, log_end in deleted_since_close(files, root).items():
        if removed.before_of(topic) < log_end:
            removed = removed.with_removed(topic, log_end)
            logger.info("topic %s was deleted by another program since the last close", topic)
    if removed != known:
        SideFolder(files, root).make()
        file.write(removed)


def note_range(files: Files, found: OpenState, log: SegmentedLog, checksum: str) -> None:
    """Record durably which checksum the records after the log's end have, before the first of them is written."""
    root = found.side_folder.path.parent
    extended = found.ranges.extended(found.end.offset, log.min_offset, checksum)
    ranges = attrs.evolve(extended, lock_mtime_ns=lock_mtime_ns(files, root))
    if ranges != read_ranges(files, root):
        write_ranges(files, root, ranges)
    found.ranges = ranges
    log.coverage, log.quarantined = ranges.coverage, ranges.quarantined


def _write_lock_file(files: Files, path: Path) -> None:
    with files.open(path, writable=True) as file:
        file.pwrite(b"lock", 0)
        file.sync_all()


def repair_log_end(files: Files, log: SegmentedLog, found: OpenState) -> LogEnd:
    """Cut off the bytes after the end, and rewrite the bytes that may not be durable; returns the end."""
    end = found.end
    if found.is_clean or not log.segments:
        if log.segments[1:] and log.segments[-1].base_offset >= end.offset:
            # Created for a record whose put was interrupted (Ctrl-C) before it used it.
            found.mended.extend(log.truncate(end.offset))
        return end
    keep_in = None
    if end.dirty_bytes:
        # The tail may contain a record that a user wants back, although no evidence shows that it is valid.
        found.saved_to = save_tail(log, found.side_folder, end)
        keep_in = found.side_folder.saved
    found.mended.extend(log.truncate(end.offset, keep_in))
    found.mended.extend(complete_fillers(files, log, end))
    if found.is_ours:
        found.rewritten = rewrite(files, log, found.state.flushed_offset, end.offset)
    elif found.was_abnormal:
        # It is not known how much of the log the other program synced.
        log.sync_from(found.scanned_from)
        found.rewritten = rewrite(files, log, log.segments[-1].base_offset, end.offset)
    if end.dirty_bytes:
        found.mended.append(
            f"cut a torn tail of {end.dirty_bytes} bytes at log offset {end.offset}: {end.reason}"
        )
    return end


def save_tail(log: SegmentedLog, side_folder: SideFolder, end: LogEnd) -> str:
    """Save the bytes that will be cut off the segment with the log's end; returns the file's path.

    Later segments are moved by `SegmentedLog.truncate`.
    """
    segment = log.find(end.offset)
    assert segment is not None
    data = bytes(log.read(end.offset, segment.end_offset - end.offset)).rstrip(b"\0")
    return str(side_folder.save(f"cut-{end.offset}", data))


def load_all(
    dispatchers: Sequence[Dispatcher], log: LogView, found: OpenState, end: LogEnd, history: History
) -> None:
    """Load the dispatchers, and truncate those whose files are of records that the log may have lost."""
    # In a copy, the checkpoint may be newer than the index files.
    index_time_ms = 0 if found.is_copy else found.times.index_ms
    state = found.state
    recorded = {**state.left_out, **state.dispatched} if found.is_ours else {}
    # From there on, the log may have other records than when Penstock wrote last.
    lost_from = end.offset if found.lost_from is None else min(found.lost_from, end.offset)
    # After a clean close nothing was lost, and another program may have added to the files since.
    known = end.offset if found.clean is not None else lost_from
    same_until = {**state.without((), lost_from), **dict.fromkeys(state.dispatched, known)}
    was_left_out = state.left_out
    state.left_out = state.without([each.name for each in dispatchers], lost_from)
    for dispatcher in dispatchers:
        name = dispatcher.name
        durable = recorded.get(name, 0)
        # If the progress is after the end of a cleanly closed log, a repair has cut the log.
        is_clean = found.is_clean and name in state.dispatched and durable == end.offset
        trust = Trust(
            log=log, durable_offset=durable, is_clean=is_clean or found.is_new,
            was_abnormal=found.was_abnormal, index_time_ms=index_time_ms, history=history,
            summary=found.summaries.get(name) if is_clean else None,
        )  # fmt: skip
        found.mended.extend(dispatcher.load(trust))
        same = max(same_until.get(name, end.offset), log.min_offset)
        if end.dirty_bytes or name in was_left_out or max(durable, dispatcher.progress) > same:
            _truncate(dispatcher, same)


def _truncate(dispatcher: Dispatcher, end_offset: int) -> None:
    """Truncate a dispatcher; raises if it fails or reports a greater progress."""
    try:
        dispatcher.truncate(end_offset)
    except Exception as error:
        raise StorageError(
            f"dispatcher {dispatcher.name} could not truncate its files to log offset {end_offset}, from which on "
            f"the log has changed: {error!r}; the log is not affected and nothing was put; fix or replace that "
            f"plugin (see penstock plugins), or remove it from index.use"
        ) from error
    if dispatcher.progress > end_offset:
        raise PluginError(
            f"dispatcher {dispatcher.name} reports progress {dispatcher.progress} after truncate({end_offset}); "
            f"the log is not affected and nothing was put; fix or replace that plugin (see penstock plugins)"
        )


def sync_names_up(files: Files, path: Path) -> None:
    """Sync the parent folders of a path, so that its name and theirs are durable; skips those without permission."""
    for folder in path.parents:
        with contextlib.suppress(PermissionError):
            files.sync_folder(folder)


def sync_names_below(files: Files, path: Path) -> None:
    """Sync a folder and all folders below it, so that all names in them are durable."""
    folders = _list_folders(files, str(path))
    if len(folders) >= MANY_FOLDERS:
        folders = _sync_file_system(files, path, folders)
    for folder in folders:
        files.sync_folder(Path(folder))


def _list_folders(files: Files, path: str) -> list[str]:
    """Return a folder and all folders below it, parents first."""
    found, waiting = list[str](), [path]
    while waiting:
        folder = waiting.pop()
        found.append(folder)
        below = [entry.name for entry in files.listing(folder) if entry.is_folder]
        waiting += [f"{folder}/{name}" for name in reversed(below)]
    return found


def _sync_file_system(files: Files, path: Path, folders: list[str]) -> list[str]:
    """Sync the whole file system at once; returns the folders that must still be synced one by one."""
    volume = files.volume(path)
    if volume is None:
        return folders
    try:
        volume.sync()
        return [folder for folder in folders if not volume.holds(folder)]
    except OSError as error:
        # The error may be old and about another program's file. Syncing each folder shows whether it is ours.
        logger.warning(
            "%s: the file system could not be synced as a whole, each folder is synced instead: %s",
            path,
            error,
        )
        return folders
    finally:
        volume.close()
