"""An archive at a URL of any kind that fsspec supports, for example `s3://bucket/name`.

Credentials come from where the URL's own package looks for them, never from the URL's text in a message. File systems raise the
errors of the libraries below them, which have no common base class: all become `ArchiveError`.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import MissingExtraError, PenstockError
from penstock_replicate.ship.archive import Archive, without_secrets
from penstock_replicate.ship.ship_errors import ArchiveError

# One request: an object of up to so many bytes is written by one, a larger one in parts. The least that S3 takes is 5 MiB.
PART_BYTES = 8 << 20
# These have no folders; making one would make the bucket.
_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})  # fmt: skip


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("fsspec", "remote", "an archive at a URL") from error
    try:
        # Not one that another part of the program uses: listings are cached in it.
        system, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise MissingExtraError(f"a package ({error})", "remote", without_secrets(url)) from error
    except Exception as error:
        raise ArchiveError(without_secrets(url), "", _reason("used", error)) from error
    return system, str(path).rstrip("/")


def _reason(doing: str, error: Exception) -> str:
    what = str(error) or type(error).__name__
    return f"it cannot be {doing} ({type(error).__name__}: {what}): check the address, the network and the credentials"


class UrlArchive(Archive):
    """The objects below a URL. Safe from any thread, as the file systems of fsspec are."""

    def __init__(self, url: str) -> None:
        self.text = without_secrets(url)
        self._system, self._key = _file_system(url)
        protocol = self._system.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._has_folders = not protocols & _WITHOUT_FOLDERS
        self._made: set[str] = set()

    @contextlib.contextmanager
    def _trying(self, name: str, doing: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, PenstockError):
            raise
        except Exception as error:
            raise ArchiveError(self.text, name, _reason(doing, error)) from error

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object: in one request if it is small, in parts otherwise."""
        key = f"{self._key}/{name}"
        parts = _parts(chunks)
        # Outside of the calls to the file system, so that an error of `chunks` is raised as it is.
        first = next(parts, b"")
        second = next(parts, None)
        try:
            with self._trying(name, "written"):
                self._make(key.rpartition("/")[0])
                if second is None:
                    self._system.pipe_file(key, first)
                    return
                file = self._system.open(key, "wb", block_size=PART_BYTES)
            self._write_parts(name, file, first, second, parts)
        except FileNotFoundError as error:
            raise ArchiveError(self.text, name, _reason("written", error)) from error

    def _write_parts(
        self, name: str, file: Any, first: bytes, second: bytes, parts: Iterator[bytes]
    ) -> None:
        try:
            part: bytes | None = first
            following: bytes | None = second
            while part is not None:
                with self._trying(name, "written"):
                    file.write(part)
                part, following = following, next(parts, None)
            with self._trying(name, "written"):
                file.close()
        except BaseException:
            # Closing it would complete an object that is not whole.
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                file.closed = True
            raise

    def _make(self, folder: str) -> None:
        if self._has_folders and folder not in self._made:
            self._system.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield up to `size` bytes of an object, one request each part."""
        key, at = f"{self._key}/{name}", 0
        while at < size:
            end = min(at + PART_BYTES, size)
            data = self._range(name, key, at, end)
            if data:
                yield data
            at += len(data)
            if at < end:
                return

    def _range(self, name: str, key: str, start: int, stop: int) -> bytes:
        with self._trying(name, "read"):
            try:
                return bytes(self._system.cat_file(key, start=start, end=stop))
            except FileNotFoundError:
                raise
            except Exception as error:
                # A range that begins at an object's end is refused by some servers.
                if self._size(key) <= start:
                    return b""
                raise error from None

    def _size(self, key: str) -> int:
        self._system.invalidate_cache()
        return int(self._system.info(key)["size"] or 0)

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder; a listing is never taken from a cache."""
        key = f"{self._key}/{folder}"
        with self._trying(folder, "listed"):
            try:
                self._system.invalidate_cache()
                found = self._system.ls(key, detail=True)
            except FileNotFoundError:
                return []
            files = (str(each["name"]) for each in found if each["type"] == "file")
            names = (path.rstrip("/").rpartition("/")[2] for path in files)
            return sorted(name for name in names if name and not name.endswith(".new"))

    def remove(self, name: str) -> None:
        """Remove an object."""
        with self._trying(name, "removed"), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._key}/{name}")


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts of `PART_BYTES`, the last one shorter."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        while len(gathered) >= PART_BYTES:
            yield bytes(gathered[:PART_BYTES])
            del gathered[:PART_BYTES]
    if gathered:
        yield bytes(gathered)
