"""A writer that ships its store, to be killed: prints the number of each message that it put."""

import sys

from tests.crash.writer import SMALL, message

import penstock


def main(path: str, archive: str, number: int) -> None:
    """Write until killed."""
    settings = {**SMALL, "replicate.ship.url": archive, "replicate.ship.interval_ms": 10}
    settings |= {"replicate.ship.generations": 2, "geometry.segment_bytes": 16 << 10}
    with penstock.open(path, flush="async", replicate="ship", environ={}, **settings) as store:
        while True:
            one = message(number)
            store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
            store.commit_offset("g", "t", number % 3, offset=number // 3)
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
