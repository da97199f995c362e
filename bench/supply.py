"""The messages for every engine: fixed bodies of random bytes, a topic, a tag, and a unique key each.

A record of Penstock or RocketMQ then has 10 bytes of topic and 33 of properties, so it takes 133 bytes more than its
body. Bodies are slices of one file of random bytes with a fixed seed, which the Java driver reads as well.
"""

import random
from pathlib import Path

TOPIC = "TopicBench"
TAG = "tag-1"
# Single messages are distributed round-robin; a batch is in one queue, as RocketMQ's must be.
QUEUES = 4
# Number of different bodies of each size; they are used repeatedly.
POOL = 1000
LARGEST = 16 << 10
# Queue, key, body.
Row = tuple[int, str, bytes]


def key_of(number: int) -> str:
    """Return the key of the message with this number."""
    return f"key-{number:012d}"


def make_bodies(path: Path) -> None:
    """Write the file that contains all bodies."""
    path.write_bytes(random.Random(1).randbytes(POOL * LARGEST))


class Supply:
    """Creates messages, each number once. Not thread-safe."""

    def __init__(self, bodies: Path, number: int = 0) -> None:
        self._blob = bodies.read_bytes()
        self._pools: dict[int, list[bytes]] = {}
        self.number = number

    def _pool(self, size: int) -> list[bytes]:
        if size not in self._pools:
            self._pools[size] = [self._blob[n * size : (n + 1) * size] for n in range(POOL)]
        return self._pools[size]

    def rows(self, count: int, size: int, queue: int | None = None) -> list[Row]:
        """Return the next messages, in one queue or in all, round-robin."""
        pool, first = self._pool(size), self.number
        self.number += count
        return [
            (number % QUEUES if queue is None else queue, key_of(number), pool[number % POOL])
            for number in range(first, first + count)
        ]
