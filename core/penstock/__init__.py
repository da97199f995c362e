"""An embedded store for streams of messages, in the bytes of Apache RocketMQ's message store.

>>> import penstock
>>> with penstock.open("data") as store:
...     receipt = store.put("orders", b"...", tag="created", keys=["A-17"])
"""

# Before all else: most of what follows imports the compiled kernel, which may lie in a zip.
from penstock import kernel

kernel.load()

from penstock.contracts import (
    Allocator,
    Dispatcher,
    FlushPolicy,
    KeyIndex,
    QueueBounds,
    QueueIndex,
    RetentionPolicy,
    SegmentWriter,
)
from penstock.errors import BusyError, PenstockError
from penstock.hookspecs import hookimpl
from penstock.message import Durability, Message, PutStatus, ReadStatus, Receipt
from penstock.opening import open_store as open  # noqa: A004 - the public face: penstock.open
from penstock.recovery import RecoveryReport
from penstock.repairing import RepairReport, RepairStep, repair
from penstock.several import open_several
from penstock.spans import Lost, QueueSpan
from penstock.store import Store
from penstock.stored import ReadResult, StoredMessage

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "BusyError",
    "Dispatcher",
    "Durability",
    "FlushPolicy",
    "KeyIndex",
    "Lost",
    "Message",
    "PenstockError",
    "PutStatus",
    "QueueBounds",
    "QueueIndex",
    "QueueSpan",
    "ReadResult",
    "ReadStatus",
    "Receipt",
    "RecoveryReport",
    "RepairReport",
    "RepairStep",
    "RetentionPolicy",
    "SegmentWriter",
    "Store",
    "StoredMessage",
    "__version__",
    "hookimpl",
    "open",
    "open_several",
    "repair",
]
