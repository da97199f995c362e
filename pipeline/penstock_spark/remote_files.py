"""Reads stores at any URL that fsspec supports, for example `s3://bucket/store`. Does not import pyspark.

These stores must no longer be written to: an object is assumed to stay as it was first listed. Bytes are fetched in
whole blocks, and the last few blocks of a file are cached while it is open; small files that are read whole, and where
the entries of a queue's file end, are fetched once. Nothing is mapped or written. Errors of the file system are raised
as `StorageError` with the URL.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from penstock.errors import MissingExtraError, PenstockError, ReadOnlyError, StorageError
from penstock.files import Entry, File, Files, Listed

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BLOCK_BYTES = 256 << 10
# A file keeps so many blocks; a read that is longer is not kept at all.
_BLOCKS_KEPT = 64
# Enough for three queue entries, one of which is not zero where any is there.
_PROBE_BYTES = 64
# Small files of a store to cache whole, each of at most a block: its own and a broker's configuration.
_WHOLE_KEPT = 64

_T = TypeVar("_T")


def is_url(text: str) -> bool:
    """Return whether a path is a URL other than `file:`."""
    return _SCHEME.match(text) is not None and not text.startswith("file:")


class UrlPath(type(Path())):  # type: ignore[misc]  # the class that this system's paths have
    """A URL that can be used as a path: it is joined like one, and its text is the URL."""

    def __str__(self) -> str:
        return _as_url(super().__str__())


def _as_url(text: str) -> str:
    """Restore the second slash of a URL, which a path removes."""
    return text if "://" in text else text.replace(":/", "://", 1)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("fsspec", "remote", "a store at a URL") from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"a package ({error})", "remote", url) from error
    except Exception as error:
        raise _failure(url, error) from error
    return system, path


def _failure(url: str, error: Exception) -> StorageError:
    what = str(error) or type(error).__name__
    return StorageError(
        f"{url} cannot be read ({type(error).__name__}: {what}): check the address, the network and the credentials"
    )


def _tried(url: str, job: Callable[[], _T]) -> _T:
    """Call `job`, and raise every error except `FileNotFoundError` as `StorageError`.

    File systems raise the errors of the libraries below them, which have no common base class.
    """
    try:
        return job()
    except (FileNotFoundError, PenstockError):
        raise
    except Exception as error:
        raise _failure(url, error) from error


def matching_folders(pattern: str) -> list[str]:
    """Return the URLs of the folders that match a pattern, sorted."""
    system, path = _file_system(pattern)
    found = _tried(pattern, lambda: system.glob(path, detail=True))
    folders = [name for name, about in found.items() if about["type"] == "directory"]
    scheme = pattern.partition("://")[0]
    return sorted(f"{scheme}://{name.lstrip('/')}" for name in folders)


class RemoteFile(File):
    """One object, read in ranges. Not thread-safe."""

    def __init__(
        self, path: Path, system: Any, key: str, size: int, data_ends: dict[str, int]
    ) -> None:
        super().__init__(path, -1)
        self._system = system
        self._key = key
        self._size = size
        # Of the store: by key, for all files that have been opened.
        self._data_ends = data_ends
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    @property
    def size(self) -> int:
        """Length in bytes, as first listed."""
        return self._size

    @property
    def inode(self) -> int:
        """An object has no number; see `RemoteFiles.inode`."""
        return 1

    @property
    def mtime_ms(self) -> int:
        """Not asked for."""
        return 0

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`; fewer only at the end."""
        stop = min(position + size, self._size)
        if stop <= position:
            return b""
        first, last = position // _BLOCK_BYTES, (stop - 1) // _BLOCK_BYTES
        if last - first >= _BLOCKS_KEPT:
            return self._fetch(position, stop)
        self._load(first, last)
        data = b"".join(self._blocks[number] for number in range(first, last + 1))
        start = position - first * _BLOCK_BYTES
        return data[start : start + stop - position]

    def _load(self, first: int, last: int) -> None:
        """Load these blocks with one request, from the first to the last missing one."""
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if missing:
            start = missing[0] * _BLOCK_BYTES
            data = self._fetch(start, min((missing[-1] + 1) * _BLOCK_BYTES, self._size))
            for number in range(missing[0], missing[-1] + 1):
                at = number * _BLOCK_BYTES - start
                self._blocks[number] = data[at : at + _BLOCK_BYTES]
        for number in range(first, last + 1):
            self._blocks.move_to_end(number)
        while len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            data: bytes = _tried(
                str(self.path), lambda: self._system.cat_file(self._key, start=start, end=stop)
            )
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.path} is gone: it existed when the read began, and a store at a URL must not change"
            ) from error
        if len(data) != stop - start:
            raise StorageError(
                f"{self.path} gave {len(data)} bytes for [{start}, {stop}): it has changed, or was truncated"
            )
        return data

    def data_end(self) -> int:
        """Return where the zeros at the end begin; found by a search, as there are none between entries."""
        if self._key not in self._data_ends:
            self._data_ends[self._key] = self._find_data_end()
        return self._data_ends[self._key]

    def _find_data_end(self) -> int:
        low, high = 0, -(-self._size // _BLOCK_BYTES)
        while low < high:
            middle = (low + high) // 2
            if any(self.pread(_PROBE_BYTES, middle * _BLOCK_BYTES)):
                low = middle + 1
            else:
                high = middle
        start = max(low - 1, 0) * _BLOCK_BYTES
        return start + len(self.pread(_BLOCK_BYTES, start).rstrip(b"\0")) if low else 0


class RemoteFiles(Files):
    """The objects below one URL as files. Each folder is listed once. Not thread-safe."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url.rstrip("/")
        self._system, _ = _file_system(self.url)
        self._listed: dict[str, dict[str, Entry] | None] = {}
        self._data_ends: dict[str, int] = {}
        self._whole: OrderedDict[str, bytes] = OrderedDict()

    def _listing(self, folder: str) -> dict[str, Entry] | None:
        """Return the entries of a folder, by name; None if it does not exist."""
        url = _as_url(folder)
        if url not in self._listed:
            self._listed[url] = self._list(url)
        return self._listed[url]

    def _list(self, url: str) -> dict[str, Entry] | None:
        key = self._system._strip_protocol(url)
        try:
            found = _tried(url, lambda: self._system.ls(key, detail=True, refresh=True))
        except FileNotFoundError:
            return None
        entries = {}
        for about in found:
            name = str(about["name"]).rstrip("/").rpartition("/")[2]
            is_itself = str(about["name"]).strip("/") == str(key).strip("/")
            if name and not is_itself:
                is_file = about["type"] == "file"
                entries[name] = Entry(
                    name, UrlPath(f"{url}/{name}"), is_file, not is_file, int(about["size"] or 0), 0
                )
        return entries or None

    def _entry(self, path: Path) -> Entry | None:
        parent, _, name = _as_url(str(path)).rpartition("/")
        return (self._listing(parent) or {}).get(name)

    def _is_root(self, path: Path) -> bool:
        return self.url.startswith(_as_url(str(path)))

    def entries(self, folder: Path) -> list[Entry]:
        """Return the entries of `folder`, sorted by name."""
        found = self._listing(str(folder))
        if found is None:
            raise FileNotFoundError(2, "there is nothing at this URL", _as_url(str(folder)))
        return sorted(found.values())

    def listing(self, folder: str) -> list[Listed]:
        """Return the entries of `folder`, sorted by name; a folder without objects does not exist."""
        found = (self._listing(folder) or {}).values()
        return sorted(Listed(e.name, e.is_file, e.is_folder, e.size, e.mtime_ns) for e in found)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in `folder`, sorted."""
        return sorted(e.name for e in (self._listing(folder) or {}).values() if e.is_folder)

    def numbered(self, folder: str) -> list[tuple[int, int]]:
        """Return number and size of the objects in `folder` whose names are digits, sorted."""
        found = [entry for entry in self.entries(Path(folder)) if entry.is_file]
        return sorted((int(e.name), e.size) for e in found if e.name.isascii() and e.name.isdigit())

    def exists(self, path: Path) -> bool:
        """Return whether an object or a folder has that name."""
        return self.is_folder(path) or self._entry(path) is not None

    def is_folder(self, path: Path) -> bool:
        """Return whether there are objects below that name."""
        if self._is_root(path):
            return self._listing(str(path)) is not None
        entry = self._entry(path)
        return entry is not None and entry.is_folder

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Open an object for reading."""
        entry = self._entry(path)
        if writable:
            self._refuse()
        if entry is None or not entry.is_file:
            raise FileNotFoundError(2, "there is nothing at this URL", _as_url(str(path)))
        url = UrlPath(_as_url(str(path)))
        key = self._system._strip_protocol(str(url))
        return RemoteFile(url, self._system, key, entry.size, self._data_ends)

    def read_whole(self, path: Path, limit: int = 64 << 20) -> bytes:
        """Return the content of a small file; raises `OSError` (EFBIG) if it is larger than `limit` bytes."""
        url = _as_url(str(path))
        data = self._whole.get(url)
        if data is None or len(data) > limit:
            data = super().read_whole(path, limit)
            if len(data) <= _BLOCK_BYTES:
                self._whole[url] = data
                while len(self._whole) > _WHOLE_KEPT:
                    self._whole.popitem(last=False)
        return data

    def inode(self, path: Path) -> int:
        """Do nothing: listings are assumed not to change."""
        return 1 if self._entry(path) is not None else 0

    def version(self, path: Path) -> tuple[int, int, int]:
        """Return the size as the listing has it, without a time."""
        entry = self._entry(path)
        return (0, 0, 0) if entry is None else (0, 1, entry.size)

    def mtime_ns(self, path: Path) -> int:
        """Return 0, as for a missing file, since the clocks of other machines are not used."""
        return 0

    def ctime_ns(self, path: Path) -> int:
        """Return 0, like `mtime_ns`."""
        return 0

    def is_locked(self, path: Path) -> bool:
        """Return None, since objects have no locks."""
        return False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError(f"it is at {self.url}, and a store at a URL can only be read")

    create = make_folder = make_folder_durably = remove_folder = sync_folder = _refuse
    remove = rename = write_whole = lock = _refuse
