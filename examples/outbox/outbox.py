"""An order in SQLite and its message in Penstock: both or none, wherever the process is killed. See README.md."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import penstock
from penstock.contracts import Prepared


class Shop:
    """Takes orders. The database is the truth: what it has not committed was never ordered."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "orders.db"
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT)")
        self.store = penstock.open(folder / "messages", check_back={"shop": self.check})

    def connect(self) -> sqlite3.Connection:
        """Return a connection; each commit is on disk when it returns."""
        connection = sqlite3.connect(self.database)
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def order(self, item: str) -> None:
        """Store an order with its message: at the end of the block, first the row is committed, then the message."""
        with (
            self.store.prepare("orders", item.encode(), group="shop") as prepared,
            closing(self.connect()) as connection,
            connection,
        ):
            connection.execute("INSERT INTO orders VALUES (?, ?)", (prepared.transaction_id, item))

    def check(self, prepared: Prepared) -> str:
        """Decide about a message whose process died: is its order in the database?"""
        with closing(self.connect()) as connection:
            query = "SELECT 1 FROM orders WHERE id = ?"
            found = connection.execute(query, (prepared.transaction_id,)).fetchone()
        return "commit" if found else "rollback"


@contextmanager
def opened(folder: Path) -> Iterator[Shop]:
    """Open the shop, and close it at the end of the block."""
    shop = Shop(folder)
    with shop.store:
        yield shop


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as shop:
        for name in sys.argv[2:]:
            shop.order(name)
            print(f"ordered {name}", flush=True)
