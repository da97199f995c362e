"""What every strategy has, and what the kernel lends it."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs

from penstock.contracts.geometry import Geometry
from penstock.contracts.history import NO_HISTORY, History
from penstock.files import Files
from penstock.runtime.clock import Clock

# Raised when a contract changes so that a strategy written for the older one may fail.
CONTRACT_VERSION = 1


@attrs.frozen
class NoOptions:
    """Options of a strategy that has none."""


class Stoppable(Protocol):
    """A thread that the kernel started for a strategy."""

    def wake(self) -> None:
        """Make it run its step now."""

    def stop(self) -> None:
        """End it and wait for its last step."""


class SpawnWorker(Protocol):
    """Starts a background thread; in tests it may give one that only runs when told."""

    def __call__(self, name: str, step: Callable[[], float | None]) -> Stoppable:
        """Call `step` at once and again after as many seconds as it returns; None waits for `wake`."""


@attrs.frozen(kw_only=True)
class Context:
    """What the kernel lends every strategy.

    Attributes:
        root: the store's folder.
        files: the only way to the disk.
        clock: the only way to the time.
        geometry: the store's file sizes.
        spawn: starts a background worker.
        read_only: nothing on disk may change, and another process may be writing.
        log_min_offset: tells the first byte that the commit log still has.
        appenders_wait: puts return only when their bytes are durable (`FlushPolicy.appender_waits`).
        read_history: reads from the store's folder what is known of the log beyond its records, as it is now.
    """

    root: Path
    files: Files
    clock: Clock
    geometry: Geometry
    spawn: SpawnWorker
    read_only: bool = False
    log_min_offset: Callable[[], int] = lambda: 0
    appenders_wait: bool = False
    read_history: Callable[[], History] = lambda: NO_HISTORY


class Strategy(ABC):
    """Base of every contract.

    Attributes:
        name: what the configuration calls it, in kebab-case.
        Options: a frozen attrs class, filled from the strategy's own table of the configuration.
        capabilities: what it can do beyond its contract's least; the contract suites test what is
            named here, and `penstock plugins` shows it. The contract's docstring has the words.
        needs_contract: the `CONTRACT_VERSION` it was written for; a later one than this Penstock's
            is set aside as incompatible.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    capabilities: ClassVar[frozenset[str]] = frozenset()
    needs_contract: ClassVar[int] = 1

    def __init__(self, options: Any, context: Context) -> None:
        self.options = options
        self.context = context

    @classmethod
    def conflict(cls, picks: Mapping[str, Sequence[str]]) -> str | None:
        """Say why this makes no sense beside the other strategies picked; None if it does.

        Args:
            picks: section to the names that are configured, as `{"flush": ["sync"], ...}`.
        """
        return None

    def stats(self) -> dict[str, int]:
        """Return figures for `Store.stats()`."""
        return {}
