"""An order service: a shop, and two groups in processes of their own. Stop or kill any of them, and start it again.

$ python orders.py shop data           # takes orders, one a line: customer, amount, card
$ python orders.py billing data        # charges each order; start it twice, and the two share the work
$ python orders.py shipping data       # gets each order too, and the reminders
$ penstock dlq show data billing       # the orders that could not be charged
"""

import sys
from contextlib import suppress

import penstock


def shop(path: str) -> None:
    """Take orders. Those of one customer stay in order, and a reminder follows each a second later."""
    with penstock.open(path, flush="sync") as store:
        for line in filter(str.strip, sys.stdin):
            order = line.strip().encode()
            store.put("orders", order, partition_key=line.split()[0])
            store.put("reminders", order, delay_level=1)
            print("taken", order.decode(), flush=True)


def charge(order: bytes, attempt: int) -> bool:
    """Stand in for a bank: it refuses one card, and is busy when it first sees another one."""
    card = order.decode().split()[-1]
    return card != "expired" and (card != "busy" or attempt > 1)


def billing(path: str) -> None:
    """Charge each order. A failed one is tried again twice, a second later, and then becomes a dead letter."""
    store = penstock.open(path, read_only=True)
    with store, store.consumer("billing", ["orders"], max_retries=2) as orders:
        for message in orders:
            if charge(message.body, message.attempt):
                print("charged", message.body.decode(), flush=True)
                message.ack()
            else:
                print("refused", message.body.decode(), flush=True)
                message.nack(delay=1)


def shipping(path: str) -> None:
    """Ship each order, and send each reminder when its time has come."""
    store = penstock.open(path, read_only=True)
    with store, store.consumer("shipping", ["orders", "reminders"]) as messages:
        for message in messages:
            done = "shipped" if message.topic == "orders" else "reminded of"
            print(done, message.body.decode(), flush=True)
            message.ack()


if __name__ == "__main__":
    parts = {"shop": shop, "billing": billing, "shipping": shipping}
    if not sys.argv[2:] or sys.argv[1] not in parts:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        parts[sys.argv[1]](sys.argv[2])
