"""Penstock's consumer group, in the process that puts, or in another one beside it.

Guarantees: `ack` returns when it is on disk; `ack(sync=False)` survives a crash of the process at once, and a power cut
after at most a second. The messages have those of the flush policy `async`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import penstock
from bench.engines.contract import MOMENT_S
from bench.engines.penstock import PenstockEngine
from bench.supply import TOPIC
from penstock.contracts import Consumer

GROUP = "bench"
# A message that takes longer is lost, and the run must not wait for it without end.
_PATIENCE_S = 60.0


class ConsumerEngine(PenstockEngine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        super().open(root)
        self.consumer: Consumer | None = None

    def close(self) -> None:
        """See `Engine`."""
        if self.consumer is not None:
            self.consumer.close()
        super().close()

    def _joined(self) -> Consumer:
        if self.consumer is None:
            self.consumer = self.store.consumer(GROUP, [TOPIC])
        return self.consumer

    def consume(self, limit: int, count: int) -> int:
        """See `Engine`."""
        consumer, seen = self._joined(), 0
        while seen < count:
            messages = consumer.poll(limit, _PATIENCE_S)
            if not messages:
                raise LookupError(f"only {seen} of {count} messages came")
            for message in messages:
                len(message.body)
            consumer.ack(messages)
            seen += len(messages)
        return seen

    def consume_each(self, limit: int, count: int) -> int:
        """See `Engine`."""
        consumer, seen = self._joined(), 0
        while seen < count:
            messages = consumer.poll(limit, _PATIENCE_S)
            if not messages:
                raise LookupError(f"only {seen} of {count} messages came")
            for message in messages:
                len(message.body)
                message.ack(sync=False)
            seen += len(messages)
        return seen

    def join(self, root: Path) -> None:
        """See `Engine`."""
        self.store = penstock.open(root, environ={}, read_only=True)
        self.consumer = self.store.consumer(GROUP, [TOPIC])

    def has_share(self) -> bool:
        """See `Engine`; with as many members as queues, each has one."""
        return len([topic for topic, _ in self._joined().assignment() if topic == TOPIC]) == 1

    def member(self) -> Callable[[int], int]:
        """See `Engine`; all threads use one consumer."""
        consumer = self._joined()

        def some(limit: int) -> int:
            messages = consumer.poll(limit, MOMENT_S)
            for message in messages:
                len(message.body)
            consumer.ack(messages)
            return len(messages)

        return some

    def arrivals(self) -> Iterator[bytes]:
        """See `Engine`."""
        return _bodies(self.store.consumer("arrivals", [TOPIC], start="latest"))

    def watch(self, root: Path) -> Iterator[bytes]:
        """See `Engine`."""
        self.store = penstock.open(root, environ={}, read_only=True)
        return _bodies(self.store.consumer("watch", [TOPIC], start="latest"))


def _bodies(consumer: Consumer) -> Iterator[bytes]:
    for message in consumer:
        yield message.body
        message.ack(sync=False)
