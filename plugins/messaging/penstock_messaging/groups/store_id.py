"""The store's id: a random number that its first writer makes, so that journals of another store are recognised."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path

from penstock.errors import CorruptionError, StorageError, StrayFileError
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

_ID = re.compile(rb"[0-9a-f]{16}\n")
_BITS = 64


def _path(root: Path) -> Path:
    return root / SIDE_FOLDER / "store-id"


def _random() -> int:
    return secrets.randbits(_BITS - 1) + 1


def ensure_store_id(files: Files, root: Path, random: Callable[[], int] = _random) -> int:
    """Return the store's id, made if there is none; only the process that writes the store calls this."""
    path = _path(root)
    if not files.exists(path):
        files.make_folder_durably(path.parent)
        files.write_whole(path, b"%016x\n" % random())
    return read_store_id(files, root)


def read_store_id(files: Files, root: Path) -> int:
    """Return the store's id; raises `StorageError` if none, `StrayFileError` or `CorruptionError` for another file."""
    path = _path(root)
    try:
        raw = files.read_whole(path, 4096)
    except FileNotFoundError:
        raise StorageError(
            f"{root} has no file {SIDE_FOLDER}/store-id, which consumers need; nothing was changed. Open the store "
            "once for writing with this version of Penstock"
        ) from None
    except OSError as error:
        raise StrayFileError(path, f"it cannot be read ({error})") from error
    if _ID.fullmatch(raw):
        return int(raw, 16)
    raise CorruptionError(
        path, 0, "a number of 16 hexadecimal digits", repr(raw[:40]),
        "remove the file while nothing uses the store: groups then go on from config/consumerOffset.json",
    )  # fmt: skip
