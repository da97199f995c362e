"""The base of every strategy, and its context from the kernel: file sizes, threads, facts about the log."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import attrs
from attrs import validators

from penstock.errors import ConfigError
from penstock.escape import shown
from penstock.files import Files
from penstock.format.arrays import Int64s, np
from penstock.runtime.clock import Clock

QUEUE_ENTRY_SIZE = 20
INDEX_HEADER_SIZE = 40
INDEX_SLOT_SIZE = 4
INDEX_ENTRY_SIZE = 20
# A page must not span two segments: maps, erasing and syncs rely on that.
SEGMENT_UNIT = 4096


@attrs.frozen(kw_only=True)
class Geometry:
    """File sizes of one store.

    The defaults suit embedding: files are sparse, and a store of 200 topics with a message each has an
    apparent size under 150 MB. `ROCKETMQ` has the Java defaults. The format is the same with any sizes; a Java broker
    only needs them in its configuration.

    Attributes:
        segment_bytes: size of a commit-log file, a multiple of 4096.
        queue_entries: entries of 20 bytes in one consume-queue file.
        index_slots: hash slots of one index file.
        index_entries: entries of one index file; the first is never used.
    """

    segment_bytes: int = attrs.field(default=64 << 20, validator=validators.instance_of(int))
    queue_entries: int = attrs.field(default=10_000, validator=validators.instance_of(int))
    index_slots: int = attrs.field(default=500_000, validator=validators.instance_of(int))
    index_entries: int = attrs.field(default=2_000_000, validator=validators.instance_of(int))

    def __attrs_post_init__(self) -> None:
        for name, low, high in (
            ("segment_bytes", 4096, 1 << 30),
            ("queue_entries", 1, 100_000_000),
            ("index_slots", 1, 1 << 30),
            ("index_entries", 2, 100_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {shown(value)}; it must be {low} to {high}")
        if self.segment_bytes % SEGMENT_UNIT:
            raise ConfigError(
                f"segment_bytes is {self.segment_bytes}; it must be a multiple of {SEGMENT_UNIT}"
            )

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume-queue file."""
        return self.queue_entries * QUEUE_ENTRY_SIZE

    @property
    def index_file_bytes(self) -> int:
        """Size of an index file: header, slots, entries."""
        slots = self.index_slots * INDEX_SLOT_SIZE
        return INDEX_HEADER_SIZE + slots + self.index_entries * INDEX_ENTRY_SIZE


ROCKETMQ = Geometry(
    segment_bytes=1 << 30, queue_entries=300_000, index_slots=5_000_000, index_entries=20_000_000
)


class History:
    """Facts about a log beyond its records: topics removed, or perhaps deleted by a broker, and who wrote which range.

    This class itself knows nothing: no topic counts as deleted.

    Attributes:
        removed: removed topics, each with the log offset before which its records need no queue entry.
    """

    removed: Mapping[str, int] = MappingProxyType({})

    def is_unlisted(self, topic: str) -> bool:
        """Return whether the broker's list of topics exists and lacks this topic, which it should have."""
        return False

    def are_ours(self, log_offsets: Int64s) -> Any:
        """Return, as an array of bool, which records Penstock wrote, or may have written."""
        return np.ones(len(log_offsets), np.bool_)

    def may_have_ours(self, first: int, last: int) -> bool:
        """Return whether Penstock wrote, or may have written, a record from log offset `first` to `last` inclusive."""
        return True

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock certainly wrote everything from log offset `first` to `last`."""
        return False


NO_HISTORY = History()


# The maximum of an option in milliseconds: a year. Python's and the system's waits have limits of that order.
MS_MAX = 365 * 24 * 3_600_000

# Incremented when a contract changes so that a strategy written for the older version may fail.
CONTRACT_VERSION = 1


@attrs.frozen
class NoOptions:
    """Options of a strategy that has none."""


def limits(low: float, high: float) -> Callable[[object, "attrs.Attribute[Any]", Any], None]:
    """Return a validator for `attrs.field` that refuses a number outside of `low` to `high`; None is accepted.

    >>> interval_ms: int = attrs.field(default=500, validator=limits(1, MS_MAX))
    """

    def check(_instance: object, field: "attrs.Attribute[Any]", value: Any) -> None:
        if value is not None and not low <= value <= high:
            raise ValueError(f"{field.name} is {shown(value)}; it must be {low} to {high}")

    return check


class Stoppable(Protocol):
    """A thread that the kernel started for a strategy."""

    def wake(self) -> None:
        """Run the step now."""

    def stop(self) -> None:
        """End the thread and wait for its last step."""


class WorkWakes(Protocol):
    """Wakes background work of extensions in the process that has the store open for writing, from any process.

    All extensions share one wake word, so a wake may be about the work of another one. `wake` is safe from any thread.
    """

    def ask(self) -> bool:
        """Call before a look for work, so that a later `wake` ends `rest`. Return False if wakes do not arrive."""

    def go_on(self) -> None:
        """Call after a look that found work: wakes of other processes do not end the next pause."""

    def rest(self, at_most_s: float | None = None) -> bool:
        """Return after a `wake` since `ask` or `at_most_s` seconds; return False at once if wakes do not arrive."""

    def wake(self, *, always: bool = False) -> None:
        """Call after work was made: one system call if it is awaited. With `always`, also if it is not."""


class SpawnWorker(Protocol):
    """Starts a background thread; in tests, the returned object may run its step only when the test requests it."""

    def __call__(
        self, name: str, step: Callable[[], float | None], wakes: WorkWakes | None = None
    ) -> Stoppable:
        """Call `step` now, and repeatedly after as many seconds as it returns; None waits for `wake`.

        With `wakes`, other processes end the pause as well, after a `step` that has called
        `wakes.ask()`.
        """


@attrs.frozen(kw_only=True)
class Context:
    """The services that the kernel provides to every strategy.

    Attributes:
        root: the store's folder.
        files: the file system; a strategy must access the disk only through it.
        clock: the clock; a strategy must read the time only from it.
        geometry: the store's file sizes.
        spawn: starts a background worker.
        read_only: the strategy must not change anything on disk, and another process may be writing.
        log_min_offset: returns the log offset of the first byte that the commit log still has.
        appenders_wait: puts return only when their bytes are durable (`FlushPolicy.waits`).
        read_history: reads from the store's folder the current facts about the log beyond its records.
        removed_before: returns the log offset before which a topic's records are removed, as the store's folder says
            now; 0 if it never was removed. With `read_only`, a queue whose entries begin with a removed record must not
            be found: the process that writes is about to remove its files.
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
    removed_before: Callable[[str], int] = lambda _topic: 0


class Strategy(ABC):
    """Base of every contract.

    Attributes:
        name: its name in the configuration, in kebab-case.
        Options: a frozen attrs class, filled from the strategy's own table of the configuration.
        capabilities: optional features of its contract that it implements, as listed in the contract's
            docstring. The contract suites test them, and `penstock plugins` shows them.
        needs_contract: the `CONTRACT_VERSION` it was written for; a plugin whose version is later than
            this Penstock's is set aside as incompatible.
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
        """Return why this strategy cannot be combined with the other configured ones; None if it can.

        Args:
            picks: the configured names by section, such as `{"flush": ["sync"], ...}`.
        """
        return None

    def stats(self) -> dict[str, int]:
        """Return figures for `Store.stats()`."""
        return {}
