"""A bank: moves money between accounts, each of which is a topic. Stop or kill `move`, and start it again.

$ echo "anna ben 20" | python transfer.py order data      # from whom, to whom, how much; one transfer a line
$ python transfer.py move data                            # carries out what was ordered
$ python transfer.py balance data                         # what each account has
"""

import sys
from contextlib import suppress

import penstock


def order(path: str) -> None:
    """Take orders: all lines together, or none if this is killed."""
    with penstock.open(path) as store:
        with store.transaction() as tx:
            for line in filter(str.strip, sys.stdin):
                tx.put("transfers", line.strip().encode())
        store.flush()


def move(path: str) -> None:
    """Carry out each transfer exactly once: both entries are stored and the order is done, or nothing is."""
    with penstock.open(path) as store, store.consumer("bank", "transfers") as transfers:
        while given := transfers.poll(1, timeout=1):
            source, target, amount = given[0].body.decode().split()
            with store.transaction() as tx:
                tx.put(f"account-{source}", f"-{amount}".encode())
                tx.put(f"account-{target}", f"{amount}".encode())
                tx.ack(given)
            print("moved", amount, "from", source, "to", target, flush=True)


def balance(path: str) -> None:
    """Add up the entries of each account."""
    with penstock.open(path, read_only=True) as store:
        for topic in sorted(store.topics()):
            if topic.startswith("account-"):
                entries = [int(message.body) for message in store.scan(topic)]
                print(topic.removeprefix("account-"), sum(entries), "in", len(entries), "entries")


if __name__ == "__main__":
    parts = {"order": order, "move": move, "balance": balance}
    if not sys.argv[2:] or sys.argv[1] not in parts:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        parts[sys.argv[1]](sys.argv[2])
