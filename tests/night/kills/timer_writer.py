"""A writer of messages that wait for a time, to be killed: prints what was acknowledged.

`put NUMBER DUE_MS` when a message is stored, `cancel NUMBER` before and `cancelled NUMBER` after one is cancelled.
"""

import random
import sys
import time

from tests.crash.writer import SMALL

import penstock

TOPIC = "reminders"
DELAY_MS_MAX = 2500


def main(path: str, first: int, seed: int, puts: int) -> None:
    """Put messages from number `first` on, this many, and close; or until killed if `puts` is 0."""
    chance = random.Random(seed)
    receipts = {}
    number = first
    with penstock.open(path, environ={}, **SMALL) as store:
        while not puts or number < first + puts:
            due_ms = time.time_ns() // 1_000_000 + 1 + chance.randrange(DELAY_MS_MAX)
            receipts[number] = store.put(TOPIC, b"%d" % number, queue=0, deliver_at=due_ms / 1000)
            print("put", number, due_ms, flush=True)
            if chance.random() < 0.05:
                gone = chance.randrange(first, number + 1)
                print("cancel", gone, flush=True)
                if store.cancel_delayed(receipts[gone]):
                    print("cancelled", gone, flush=True)
            number += 1
            time.sleep(chance.random() / 200)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
