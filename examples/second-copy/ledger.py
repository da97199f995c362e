"""A ledger with a second copy: what is said to be on both disks outlives the loss of one.

$ python ledger.py write data                            # takes a line of stdin as an entry, and says where it is
$ python ledger.py copy data-2 127.0.0.1:10912           # in another terminal, or on another machine
$ python ledger.py take-over data-2                      # when the first one is lost; then `write data-2`
$ python ledger.py read data-2
"""

import sys
from contextlib import suppress
from typing import Any

import penstock
from penstock_replicate import follow


def write(path: str, listen: str = "127.0.0.1:10912") -> None:
    """Store each line; a copy must have synced it, too, unless none is connected."""
    settings: dict[str, Any] = {"replicate.ha.listen": listen, "replicate.ha.in_sync_replicas": 2}
    with penstock.open(path, flush="sync", replicate="ha", **settings) as ledger:
        for line in sys.stdin:
            receipt = ledger.put("ledger", line.strip().encode())
            print(f"{receipt.durability}: {line.strip()}", flush=True)


def copy(path: str, master: str) -> None:
    """Follow the ledger until this is stopped; an old one that comes back gives up what nobody else has."""
    with follow(path, master, flush="sync", cut=True) as ledger:
        while True:
            ledger.wait_caught_up()
            print(ledger.status()["text"], flush=True)
            ledger.wait(5)


def take_over(path: str) -> None:
    """Make a copy, which nobody follows with any more, the ledger that takes entries."""
    penstock.promote(path)


def read(path: str) -> None:
    """Print all entries; a copy has them, too."""
    with penstock.open(path, read_only=True) as ledger:
        for message in ledger.scan("ledger"):
            print(message.body.decode())


if __name__ == "__main__":
    parts: dict[str, Any] = {"write": write, "copy": copy, "take-over": take_over, "read": read}
    if not sys.argv[2:] or sys.argv[1] not in parts:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        parts[sys.argv[1]](*sys.argv[2:])
