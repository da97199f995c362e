"""A queue as a table of SQLite, as programs build one: a consumer leases rows, and deletes those that it has handled.

One transaction a batch: it deletes the batch before and leases the next one, so that a batch costs one commit.
Guarantees: `synchronous=FULL` is on disk at each commit, in both journal modes. A partial index has the free rows.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.engines.contract import MOMENT_S, Engine
from bench.supply import TAG, Row

_SCHEMA = """
CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY, leased_ns INTEGER NOT NULL DEFAULT 0, tag TEXT, k TEXT, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS free ON queue (id) WHERE leased_ns = 0;
"""
_LEASE = (
    "UPDATE queue SET leased_ns = ? WHERE id IN (SELECT id FROM queue WHERE leased_ns = 0 ORDER BY id LIMIT ?) "
    "RETURNING id, body"
)


class SqliteQueueEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._turn = threading.Lock()
        self.base = self._connected()
        self.base.executescript(_SCHEMA)

    def _connected(self) -> sqlite3.Connection:
        base = sqlite3.connect(
            self._root / "db", isolation_level=None, timeout=60, check_same_thread=False
        )
        base.execute(f"PRAGMA journal_mode={self.settings['journal']}")
        base.execute("PRAGMA synchronous=FULL")
        return base

    def close(self) -> None:
        """See `Engine`."""
        self.base.close()

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        for row in singles:
            self.put_batch([row])

    def put_batch(self, batch: Sequence[Row]) -> None:
        """See `Engine`."""
        self.base.execute("BEGIN")
        self.base.executemany(
            "INSERT INTO queue (tag, k, body) VALUES (?, ?, ?)",
            ((TAG, key, body) for _, key, body in batch),
        )
        self.base.execute("COMMIT")

    def consume(self, limit: int, count: int) -> int:
        """See `Engine`."""
        handled = _next(self.base, [], limit)
        seen = len(handled)
        while handled:
            handled = _next(self.base, handled, limit)
            seen += len(handled)
        return seen

    def join(self, root: Path) -> None:
        """See `Engine`."""
        self.open(root)

    def member(self) -> Callable[[int], int]:
        """See `Engine`; each thread has a connection, and acknowledges a batch with the next one.

        The threads of a process take turns by a lock: SQLite itself lets those that wait sleep for milliseconds.
        """
        base = self._connected()
        handled: list[tuple[int]] = []

        def some(limit: int) -> int:
            nonlocal handled
            until = time.monotonic() + MOMENT_S
            with self._turn:
                handled = _next(base, handled, limit)
            while not handled and time.monotonic() < until:
                time.sleep(0.001)
                with self._turn:
                    handled = _next(base, [], limit)
            return len(handled)

        return some


def _next(base: sqlite3.Connection, handled: Sequence[tuple[int]], limit: int) -> list[tuple[int]]:
    """Delete what was handled and lease the next rows, in one transaction; return the numbers of these rows."""
    base.execute("BEGIN IMMEDIATE")
    base.executemany("DELETE FROM queue WHERE id = ?", handled)
    rows = base.execute(_LEASE, (time.time_ns(), limit)).fetchall()
    base.execute("COMMIT")
    for row in rows:
        len(row[1])
    return [(row[0],) for row in rows]
