"""RocksDB through `rocksdict`: one value a message under its number: tag, key and body, joined before the clock starts.

Guarantees: without `sync` its log survives a crash of the process, and a power cut loses the end; with `sync` each
write is on disk. RocksDB checksums its blocks and its log, and has no queues. It runs with default tuning, in raw mode.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from bench.engines.contract import Engine
from bench.supply import TAG, Row


class RocksEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self.base = Rdict(str(root), Options(raw_mode=True))
        self.how = WriteOptions()
        self.how.sync = self.settings["sync"]
        self.base.set_write_options(self.how)
        self.next = 0

    def close(self) -> None:
        """See `Engine`."""
        self.base.close()

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See `Engine`."""
        return [b"%s\x01%s\x01%s" % (TAG.encode(), key.encode(), body) for _, key, body in rows]

    def batch(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        return self.singles(rows)

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        put, number = self.base.put, self.next
        for value in singles:
            put(number.to_bytes(8, "big"), value)
            number += 1
        self.next = number

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        many = WriteBatch(raw_mode=True)
        for number, value in enumerate(batch, self.next):
            many.put(number.to_bytes(8, "big"), value)
        self.base.write(many, self.how)
        self.next += len(batch)

    def read(self, limit: int, most: int) -> int:
        """See `Engine`."""
        seen = 0
        for value in self.base.values(read_opt=ReadOptions()):
            len(value)
            seen += 1
            if seen == most:
                break
        return seen
