"""LMDB: one value a message under its number: tag, key and body, joined before the clock starts.

Guarantees: without `sync` a crash of the process loses nothing, but a power cut may corrupt the file; with `sync` each
commit is on disk. LMDB has no checksums and no queues. A batch is one `putmulti` in the order of the numbers, LMDB's
fastest method.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from bench.engines.contract import Engine
from bench.supply import TAG, Row

_MAP_BYTES = 64 << 30


class LmdbEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self.base = lmdb.open(str(root), map_size=_MAP_BYTES, sync=self.settings["sync"])
        self.next = self.base.stat()["entries"]

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
        begin, number = self.base.begin, self.next
        for value in singles:
            with begin(write=True) as transaction:
                transaction.put(number.to_bytes(8, "big"), value, append=True)
            number += 1
        self.next = number

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        numbers = [n.to_bytes(8, "big") for n in range(self.next, self.next + len(batch))]
        with self.base.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(numbers, batch, strict=True), append=True)
        self.next += len(batch)

    def read(self, limit: int, most: int) -> int:
        """See `Engine`."""
        seen = 0
        while seen < most:
            with self.base.begin() as transaction, transaction.cursor() as cursor:
                cursor.set_range(seen.to_bytes(8, "big"))
                found = 0
                for value in cursor.iternext(keys=False):
                    len(value)
                    found += 1
                    if found == limit:
                        break
            if not found:
                break
            seen += found
        return seen
