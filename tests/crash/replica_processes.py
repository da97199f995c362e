"""A master that puts messages and says which of them are promised to be in both stores, and a follower of it, as processes to be killed.

Run as `replica_processes.py master PATH LISTEN FIRST` and `replica_processes.py follower PATH MASTER`.
"""

import sys
import time
from typing import Any

import penstock
from penstock.message import PutStatus
from penstock_replicate.following.follow import follow

SMALL = {"geometry.segment_bytes": 1 << 16}


def body(number: int) -> bytes:
    """Return the body of a message, of a size of its own."""
    return b"%08d" % number + bytes(number * 37 % 900)


def put_for_ever(path: str, listen: str, first: int) -> None:
    """Put messages, and say the number of each that is promised, and when copies can connect."""
    settings: dict[str, Any] = {
        "flush": "sync", "replicate": "ha", "replicate.ha.listen": listen, "replicate.ha.in_sync_replicas": 2,
        "replicate.ha.timeout_ms": 1000, **SMALL,
    }  # fmt: skip
    with penstock.open(path, **settings) as store:
        print("open", flush=True)
        number = first
        while True:
            if number % 7 == 3:
                receipts = store.put_many(
                    [penstock.Message("t", body(number + n)) for n in range(3)]
                )
                promised, count = receipts[-1].status is PutStatus.PUT_OK, 3
            else:
                receipt = store.put("t", body(number), keys=[f"k{number}"])
                promised, count = receipt.status is PutStatus.PUT_OK, 1
            number += count
            if promised:
                print(number - 1, flush=True)
            else:
                # Else a log without a copy grows as fast as the disk.
                time.sleep(0.002)


def follow_for_ever(path: str, master: str) -> None:
    """Follow until killed, and say when it has caught up once."""
    with follow(path, master) as follower:
        follower.wait_caught_up()
        print("level", flush=True)
        while not follower.wait_over(1):
            time.sleep(0)


if __name__ == "__main__":
    if sys.argv[1] == "master":
        put_for_ever(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        follow_for_ever(sys.argv[2], sys.argv[3])
