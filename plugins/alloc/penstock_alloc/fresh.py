"""Creates a file so that it appears under its name complete and durable, or not at all."""

from collections.abc import Callable
from pathlib import Path

from penstock.files import File, Files
from penstock.format.names import SIDE_FOLDER


def make_file(
    files: Files,
    root: Path,
    path: Path,
    size: int,
    *,
    allocated: bool,
    prepare: Callable[[File], None] = lambda _: None,
) -> File:
    """Return a new file of `size` zero bytes, durable as `path`; after an `OSError` no part of it is left.

    The file is created under another name in the side folder and renamed. `prepare` is called with it before
    it is synced.
    """
    fresh = root / SIDE_FOLDER / f"new-{path.name}"
    if files.exists(fresh):
        files.remove(fresh)
    file = files.create(fresh)
    is_named = False
    try:
        if allocated:
            file.allocate(size)
        else:
            file.resize(size)
        prepare(file)
        file.sync_all()
        files.rename(fresh, path)
        is_named = True
        files.sync_folder(path.parent)
    except OSError:
        file.close()
        # Never remove a file that was at `path` before: it may be in use.
        name = path if is_named else fresh
        if files.exists(name):
            files.remove(name)
        raise
    file.path = path
    return file


def remove_file(files: Files, path: Path) -> None:
    """Remove a file durably."""
    files.remove(path)
    files.sync_folder(path.parent)
