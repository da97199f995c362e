"""The lower bound and the limits: a plain append file, and `pwrite` of existing bytes.

A plain file guarantees only the order, and has no lengths, checksums or queues; with `sync` each batch is on disk.
`pwrite` writes as many bytes as the records of a batch have, 1 MiB per call, into a file that grows.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines.contract import Engine
from bench.supply import TAG, Row

# Size of a record of Penstock or RocketMQ without its body.
RECORD_EXTRA = 133
_PIECE_BYTES = 1 << 20


class PlainEngine(Engine):
    """A file that messages are appended to, through Python's own buffer."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self.file = (root / "log").open("ab", buffering=1 << 20)

    def close(self) -> None:
        """See `Engine`."""
        self.file.close()

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See `Engine`."""
        return [b"%s\x01%s\x01%s" % (TAG.encode(), key.encode(), body) for _, key, body in rows]

    def batch(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        return self.singles(rows)

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        write = self.file.write
        for value in singles:
            write(value)
            if self.settings["sync"]:
                self._sync()

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        self.file.writelines(batch)
        if self.settings["sync"]:
            self._sync()

    def wait_readable(self) -> None:
        """See `Engine`."""
        self.file.flush()

    def _sync(self) -> None:
        self.file.flush()
        os.fdatasync(self.file.fileno())


class PwriteEngine(Engine):
    """Writes as many bytes as the consecutive records of a table have, and nothing else."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self.file = os.open(root / "log", os.O_RDWR | os.O_CREAT)
        self.at = 0

    def close(self) -> None:
        """See `Engine`."""
        os.close(self.file)

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        raise NotImplementedError

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        raise NotImplementedError

    def columns(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        return np.ones(sum(len(body) + RECORD_EXTRA for _, _, body in rows), np.uint8)

    def put_columns(self, columns: Any) -> None:
        """See `Engine`."""
        for start in range(0, len(columns), _PIECE_BYTES):
            piece = columns[start : start + _PIECE_BYTES]
            os.pwrite(self.file, piece, self.at)
            self.at += len(piece)
