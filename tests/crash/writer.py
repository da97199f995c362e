"""A writer to be killed: prints every acknowledged message's number."""

import json
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


# A kill loses what a pool holds back: it is acknowledged when this many messages are committed.
HELD_BACK = 25


def main(path: str, settings: dict[str, Any], number: int) -> None:
    """Write until killed."""
    holds_back = settings.get("write") == "transient-pool"
    put: list[int] = []
    with penstock.open(path, environ={}, **{**SMALL, **settings}) as store:
        while True:
            count = 1
            if number % 50 == 0:
                count = len(store.put_many([message(number + i) for i in range(20)]))
            else:
                one = message(number)
                store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
            put += range(number, number + count)
            number += count
            if holds_back and len(put) < HELD_BACK:
                continue
            if holds_back:
                store.flush()
            for each in put:
                print(each, flush=True)
            put.clear()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
