"""A short story of everything a writer does, for faults at a chosen system call; prints what was acknowledged."""

import sys
from typing import Any

import penstock
from penstock import Message

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 65536, "geometry.queue_entries": 200,
    "geometry.index_slots": 100, "geometry.index_entries": 400,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "index.flush_interval_ms": 10, "flush.async.interval_ms": 5, "flush.async.least_pages": 0,
}  # fmt: skip


def main(path: str, flush: str) -> None:
    """Open, put, roll, put a batch, commit an offset, close; twice."""
    for _ in range(2):
        with penstock.open(path, flush=flush, environ={}, **SMALL, **QUICK) as store:
            number = store.max_offset("t", 0)
            for _ in range(60):
                store.put("t", b"%d:" % number + b"x" * 300, queue=0, keys=[f"k{number}"], tag="g")
                print(number, flush=True)
                number += 1
            more = [
                Message("t", b"%d:" % n + b"x" * 500, queue=0, keys=[f"k{n}"])
                for n in range(number, number + 200)
            ]
            number += len(store.put_many(more))
            print(number - 1, flush=True)
            store.commit_offset("g", "t", 0, offset=number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
