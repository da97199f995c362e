"""SQLite: one table, WAL, one row per message with topic, queue, tag and key besides the body.

Guarantees: `synchronous` OFF survives a crash of the process, but a power cut may corrupt it; FULL is on disk at each
commit. No checksums. `by_key` adds an index on the key.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.engines.contract import Engine
from bench.supply import TAG, TOPIC, Row

INSERT = "INSERT INTO m (topic, queue, tag, k, body) VALUES (?, ?, ?, ?, ?)"


class SqliteEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(root / "db", isolation_level=None)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute(f"PRAGMA synchronous={self.settings['synchronous']}")
        base.execute(
            "CREATE TABLE IF NOT EXISTS m "
            "(id INTEGER PRIMARY KEY, topic TEXT, queue INT, tag TEXT, k TEXT, body BLOB)"
        )
        if self.settings.get("by_key"):
            base.execute("CREATE INDEX IF NOT EXISTS by_key ON m (k)")
        self.base = base

    def close(self) -> None:
        """See `Engine`."""
        self.base.close()

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See `Engine`."""
        return [(TOPIC, queue, TAG, key, body) for queue, key, body in rows]

    def batch(self, rows: Sequence[Row]) -> Any:
        """See `Engine`."""
        return self.singles(rows)

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        execute = self.base.execute
        for row in singles:
            execute(INSERT, row)

    def put_batch(self, batch: Any) -> None:
        """See `Engine`."""
        self.base.execute("BEGIN")
        self.base.executemany(INSERT, batch)
        self.base.execute("COMMIT")

    def read(self, limit: int, most: int) -> int:
        """See `Engine`."""
        return self._read("SELECT id, body FROM m WHERE id > ? ORDER BY id LIMIT ?", limit, most)

    def decode(self, limit: int, most: int) -> int:
        """See `Engine`."""
        return self._read("SELECT * FROM m WHERE id > ? ORDER BY id LIMIT ?", limit, most)

    def _read(self, query: str, limit: int, most: int) -> int:
        seen = last = 0
        while seen < most:
            rows = self.base.execute(query, (last, limit)).fetchall()
            if not rows:
                break
            for row in rows:
                len(row[-1])
            seen += len(rows)
            last = rows[-1][0]
        return seen

    def find(self, keys: Sequence[str]) -> None:
        """See `Engine`."""
        for key in keys:
            (_row,) = self.base.execute("SELECT * FROM m WHERE k = ?", (key,)).fetchall()

    def watch(self, root: Path) -> Iterator[bytes]:
        """See `Engine`."""
        self.open(root)
        (start,) = self.base.execute("SELECT coalesce(max(id), 0) FROM m").fetchone()
        return self._new(start)

    def _new(self, last: int) -> Iterator[bytes]:
        while True:
            rows = self.base.execute("SELECT id, body FROM m WHERE id > ?", (last,)).fetchall()
            for row in rows:
                last = row[0]
                yield row[1]
            if not rows:
                time.sleep(0.001)
