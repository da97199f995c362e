"""A master, a follower beside it, and the promotion of the follower after the master is gone.

    python replica.py FOLDER

The master runs in this process and the follower in a thread of it; in earnest each has a machine of its own. `in_sync_replicas` is 2, so a
put returns when two stores have the message.
"""

import sys
from pathlib import Path
from typing import Any

import penstock
from penstock_replicate import follow

LISTEN = "127.0.0.1:10914"


def put_until_copied(store: penstock.Store, body: bytes) -> penstock.Receipt:
    """Put a message; while no copy is in sync, the receipt says that it is here only."""
    receipt = store.put("orders", body)
    while receipt.status is penstock.PutStatus.SLAVE_NOT_AVAILABLE:
        receipt = store.put("orders", body)
    return receipt


def main(folder: Path) -> None:
    """Run the story once."""
    settings: dict[str, Any] = {"replicate.ha.listen": LISTEN, "replicate.ha.in_sync_replicas": 2}
    with (
        penstock.open(folder / "first", flush="sync", replicate="ha", **settings) as master,
        follow(folder / "second", LISTEN) as follower,
    ):
        follower.wait_caught_up(60)
        receipt = put_until_copied(master, b"promised")
        print(receipt.status.name)
        with penstock.open(folder / "second", read_only=True) as reader:
            print("the copy has", list(reader.topics()))
        # From here on the first master must take no more messages: this process is the only one that knows.
        replica = follower.promote()
    print("promoted: epoch", replica.epoch)

    with penstock.open(folder / "second") as master:
        master.put("orders", b"after the promotion")
        print([message.body for message in master.scan("orders")][-2:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
