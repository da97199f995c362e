"""What an engine does for the harness. Each runs in a process of its own; see `bench.worker`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.supply import Row


class Engine(ABC):
    """One engine with one store. What it does not do, it leaves out; the worker says so.

    What the caller would have in hand (message objects, a table, the bytes of a value) is made by `singles`, `batch`
    and `columns`, before the clock starts. Turning it into the engine's own bytes is within the measured calls.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)

    @abstractmethod
    def open(self, root: Path) -> None:
        """Open the store, or make it."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def singles(self, rows: Sequence[Row]) -> Sequence[Any]:
        """Return what a caller has in hand to put these one by one."""
        return rows

    def batch(self, rows: Sequence[Row]) -> Any:
        """Return what a caller has in hand to put these in one batch."""
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

    def put_columns(self, columns: Any) -> None:
        """Put a table."""
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027 - most can be read at once
        """Return when all that was put can be read."""

    def read(self, limit: int, most: int) -> int:
        """Read in order, `limit` at a time, at most so many, and look at each body; returns how many."""
        raise NotImplementedError

    def decode(self, limit: int, most: int) -> int:
        """As `read`, but look at topic, tag, keys and times of each as well."""
        raise NotImplementedError

    def to_arrow(self) -> int:
        """Read everything as columns: body, topic, tags, keys, times; returns how many."""
        raise NotImplementedError

    def find(self, keys: Sequence[str]) -> None:
        """Look each key up; raises if one is not there once."""
        raise NotImplementedError

    def times(self) -> tuple[int, int]:
        """Return the store times of the first and the last message of queue 0."""
        raise NotImplementedError

    def offset_at(self, times_ms: Sequence[int]) -> None:
        """Look the offset of each time up."""
        raise NotImplementedError

    def count(self, queue: int) -> int:
        """Return how many messages of a queue can be read now."""
        raise NotImplementedError

    def watch(self, root: Path) -> Iterator[bytes]:
        """Open a store that another process writes, and yield bodies of queue 0 that come from now on, for ever."""
        raise NotImplementedError
