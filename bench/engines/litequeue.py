"""litequeue: a queue in SQLite, WAL, with its own settings: `pop` leases one message, `done` acknowledges it.

Guarantees: `synchronous=NORMAL` survives a crash of the process; a power cut loses what was committed since the last
checkpoint. Messages that are done stay in the table until they are pruned, which is not measured.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import litequeue

from bench.engines.contract import Engine
from bench.supply import Row


class LitequeueEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self.queue = litequeue.LiteQueue(root / "db")

    def close(self) -> None:
        """See `Engine`."""
        self.queue.close()

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        for _, _, body in singles:
            self.queue.put(body)

    def put_batch(self, batch: Sequence[Row]) -> None:
        """See `Engine`."""
        self.queue.prune()
        with self.queue.transaction():
            self.put_all(batch)

    def consume_each(self, limit: int, count: int) -> int:
        """See `Engine`; one message is taken at a time, whatever the limit is."""
        seen = 0
        while (message := self.queue.pop()) is not None:
            len(message.data)
            self.queue.done(message.message_id)
            seen += 1
        return seen
