"""The interface of an engine to the harness. Each engine runs in a process of its own; see `bench.worker`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.supply import Row

# How long a member of a group waits for messages before it concludes that there are none.
MOMENT_S = 0.5


class Engine(ABC):
    """One engine with one store. It omits operations that it does not support; the worker reports that.

    `singles`, `batch` and `columns` create what a caller would already have (message objects, a table, the bytes of a
    value), before the clock starts. Encoding that into the engine's own format is part of the measured calls.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)

    @abstractmethod
    def open(self, root: Path) -> None:
        """Open the store, or create it."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """Return the objects that a caller has when it puts these messages one by one."""
        return rows

    def batch(self, rows: Sequence[Row]) -> Any:
        """Return the objects that a caller has when it puts these messages in one batch."""
        return rows

    def columns(self, rows: Sequence[Row]) -> Any:
        """Return these as a table."""
        raise NotImplementedError

    @abstractmethod
    def put_all(self, singles: Sequence[Any]) -> None:
        """Put one by one, each acknowledged before the next."""

    @abstractmethod
    def put_batch(self, batch: Any) -> None:
        """Put a batch, acknowledged once."""

    def made(self, singles: Sequence[Any]) -> Any:
        """Return what `put_batch` takes, from what `put_all` takes."""
        raise NotImplementedError

    def put_together(self, singles: Sequence[Any]) -> None:
        """Put one by one in one transaction, acknowledged once."""
        raise NotImplementedError

    def put_columns(self, columns: Any) -> None:
        """Put a table."""
        raise NotImplementedError

    def wait_readable(self) -> None:  # noqa: B027 - most can be read at once
        """Return when all messages that were put can be read."""

    def read(self, limit: int, most: int) -> int:
        """Read in order, `limit` at a time, up to a maximum, and access each body; return how many."""
        raise NotImplementedError

    def decode(self, limit: int, most: int) -> int:
        """Like `read`, but also access topic, tag, keys and times of each."""
        raise NotImplementedError

    def to_arrow(self) -> int:
        """Read everything as columns: body, topic, tags, keys, times; return how many."""
        raise NotImplementedError

    def find(self, keys: Sequence[str]) -> None:
        """Look up each key; raise if it does not have exactly one message."""
        raise NotImplementedError

    def times(self) -> tuple[int, int]:
        """Return the store times of the first and the last message of queue 0."""
        raise NotImplementedError

    def offset_at(self, times_ms: Sequence[int]) -> None:
        """Look up the offset of each time."""
        raise NotImplementedError

    def count(self, queue: int) -> int:
        """Return how many messages of a queue can be read now."""
        raise NotImplementedError

    def watch(self, root: Path) -> Iterator[bytes]:
        """Open a store that another process writes, and yield new bodies of queue 0, without end."""
        raise NotImplementedError

    def consume(self, limit: int, count: int) -> int:
        """Take `count` messages as a member of a group, `limit` at a time, and access each body; return how many.

        Each batch is acknowledged, on disk, before the next one is handled.
        """
        raise NotImplementedError

    def consume_each(self, limit: int, count: int) -> int:
        """Like `consume`, but acknowledge each message by itself, without waiting for the disk."""
        raise NotImplementedError

    def join(self, root: Path) -> None:
        """Become a member of the group of `consume`, of a store that another process has opened."""
        raise NotImplementedError

    def has_share(self) -> bool:
        """Return whether this member has what it gets of the queues: some engines share them soon after it joins."""
        return True

    def member(self) -> Callable[[int], int]:
        """Return what one thread of a member calls to consume a batch: it returns how many messages there were.

        It takes up to that many messages, accesses each body, and acknowledges them on disk, now or with the next call.
        Returns 0 after waiting for a moment in vain.
        """
        raise NotImplementedError

    def arrivals(self) -> Iterator[bytes]:
        """Yield new bodies as a consumer of a group in this process gets them, without end; each is acknowledged."""
        raise NotImplementedError
