"""The contracts for plugin authors: abstract classes to implement, and the plain data that they receive.

In reading order: `base` (every strategy), `strategies` (flush policies, segment writers, allocators, retention
policies), `dispatcher`, `extension`, `replicator`; then what they use: `messaging`, `index_entries`, `deliveries`,
`foreign`.

The configuration selects a strategy by name. Its class has a `name`, an `Options` class (frozen attrs,
filled from the strategy's own table of the configuration) and `capabilities`. The kernel creates one
instance a store, and passes files, clock and everything else that the strategy may use.

A complete third-party flush policy::

    import attrs
    from penstock import FlushPolicy, hookimpl

    @attrs.frozen(kw_only=True)
    class EveryOptions:
        bytes: int = 1_000_000

    class EveryFlush(FlushPolicy):
        "Flushes whenever that many bytes are not durable yet."
        name = "every"
        Options = EveryOptions

        def after_append(self, end_offset: int) -> None:
            if end_offset - self.flusher.flushed_offset >= self.options.bytes:
                self.flusher.flush()

    @hookimpl
    def penstock_register_flush():
        return [EveryFlush]
"""

# Parts of the compiled kernel: for writers, a buffer that takes a record in one call, and a copy of records that writes
# each size last; for replicators, frames of bytes with their checksums.
from penstock._kernel import GatherBuffer, frame, frame_end, store_records, whole_end
from penstock.contracts.base import (
    CONTRACT_VERSION,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    MS_MAX,
    NO_HISTORY,
    QUEUE_ENTRY_SIZE,
    Context,
    Geometry,
    History,
    NoOptions,
    SpawnWorker,
    Stoppable,
    Strategy,
    WorkWakes,
    limits,
)
from penstock.contracts.dispatcher import (
    COPYING,
    Checker,
    DispatchBatch,
    Dispatcher,
    EntryChunk,
    Finding,
    KeyIndex,
    LogView,
    QueueBounds,
    QueueEnd,
    QueueEntries,
    QueueIndex,
    QueueReader,
    Trust,
)
from penstock.contracts.extension import (
    Extension,
    MessageBatch,
    MessageWaiter,
    OpenStore,
    SummaryLine,
)
from penstock.contracts.foreign import TAG_KEYS, Foreign, batch_topics, is_database, is_light
from penstock.contracts.index_entries import (
    EntryRun,
    EntryRuns,
    entry_runs,
    find_in_index_file,
    index_file_add,
    index_file_links,
    key_hash,
    queue_entries,
    split_entries,
)
from penstock.contracts.messaging import (
    CheckBack,
    CheckBacks,
    ConsumedMessage,
    Consumer,
    ConsumerOptions,
    DelayedMessage,
    GroupLag,
    Pending,
    Prepared,
    PutOptions,
    TopicConfig,
    TopicOptions,
    Transaction,
)
from penstock.contracts.replicator import (
    NO_REPLICATOR,
    Epoch,
    FollowBegin,
    LogBell,
    Replica,
    ReplicatedLog,
    Replicator,
)
from penstock.contracts.strategies import (
    Allocator,
    Committer,
    DiskUse,
    Flusher,
    FlushPolicy,
    RetentionPolicy,
    SegmentChannel,
    SegmentInfo,
    SegmentWriter,
    Vote,
)
from penstock.format.names import SIDE_FOLDER, segment_name
from penstock.message import synced

__all__ = [
    "CONTRACT_VERSION",
    "COPYING",
    "INDEX_ENTRY_SIZE",
    "INDEX_HEADER_SIZE",
    "INDEX_SLOT_SIZE",
    "MS_MAX",
    "NO_HISTORY",
    "NO_REPLICATOR",
    "QUEUE_ENTRY_SIZE",
    "SIDE_FOLDER",
    "TAG_KEYS",
    "Allocator",
    "CheckBack",
    "CheckBacks",
    "Checker",
    "Committer",
    "ConsumedMessage",
    "Consumer",
    "ConsumerOptions",
    "Context",
    "DelayedMessage",
    "DiskUse",
    "DispatchBatch",
    "Dispatcher",
    "EntryChunk",
    "EntryRun",
    "EntryRuns",
    "Epoch",
    "Extension",
    "Finding",
    "FlushPolicy",
    "Flusher",
    "FollowBegin",
    "Foreign",
    "GatherBuffer",
    "Geometry",
    "GroupLag",
    "History",
    "KeyIndex",
    "LogBell",
    "LogView",
    "MessageBatch",
    "MessageWaiter",
    "NoOptions",
    "OpenStore",
    "Pending",
    "Prepared",
    "PutOptions",
    "QueueBounds",
    "QueueEnd",
    "QueueEntries",
    "QueueIndex",
    "QueueReader",
    "Replica",
    "ReplicatedLog",
    "Replicator",
    "RetentionPolicy",
    "SegmentChannel",
    "SegmentInfo",
    "SegmentWriter",
    "SpawnWorker",
    "Stoppable",
    "Strategy",
    "SummaryLine",
    "TopicConfig",
    "TopicOptions",
    "Transaction",
    "Trust",
    "Vote",
    "WorkWakes",
    "batch_topics",
    "entry_runs",
    "find_in_index_file",
    "frame",
    "frame_end",
    "index_file_add",
    "index_file_links",
    "is_database",
    "is_light",
    "key_hash",
    "limits",
    "queue_entries",
    "segment_name",
    "split_entries",
    "store_records",
    "synced",
    "whole_end",
]
