"""An embedded store for streams of messages, in the bytes of Apache RocketMQ's message store.

>>> import penstock
>>> with penstock.open("data") as store:
...     receipt = store.put("orders", b"...", tag="created", keys=["A-17"])
"""

import sys
from importlib import import_module, util
from typing import TYPE_CHECKING

# First, because most of the following imports the compiled kernel.
from penstock import kernel

if not kernel.is_rescue():
    kernel.load()

if TYPE_CHECKING:
    from penstock.contracts import (
        Allocator,
        Dispatcher,
        FlushPolicy,
        KeyIndex,
        QueueBounds,
        QueueIndex,
        Replicator,
        RetentionPolicy,
        SegmentWriter,
    )
    from penstock.errors import *
    from penstock.message import (
        Durability,
        Message,
        PutStatus,
        ReadResult,
        ReadStatus,
        Receipt,
        StoredMessage,
        StoreStats,
    )
    from penstock.plugins.hookspecs import hookimpl
    from penstock.read.spans import Lost, QueueSpan
    from penstock.recovery.log_end import RecoveryReport
    from penstock.store.following import FollowedStore, open_follower, promote
    from penstock.store.lowlevel import LowLevelStore
    from penstock.store.open import open_several
    from penstock.store.open import open_store as open  # noqa: A004 - the public face: penstock.open
    from penstock.store.store import Store
    from penstock_tools.repairs.repair import RepairReport, RepairStep, repair

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "AlreadyAnsweredError",
    "ArgumentError",
    "ArgumentTypeError",
    "BusyError",
    "CommitError",
    "ConfigError",
    "ConflictError",
    "ConsumerClosedError",
    "CorruptionError",
    "DiskFullError",
    "Dispatcher",
    "DispatcherFailedError",
    "DivergedError",
    "DuplicateStrategyError",
    "Durability",
    "FlushPolicy",
    "FollowedStore",
    "FollowerError",
    "ForeignContentError",
    "ForkedStoreError",
    "FormatVersionError",
    "GeometryError",
    "ImportFileError",
    "KeyIndex",
    "LongTopicError",
    "Lost",
    "LostQueueError",
    "LowLevelStore",
    "Message",
    "MessageError",
    "MessageTooLargeError",
    "MissingExtraError",
    "NoRecordError",
    "NotAStoreError",
    "OffsetError",
    "OutcomeUnknownError",
    "PenstockError",
    "PluginError",
    "PluginLoadError",
    "PreparedFinishedError",
    "PropertyError",
    "PutStatus",
    "QueueBounds",
    "QueueError",
    "QueueHeldError",
    "QueueIndex",
    "QueueSpan",
    "ReadOnlyError",
    "ReadResult",
    "ReadStatus",
    "Receipt",
    "RecoveryReport",
    "RepairReport",
    "RepairStep",
    "ReplicationError",
    "Replicator",
    "RetentionPolicy",
    "SegmentWriter",
    "StorageError",
    "Store",
    "StoreClosedError",
    "StoreFailedError",
    "StoreLockedError",
    "StoreStats",
    "StoredMessage",
    "StrayFileError",
    "SystemLimitError",
    "TopicError",
    "TopicExistsError",
    "TopicPermissionError",
    "TopicQueueError",
    "TransactionEndedError",
    "UnknownStrategyError",
    "UnknownTopicError",
    "UnreadableError",
    "__version__",
    "hookimpl",
    "open",
    "open_follower",
    "open_several",
    "promote",
    "repair",
]

# The modules of the public names, besides `errors`. Each is imported on first access: most programs need few.
_NAMES = {
    "penstock.contracts": (
        "Allocator",
        "Dispatcher",
        "FlushPolicy",
        "KeyIndex",
        "QueueBounds",
        "QueueIndex",
        "Replicator",
        "RetentionPolicy",
        "SegmentWriter",
    ),
    "penstock.plugins.hookspecs": ("hookimpl",),
    "penstock.message": (
        "Durability",
        "Message",
        "PutStatus",
        "ReadResult",
        "ReadStatus",
        "Receipt",
        "StoredMessage",
        "StoreStats",
    ),
    "penstock.recovery.log_end": ("RecoveryReport",),
    "penstock_tools.repairs.repair": (
        "RepairReport",
        "RepairStep",
        "repair",
    ),
    "penstock.store.open": ("open", "open_several"),
    "penstock.read.spans": (
        "Lost",
        "QueueSpan",
    ),
    "penstock.store.following": ("FollowedStore", "open_follower", "promote"),
    "penstock.store.lowlevel": ("LowLevelStore",),
    "penstock.store.store": ("Store",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Return a public name, or a module of the package, imported now."""
    is_error = name in __all__ and name.endswith("Error")
    home = "penstock.errors" if is_error else _HOMES.get(name)
    if home is not None:
        value = globals()[name] = getattr(
            import_module(home), "open_store" if name == "open" else name
        )
        return value
    if not name.startswith("_") and util.find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    # With the name and the module, Python suggests the nearest name.
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted(__all__)
