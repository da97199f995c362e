"""A process that moves messages in transactions until it is killed: what it has promised it says, one line each.

Two threads with a consumer each take messages of `in`, and store two messages for each of them, in the transaction that acknowledges it.
The main thread stores messages for them, five in a transaction.
"""

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import penstock
from penstock import Message, Store
from penstock.contracts import ConsumedMessage

GROUP, SOURCE, TARGETS = "movers", "in", ("out", "more")
QUEUES, TOGETHER = 4, 5
_PAUSE_S = 0.01


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _move(store: Store, seed: str) -> None:
    chance = Random(seed)
    with store.consumer(GROUP, SOURCE) as consumer:
        while True:
            given = consumer.poll(chance.randint(1, 3))
            if chance.random() < 0.1:
                _fail(store, given)
                consumer.release(given)
                continue
            with store.transaction() as tx:
                tx.ack(given)
                for message in given:
                    for topic in TARGETS:
                        tx.put(topic, b"%d:%d" % (message.queue, message.queue_offset), queue=0)
            for message in given:
                _say(f"moved {message.queue}:{message.queue_offset}")


def _fail(store: Store, given: Sequence[ConsumedMessage]) -> None:
    with suppress(IndexError), store.transaction() as tx:
        tx.ack(given)
        tx.put("never", b"x", queue=0)
        given[len(given)].ack()


def main(path: str, seed: str) -> None:
    """Move messages without end."""
    store = penstock.open(path, retention=[])
    _say("ready")
    for number in range(2):
        threading.Thread(target=_move, args=(store, f"{seed} {number}"), daemon=True).start()
    chance = Random(seed)
    count = 0
    while True:
        count += 1
        name = f"{seed}-{count}"
        with store.transaction() as tx:
            tx.put_many(
                Message(SOURCE, name.encode(), queue=chance.randrange(QUEUES))
                for _ in range(TOGETHER)
            )
        _say(f"put {name}")
        threading.Event().wait(_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
