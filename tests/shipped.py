"""A store that is shipped in a test, round by round."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import penstock
from penstock.contracts.replicator import LentFile
from penstock.errors import OffsetError
from penstock.files import Files
from penstock.store.store import Store
from penstock_replicate.ship.archive import Archive, FolderArchive
from penstock_replicate.ship.identity import identity_of
from penstock_replicate.ship.record_walk import header_at
from penstock_replicate.ship.shipper import ShipLimits, Shipper

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 16 << 10, "geometry.queue_entries": 100,
    "geometry.index_slots": 50, "geometry.index_entries": 200, "retention.use": [], "flush": "sync",
}  # fmt: skip
HISTORY = "0123456789abcdef" * 2


class StoreLog:
    """The log of an open store, as its replicator sees it."""

    def __init__(self, store: Store) -> None:
        assert store._engine is not None
        self._engine = store._engine
        self._log = store._engine.log.log
        self.root = store.path

    @property
    def segment_bytes(self) -> int:
        return self._log.segment_bytes

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def visible_offset(self) -> int:
        return self._log.committed_offset

    @property
    def flushed_offset(self) -> int:
        return self._engine.flusher.flushed_offset

    @property
    def wrote_offset(self) -> int:
        return self._engine.log.end_offset

    def read(self, log_offset: int, size: int) -> bytes:
        if not self.min_offset <= log_offset <= self.visible_offset:
            raise OffsetError(log_offset, self.min_offset, self.visible_offset)
        segment_end = log_offset - log_offset % self.segment_bytes + self.segment_bytes
        size = min(size, segment_end - log_offset, self.visible_offset - log_offset)
        return bytes(self._log.read(log_offset, size)) if size else b""

    def lend_file(self, log_offset: int) -> AbstractContextManager[LentFile]:
        raise NotImplementedError

    def time_ms_at(self, log_offset: int) -> int:
        at, found = log_offset - log_offset % self.segment_bytes, 0
        data = self.read(at, self.segment_bytes)
        position = 0
        while position <= log_offset - at and (header := header_at(data, position)):
            found = header.time_ms or found
            position += header.size
        return found

    def removed_topics(self) -> Sequence[tuple[str, int]]:
        return []


class Shipped:
    """An open store and its shipper. Use `with`."""

    def __init__(self, root: Path, target: Path | Archive, **settings: Any) -> None:
        self.files = Files()
        self.limits = ShipLimits(**{key: settings.pop(key) for key in ("generations", "retention_ms", "compress", "parallel") if key in settings})  # fmt: skip
        self.store = penstock.open(root, environ={}, **{**SMALL, **settings})
        self.log = StoreLog(self.store)
        self.archive = FolderArchive(self.files, target) if isinstance(target, Path) else target
        self.offset_ms = 0
        self.shipper = self.make_shipper()

    def make_shipper(self) -> Shipper:
        """Return a shipper as another process would have it."""
        return Shipper(
            self.log, self.archive, identity_of(self.files, self.store.path), files=self.files,
            now_ms=lambda: self.store._engine.clock.time_ms() + self.offset_ms,  # type: ignore[union-attr]
            limits=self.limits,
        )  # fmt: skip

    def ship(self) -> int:
        """Ship all that is there; return the number of the manifest."""
        while self.shipper.round():
            pass
        assert self.shipper.manifest is not None
        return self.shipper.manifest.number

    def put(self, count: int, first: int = 0, size: int = 200) -> None:
        for number in range(first, first + count):
            self.store.put("t", b"%06d" % number + b"x" * size, queue=number % 3, keys=[f"k{number}"])  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


def log_bytes(root: Path, start: int, stop: int, segment_bytes: int = 16 << 10) -> bytes:
    """Return a range of a store's log, from its files."""
    found = bytearray()
    while start < stop:
        base = start - start % segment_bytes
        size = min(base + segment_bytes, stop) - start
        path = root / "commitlog" / f"{base:020d}"
        found += path.read_bytes()[start - base : start - base + size]
        start += size
    return bytes(found)


def tree(folder: Path) -> dict[str, str]:
    """Return path to digest of all files below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def bodies(root: Path) -> list[bytes]:
    """Return the bodies of a store's messages, in the order of the log."""
    with penstock.open(root, read_only=True, environ={}) as store:
        return [m.body for m in sorted(store.scan("t"), key=lambda m: m.log_offset)]
