"""Ships one range of the log as one object, in parts: memory does not grow with the range."""

import hashlib
import zlib
from collections.abc import Callable, Iterator

from penstock.contracts import ReplicatedLog
from penstock.errors import StorageError
from penstock_replicate.ship.archive import CHUNK_BYTES, Archive
from penstock_replicate.ship.manifest import LogPiece, piece_name
from penstock_replicate.ship.planning import Upload
from penstock_replicate.ship.record_walk import header_at

# The fastest: what is shipped is often compressed by its writer, or is mostly the same few words.
_LEVEL = 1


class StoppedError(Exception):
    """The store closes: what is under way is given up."""


class RangeSource:
    """The bytes of one object, counted and summed as they are read. Not thread-safe.

    Attributes:
        size: bytes so far, as stored.
        first_ms: store time of the first record; 0 if the range does not begin with a record that has one.
    """

    def __init__(
        self, log: ReplicatedLog, upload: Upload, compress: str, is_stopped: Callable[[], bool]
    ) -> None:
        self._log = log
        self._upload = upload
        self._is_stopped = is_stopped
        self._packer = zlib.compressobj(_LEVEL) if compress == "zlib" else None
        self._digest = hashlib.sha256()
        self.size = 0
        self.first_ms = 0

    @property
    def sha256(self) -> str:
        """Digest of the bytes so far, as stored."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the object's bytes; raises `StoppedError` if the store closes, `OffsetError` if retention deletes them."""
        for raw in self._raw():
            data = self._packer.compress(raw) if self._packer else raw
            if data:
                yield self._counted(data)
        if self._packer:
            yield self._counted(self._packer.flush())

    def _raw(self) -> Iterator[bytes]:
        at, stop = self._upload.start, self._upload.stop
        while at < stop:
            if self._is_stopped():
                raise StoppedError
            data = _read(self._log, at, stop)
            if at == self._upload.start:
                header = header_at(data, 0)
                self.first_ms = max(header.time_ms or 0, 0) if header else 0
            yield data
            at += len(data)

    def _counted(self, data: bytes) -> bytes:
        self._digest.update(data)
        self.size += len(data)
        return data


def _read(log: ReplicatedLog, start: int, stop: int) -> bytes:
    """Return the next bytes of a range; what fails here is the store's own disk, which no error of an archive may hide."""
    try:
        data = log.read(start, min(CHUNK_BYTES, stop - start))
    except OSError as error:
        raise StorageError(
            f"{log.root}: the log cannot be read at log offset {start} ({error}): see penstock verify"
        ) from error
    if not data:
        raise StorageError(f"{log.root}: the log has no bytes at log offset {start}, before {stop}")
    return data


def ship_range(
    archive: Archive,
    log: ReplicatedLog,
    upload: Upload,
    compress: str,
    is_stopped: Callable[[], bool],
) -> LogPiece:
    """Write the object of a range, durably, and return its piece."""
    source = RangeSource(log, upload, compress, is_stopped)
    archive.put(piece_name(upload.start, upload.stop, compress), source.chunks())
    return LogPiece(
        start=upload.start,
        stop=upload.stop,
        size=source.size,
        sha256=source.sha256,
        compress=compress,
        first_ms=source.first_ms,
        last_ms=max(log.time_ms_at(upload.stop - 1), source.first_ms, 0),
        weight=upload.weight,
    )


def digest_of(log: ReplicatedLog, start: int, stop: int) -> str:
    """Return the SHA-256 of a range of the log."""
    digest = hashlib.sha256()
    while start < stop:
        data = _read(log, start, stop)
        digest.update(data)
        start += len(data)
    return digest.hexdigest()
