"""Penstock through its public API. Settings are those of `penstock.open`.

Guarantees: those of its flush policy. Under `async` a message survives a crash of the process from the receipt on, and
a power cut after at most half a second; under `sync` a receipt means that it is on disk. The body's CRC is checked.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import penstock

# Imported here, or the first `open` of the process would import them: that is measured in `bench.workloads.lives`.
import penstock.store.open
import penstock.store.store
from bench.engines.contract import Engine
from bench.supply import QUEUES, TAG, TOPIC, Row

COLUMNS = ("body", "topic", "tag", "keys", "store_time", "born_time")


class PenstockEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        self.store = penstock.open(root, environ={}, **self.settings)

    def close(self) -> None:
        """See `Engine`."""
        self.store.close()

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See `Engine`."""
        return [(queue, (key,), body) for queue, key, body in rows]

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        put = self.store.put
        for queue, keys, body in singles:
            put(TOPIC, body, queue=queue, tag=TAG, keys=keys)

    def batch(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        return [
            penstock.Message(TOPIC, body, queue=queue, tag=TAG, keys=(key,))
            for queue, key, body in rows
        ]

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        self.store.put_many(batch)

    def made(self, singles: Sequence[Any]) -> Any:
        """See `Engine`."""
        return [
            penstock.Message(TOPIC, body, queue=queue, tag=TAG, keys=keys)
            for queue, keys, body in singles
        ]

    def put_together(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        with self.store.transaction() as tx:
            for queue, keys, body in singles:
                tx.put(TOPIC, body, queue=queue, tag=TAG, keys=keys)

    def columns(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and a cold start measures none of it

        queues, keys, bodies = zip(*rows, strict=True)
        count = len(rows)
        return pa.table(
            {
                "topic": pa.array([TOPIC] * count),
                "queue": pa.array(queues, pa.int32()),
                "tag": pa.array([TAG] * count),
                "keys": pa.array(keys),
                "body": pa.array(bodies, pa.binary()),
            }
        )

    def put_columns(self, columns: Any) -> None:
        """See `Engine`."""
        self.store.put_arrow(columns)

    def wait_readable(self) -> None:
        """See `Engine`."""
        self.store.max_offset(TOPIC, 0)

    def _pulled(self, limit: int, most: int) -> Iterator[list[penstock.StoredMessage]]:
        """Read queue after queue, with this number of messages per call, until the maximum is reached."""
        seen = 0
        for queue in range(QUEUES):
            at = 0
            while seen < most:
                found = self.store.read(TOPIC, queue, at, limit)
                if not found.messages:
                    break
                yield found.messages
                seen += len(found.messages)
                at = found.next_offset

    def read(self, limit: int, most: int) -> int:
        """See `Engine`."""
        seen = 0
        for messages in self._pulled(limit, most):
            for message in messages:
                len(message.body)
            seen += len(messages)
        return seen

    def decode(self, limit: int, most: int) -> int:
        """See `Engine`."""
        seen = 0
        for messages in self._pulled(limit, most):
            for m in messages:
                _ = m.body, m.topic, m.tag, m.keys, m.store_time_ms, m.born_time_ms
            seen += len(messages)
        return seen

    def to_arrow(self) -> int:
        """See `Engine`."""
        queues = range(QUEUES)
        return sum(self.store.to_arrow(TOPIC, queue=q, columns=COLUMNS).num_rows for q in queues)

    def find(self, keys: Sequence[str]) -> None:
        """See `Engine`."""
        for key in keys:
            (found,) = self.store.find(key, TOPIC, limit=32)
            if found.keys != (key,):
                raise LookupError(key)

    def times(self) -> tuple[int, int]:
        """See `Engine`."""
        last = self.store.max_offset(TOPIC, 0) - 1
        first, final = (self.store.read(TOPIC, 0, at, 1).messages[0] for at in (0, last))
        return first.store_time_ms, final.store_time_ms

    def offset_at(self, times_ms: Sequence[int]) -> None:
        """See `Engine`."""
        for time_ms in times_ms:
            self.store.offset_at(TOPIC, 0, time_ms / 1000)

    def count(self, queue: int) -> int:
        """See `Engine`."""
        return self.store.max_offset(TOPIC, queue)

    def watch(self, root: Path) -> Iterator[bytes]:
        """See `Engine`."""
        self.store = penstock.open(root, environ={}, read_only=True)
        start = self.store.max_offset(TOPIC, 0)
        return (m.body for m in self.store.scan(TOPIC, queue=0, start=start, follow=True))
