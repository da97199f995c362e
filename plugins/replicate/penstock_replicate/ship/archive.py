"""Where objects are kept: the interface, and a plain folder. `archive_url` has those at a URL.

An object is written whole, and is durable when `put` returns. Objects are written again only if no manifest names them.
"""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import ConfigError
from penstock.files import Files
from penstock_replicate.ship.ship_errors import ArchiveError

CHUNK_BYTES = 1 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Archive(ABC):
    """The objects below one folder or URL, by name. Safe from any thread.

    Errors are raised as `ArchiveError`, a missing object as `FileNotFoundError`.

    Attributes:
        text: the folder or URL, without secrets.
    """

    text: str

    @abstractmethod
    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object, durably; one of the same name is replaced. If `chunks` raises, that is raised, and nothing is replaced."""

    @abstractmethod
    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield up to `size` bytes of an object, in parts; fewer only if it is shorter."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder, sorted, without the folder's; none if it is missing."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an object; one that is missing is no error."""

    def read(self, name: str, limit: int) -> bytes:
        """Return a small object; raises `ArchiveError` if it has more than `limit` bytes."""
        data = b"".join(self.chunks(name, limit + 1))
        if len(data) > limit:
            raise ArchiveError(
                self.text, name, f"it has more than {limit} bytes, so it is not ours"
            )
        return data


class FolderArchive(Archive):
    """An archive in a folder, without fsspec: objects appear under their names when they are durable."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self.text = str(folder)

    @contextlib.contextmanager
    def _trying(self, name: str, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = f"it cannot be {doing} ({error}): check the disk and its permissions"
            raise ArchiveError(self.text, name, reason) from error

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object to a file of another name, sync it, rename it, and sync its folder."""
        path = self._folder / name
        fresh = path.with_name(path.name + ".new")
        try:
            with self._trying(name, "written"):
                self._files.make_folder_durably(path.parent)
                if self._files.exists(fresh):
                    self._files.remove(fresh)
                self._write(fresh, chunks)
                self._files.rename(fresh, path)
                self._files.sync_folder(path.parent)
        except FileNotFoundError as error:
            raise ArchiveError(self.text, name, f"it cannot be written ({error})") from error

    def _write(self, fresh: Path, chunks: Iterable[bytes]) -> None:
        file = self._files.create(fresh)
        try:
            position = 0
            for chunk in chunks:
                file.pwrite(chunk, position)
                position += len(chunk)
            file.sync_all()
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.remove(fresh)
            raise
        finally:
            file.close()

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield up to `size` bytes of a file."""
        with self._trying(name, "read"):
            file = self._files.open(self._folder / name)
            try:
                at, end = 0, min(size, file.size)
                while at < end:
                    data = file.pread(min(CHUNK_BYTES, end - at), at)
                    if not data:
                        return
                    yield data
                    at += len(data)
            finally:
                file.close()

    def names(self, folder: str) -> list[str]:
        """Return the names of the regular files in a folder, but for unfinished ones."""
        path = self._folder / folder
        with self._trying(folder, "listed"):
            if not self._files.is_folder(path):
                return []
            found = self._files.listing(str(path))
            return [each.name for each in found if each.is_file and not each.name.endswith(".new")]

    def remove(self, name: str) -> None:
        """Remove a file; a crash may bring it back, and the next sweep removes it again."""
        with self._trying(name, "removed"), contextlib.suppress(FileNotFoundError):
            self._files.remove(self._folder / name)


def is_url(text: str) -> bool:
    """Return whether a text is a URL other than `file:`."""
    return _SCHEME.match(text) is not None and not text.startswith("file:")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


def folder_of(url: str) -> Path:
    """Return the folder that a path, or a `file:` URL, names."""
    return Path(url.removeprefix("file://") if url.startswith("file://") else url).absolute()


def open_archive(url: str, files: Files, *, root: Path | None = None) -> Archive:
    """Return the archive at a folder or URL; nothing is read or written yet.

    Raises `ConfigError` if there is no URL, or if it is a folder within the store's own (`root`), and `MissingExtraError` if a
    package for it is missing.
    """
    if not url:
        raise ConfigError(
            "replicate.ship.url is empty: give a folder outside of the store, or a URL such as s3://bucket/name"
        )
    if is_url(url):
        from penstock_replicate.ship.archive_url import UrlArchive  # noqa: PLC0415 - fsspec is an extra  # fmt: skip

        return UrlArchive(url)
    folder = folder_of(url)
    # Neither a link nor `..` leads into the store.
    if root is not None and folder.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"replicate.ship.url is {folder}, which is within the store's folder {root}: take another folder, best on another disk"
        )
    return FolderArchive(files, folder)
