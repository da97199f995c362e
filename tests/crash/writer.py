"""A writer to be killed: prints every acknowledged message's number, and the offset that is durable."""

import sys
from typing import Any

import penstock
from penstock import Message

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 256 * 1024, "geometry.queue_entries": 500,
    "geometry.index_slots": 200, "geometry.index_entries": 1500,
    "index.flush_interval_ms": 20, "flush.async.interval_ms": 5, "flush.async.least_pages": 0,
}  # fmt: skip


def body(number: int) -> bytes:
    """Return what message `number` says."""
    return b"%d:" % number + bytes((number * 7 + i) & 0xFF for i in range(number * 13 % 200))


def message(number: int) -> Message:
    """Return message `number`."""
    return Message("t", body(number), queue=number % 3, tag=f"tag{number % 4}", keys=[f"k{number}"])


def main(path: str, flush: str, number: int) -> None:
    """Write until killed."""
    with penstock.open(path, flush=flush, environ={}, **SMALL) as store:
        while True:
            if number % 50 == 0:
                for _ in store.put_many([message(number + i) for i in range(20)]):
                    print(number, flush=True)
                    number += 1
                continue
            one = message(number)
            store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
