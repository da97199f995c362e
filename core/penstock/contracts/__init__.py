"""The contracts for plugin authors: abstract classes to implement, and the plain data that they receive.

In reading order: `base` (every strategy), `flush_policy`, `segment_writer`, `dispatcher`, `retention_policy`, `extension`; then the data:
`open_store`, `consumer`, `transaction`, `prepared`, `topic_config`, `delayed`, `dispatch_batch`, `index_entries`, `deliveries`, `geometry`,
`history`, `foreign`, `findings`.

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

from penstock.contracts.base import (
    CONTRACT_VERSION,
    MS_MAX,
    Context,
    NoOptions,
    SpawnWorker,
    Stoppable,
    Strategy,
    WorkWakes,
    limits,
)
from penstock.contracts.consumer import (
    ConsumedMessage,
    Consumer,
    ConsumerOptions,
    GroupLag,
    Pending,
)
from penstock.contracts.delayed import DelayedMessage
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.dispatcher import (
    Dispatcher,
    EntryChunk,
    KeyIndex,
    LogView,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    QueueReader,
    Trust,
)
from penstock.contracts.extension import Extension, SummaryLine
from penstock.contracts.findings import COPYING, Checker, Finding
from penstock.contracts.flush_policy import Flusher, FlushPolicy
from penstock.contracts.foreign import TAG_KEYS, Foreign, batch_topics, is_database, is_light
from penstock.contracts.geometry import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    QUEUE_ENTRY_SIZE,
    Geometry,
)
from penstock.contracts.history import NO_HISTORY, History
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
from penstock.contracts.open_store import MessageBatch, MessageWaiter, OpenStore
from penstock.contracts.prepared import CheckBack, CheckBacks, Prepared
from penstock.contracts.retention_policy import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.contracts.segment_writer import (
    Allocator,
    Committer,
    GatherBuffer,
    SegmentChannel,
    SegmentWriter,
    store_records,
)
from penstock.contracts.topic_config import TopicConfig
from penstock.contracts.transaction import PutOptions, Transaction
from penstock.format.names import SIDE_FOLDER, segment_name

__all__ = [
    "CONTRACT_VERSION",
    "COPYING",
    "INDEX_ENTRY_SIZE",
    "INDEX_HEADER_SIZE",
    "INDEX_SLOT_SIZE",
    "MS_MAX",
    "NO_HISTORY",
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
    "Extension",
    "Finding",
    "FlushPolicy",
    "Flusher",
    "Foreign",
    "GatherBuffer",
    "Geometry",
    "GroupLag",
    "History",
    "KeyIndex",
    "LogView",
    "MessageBatch",
    "MessageWaiter",
    "NoOptions",
    "OpenStore",
    "Pending",
    "Prepared",
    "PutOptions",
    "QueueBounds",
    "QueueEntries",
    "QueueIndex",
    "QueueReader",
    "RetentionPolicy",
    "SegmentChannel",
    "SegmentInfo",
    "SegmentWriter",
    "SpawnWorker",
    "Stoppable",
    "Strategy",
    "SummaryLine",
    "TopicConfig",
    "Transaction",
    "Trust",
    "Vote",
    "WorkWakes",
    "batch_topics",
    "entry_runs",
    "find_in_index_file",
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
]
