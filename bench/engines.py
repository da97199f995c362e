"""One interface, every engine behind it: put one, put many, read in order, find by key.

All store the same bodies under the same keys. SQLite and LMDB are set up as a careful user would for a
queue: SQLite with WAL and no sync per commit, LMDB without sync; what they are durable against is then
what Penstock's `async` is.
"""

import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import lmdb

import penstock
from penstock import Message

TOPIC = "bench"


class Engine(ABC):
    """One store in one folder."""

    name: str

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def open(self) -> None:
        """Open, or make."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Store one message in its own transaction."""

    @abstractmethod
    def put_many(self, keys: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Store many in one transaction."""

    @abstractmethod
    def read(self, start: int, limit: int) -> int:
        """Read messages in order; returns how many."""

    @abstractmethod
    def find(self, key: str) -> bytes:
        """Return the body stored under a key."""

    @abstractmethod
    def close(self) -> None:
        """Close."""

    def remove(self) -> None:
        """Take everything away."""
        shutil.rmtree(self.root, ignore_errors=True)


class PenstockEngine(Engine):
    """Penstock with its defaults: mapped writes, async flush, queues and hash index."""

    name = "penstock"

    def open(self) -> None:
        """See `Engine`."""
        self._store = penstock.open(self.root, environ={})

    def put(self, key: str, body: bytes) -> None:
        """See `Engine`."""
        self._store.put(TOPIC, body, keys=(key,))

    def put_many(self, keys: Sequence[str], bodies: Sequence[bytes]) -> None:
        """See `Engine`."""
        self._store.put_many(
            [Message(TOPIC, b, keys=(k,)) for k, b in zip(keys, bodies, strict=True)]
        )

    def put_arrow(self, keys: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Store many as an Arrow table."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        table = pa.table(
            {"topic": [TOPIC] * len(keys), "keys": keys, "body": pa.array(bodies, pa.binary())}
        )
        self._store.put_arrow(table)

    def read(self, start: int, limit: int) -> int:
        """See `Engine`."""
        return sum(len(m.body) > 0 for m in self._store.read(TOPIC, 0, start, limit).messages)

    def to_arrow(self) -> int:
        """Read everything as columns."""
        return int(self._store.to_arrow(TOPIC).num_rows)

    def find(self, key: str) -> bytes:
        """See `Engine`."""
        return self._store.find(TOPIC, key, limit=1)[0].body

    def close(self) -> None:
        """See `Engine`."""
        self._store.close()


class SqliteEngine(Engine):
    """SQLite: one table with an index on the key, WAL, synchronous off."""

    name = "sqlite"

    def open(self) -> None:
        """See `Engine`."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(self.root / "db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS m (id INTEGER PRIMARY KEY, k TEXT, body BLOB)"
        )
        self._base.execute("CREATE INDEX IF NOT EXISTS by_key ON m (k)")

    def put(self, key: str, body: bytes) -> None:
        """See `Engine`."""
        self._base.execute("INSERT INTO m (k, body) VALUES (?, ?)", (key, body))

    def put_many(self, keys: Sequence[str], bodies: Sequence[bytes]) -> None:
        """See `Engine`."""
        self._base.execute("BEGIN")
        self._base.executemany(
            "INSERT INTO m (k, body) VALUES (?, ?)", zip(keys, bodies, strict=True)
        )
        self._base.execute("COMMIT")

    def read(self, start: int, limit: int) -> int:
        """See `Engine`."""
        rows = self._base.execute(
            "SELECT id, k, body FROM m WHERE id > ? ORDER BY id LIMIT ?", (start, limit)
        )
        return sum(len(row[2]) > 0 for row in rows)

    def find(self, key: str) -> bytes:
        """See `Engine`."""
        body: bytes = self._base.execute("SELECT body FROM m WHERE k = ?", (key,)).fetchone()[0]
        return body

    def close(self) -> None:
        """See `Engine`."""
        self._base.close()


class LmdbEngine(Engine):
    """LMDB: one database by number, one from key to number, no sync."""

    name = "lmdb"

    def open(self) -> None:
        """See `Engine`."""
        self._env = lmdb.open(str(self.root), map_size=8 << 30, max_dbs=2, sync=False)
        self._bodies = self._env.open_db(b"bodies")
        self._keys = self._env.open_db(b"keys")
        self._count = self._env.stat()["entries"]
        with self._env.begin() as transaction:
            self._count = transaction.stat(self._bodies)["entries"]

    def put(self, key: str, body: bytes) -> None:
        """See `Engine`."""
        self.put_many((key,), (body,))

    def put_many(self, keys: Sequence[str], bodies: Sequence[bytes]) -> None:
        """See `Engine`."""
        numbers = [n.to_bytes(8, "big") for n in range(self._count, self._count + len(bodies))]
        with self._env.begin(write=True) as transaction:
            with transaction.cursor(self._bodies) as cursor:
                cursor.putmulti(zip(numbers, bodies, strict=True), append=True)
            with transaction.cursor(self._keys) as cursor:
                cursor.putmulti((k.encode(), n) for k, n in zip(keys, numbers, strict=True))
        self._count += len(bodies)

    def read(self, start: int, limit: int) -> int:
        """See `Engine`."""
        with self._env.begin() as transaction, transaction.cursor(self._bodies) as cursor:
            if not cursor.set_range(start.to_bytes(8, "big")):
                return 0
            count = 0
            for body in cursor.iternext(keys=False):
                count += len(body) > 0
                if count == limit:
                    break
            return count

    def find(self, key: str) -> bytes:
        """See `Engine`."""
        with self._env.begin() as transaction:
            number = transaction.get(key.encode(), db=self._keys)
            return bytes(transaction.get(number or b"", db=self._bodies) or b"")

    def close(self) -> None:
        """See `Engine`."""
        self._env.close()
