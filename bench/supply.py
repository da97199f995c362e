"""The messages that every engine is given: fixed bodies of random bytes, a topic, a tag, and a key of its own each.

A record of Penstock or RocketMQ has 10 bytes of topic and 33 of properties then, so it takes 133 bytes more than its
body. Bodies are slices of one file of random bytes with a fixed seed, which the Java driver reads as well.
"""

import random
from pathlib import Path

TOPIC = "TopicBench"
TAG = "tag-1"
# Single messages go to them in turns; a batch lies in one of them, as RocketMQ's must.
QUEUES = 4
# So many different bodies of each size; they are used again and again.
POOL = 1000
LARGEST = 16 << 10
# Queue, key, body.
Row = tuple[int, str, bytes]


def key_of(number: int) -> str:
    """Return the key of the message with this number."""
    return f"key-{number:012d}"


def make_bodies(path: Path) -> None:
    """Write the file that all bodies are slices of."""
    path.write_bytes(random.Random(1).randbytes(POOL * LARGEST))


class Supply:
    """Makes messages, each number once. Not thread-safe."""

    def __init__(self, bodies: Path, number: int = 0) -> None:
        self._blob = bodies.read_bytes()
        self._pools: dict[int, list[bytes]] = {}
        self.number = number

    def _pool(self, size: int) -> list[bytes]:
        if size not in self._pools:
            self._pools[size] = [self._blob[n * size : (n + 1) * size] for n in range(POOL)]
        return self._pools[size]

    def rows(self, count: int, size: int, queue: int | None = None) -> list[Row]:
        """Return the next messages, in one queue or in all in turns."""
        pool, first = self._pool(size), self.number
        self.number += count
        return [
            (number % QUEUES if queue is None else queue, key_of(number), pool[number % POOL])
            for number in range(first, first + count)
        ]
