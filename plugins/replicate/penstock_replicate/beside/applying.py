"""Writes, on a follower, the files that travel beside the log.

Invariants:
    * A file is replaced as a whole and durably; the content before is its `.bak` then, unless that could not be used.
    * Only the process that holds the follower for writing calls this; what it has not called for stays as it is.
"""

from pathlib import Path

from penstock.errors import StorageError
from penstock.files import Files
from penstock_replicate.beside.side_names import SideName, check_content


def apply(files: Files, root: Path, name: str, data: bytes) -> bool:
    """Write one file; return whether it has changed.

    Args:
        files: the file system.
        root: the store's folder.
        name: as `snapshot` has it.
        data: the content; it may come from anybody.

    Raises:
        ValueError: no file of that name travels, or it cannot have such a content; nothing was changed.
        StorageError: the disk failed; the file has the content before, or this one.
    """
    side = check_content(name, data)
    path = root / side.path
    try:
        before = _before(files, path, side)
        if before == data or (side.is_kept and files.exists(path)):
            return False
        files.make_folder_durably(path.parent)
        if before is not None and side.has_spare:
            files.write_whole(path.with_name(path.name + ".bak"), before)
        files.write_whole(path, data)
    except OSError as error:
        raise StorageError(
            f"{path} could not be written ({error}). The log is not affected; check the disk, and the master sends it again"
        ) from error
    return True


def _before(files: Files, path: Path, side: SideName) -> bytes | None:
    """Return the content of a file; None if there is none that can be used, which must not become the `.bak`."""
    if not files.exists(path):
        return None
    try:
        data = files.read_whole(path, side.bytes_max)
        side.check(data)
    except (OSError, ValueError, RecursionError):
        return None
    return data
