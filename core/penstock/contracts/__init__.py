"""What each kind of strategy must do.

A strategy is picked by name in the configuration. Its class has a `name`, an `Options` class (frozen
attrs, filled from the strategy's own table of the configuration) and `capabilities`; the kernel makes
one instance a store and passes in files, clock and whatever else it may touch.

A whole third-party flush policy::

    import attrs
    from penstock import FlushPolicy, hookimpl

    @attrs.frozen(kw_only=True)
    class EveryOptions:
        bytes: int = 1_000_000

    class EveryFlush(FlushPolicy):
        "Flushes whenever so many bytes wait."
        name = "every"
        Options = EveryOptions

        def after_append(self, end_offset: int) -> None:
            if end_offset - self.flusher.flushed_offset >= self.options.bytes:
                self.flusher.flush()

    @hookimpl
    def penstock_register_flush():
        return [EveryFlush]
"""

from penstock.contracts.base import (
    CONTRACT_VERSION,
    Context,
    NoOptions,
    SpawnWorker,
    Stoppable,
    Strategy,
)
from penstock.contracts.dispatching import (
    Dispatcher,
    EntryChunk,
    KeyIndex,
    LogView,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    Trust,
)
from penstock.contracts.flushing import (
    Flusher,
    FlushPolicy,
)
from penstock.contracts.history import NO_HISTORY, History
from penstock.contracts.retaining import (
    DiskUse,
    RetentionPolicy,
    SegmentInfo,
    Vote,
)
from penstock.contracts.writing import (
    Allocator,
    Committer,
    SegmentChannel,
    SegmentWriter,
)

__all__ = [
    "CONTRACT_VERSION",
    "NO_HISTORY",
    "Allocator",
    "Committer",
    "Context",
    "DiskUse",
    "Dispatcher",
    "EntryChunk",
    "FlushPolicy",
    "Flusher",
    "History",
    "KeyIndex",
    "LogView",
    "NoOptions",
    "QueueBounds",
    "QueueEntries",
    "QueueIndex",
    "RetentionPolicy",
    "SegmentChannel",
    "SegmentInfo",
    "SegmentWriter",
    "SpawnWorker",
    "Stoppable",
    "Strategy",
    "Trust",
    "Vote",
]
