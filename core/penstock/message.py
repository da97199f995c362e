"""The values that callers pass and receive: messages, receipts, read results and their statuses.

The statuses carry RocketMQ's names (spec sections 7.4 and 10.2).
"""

from enum import StrEnum
from typing import Any, NamedTuple, NotRequired, TypedDict

from penstock._kernel import Message, Receipt, StoredMessage

__all__ = [
    "Durability",
    "Message",
    "PutStatus",
    "ReadResult",
    "ReadStatus",
    "Receipt",
    "StoreStats",
    "StoredMessage",
]


class PutStatus(StrEnum):
    """The outcome of a put whose message is in the log. A put that stores nothing raises instead."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class Durability(StrEnum):
    """The durability of a message when its receipt is created: on this disk ("here"), and in copies ("there")."""

    ACCEPTED = "accepted"
    ON_DISK = "on disk"
    ON_DISK_HERE_AND_THERE = "on disk here and there"
    ON_DISK_HERE_RECEIVED_THERE = "on disk here, received there"
    ON_DISK_THERE = "on disk there"
    RECEIVED_THERE = "received there"
    UNKNOWN = "unknown"


class ReadStatus(StrEnum):
    """The answer of a read (RocketMQ's `GetMessageStatus`)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class ReadResult(NamedTuple):
    """The answer of `read`: RocketMQ's status, the messages, and the queue offset to read next.

    A loop that reads a queue to its end passes `next_offset` as the next `offset` until `at_end`.

    Attributes:
        status: RocketMQ's status.
        messages: the messages, in the order of the queue; possibly none.
        next_offset: the queue offset to read next.
        min_offset: the first queue offset that the queue holds.
        max_offset: the queue offset after the last message.
    """

    status: ReadStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int

    @property
    def at_end(self) -> bool:
        """Whether the queue had no message from `next_offset` on: reading on finds nothing until the next put."""
        return self.next_offset >= self.max_offset

    @property
    def out_of_range(self) -> bool:
        """Whether the requested offset was before the first message or after the end; `next_offset` is in range.

        The statuses OFFSET_TOO_SMALL (retention has deleted the messages there) and OFFSET_OVERFLOW_BADLY. The end
        itself, where the next message will be, is in range.
        """
        return self.status in _OUT_OF_RANGE


_OUT_OF_RANGE = frozenset({ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY})


class NotUnderstood(TypedDict):
    """One kind of a broker's files that Penstock does not understand.

    Attributes:
        kind: its name in docs/broker-directories.md.
        text: what was found.
        stops_writing: whether the store cannot be opened for writing because of it.
    """

    kind: str
    text: str
    stops_writing: bool


class StoreStats(TypedDict):
    """The figures that `Store.stats` returns: a plain dictionary with these keys.

    The keys from `flushed_offset` on exist only if the store is open for writing.

    Attributes:
        path: the store's folder.
        read_only: whether the store was opened read-only.
        log_min_offset: the first log offset that the log still has.
        log_end_offset: the log offset after the last record; None if the queues cannot be understood.
        dispatched_offset: the log offset below which queues have all records; None as above.
        segments: number of commit-log files.
        log_bytes: total size of these files in bytes, written or not.
        queues: number of queues; None as above.
        damaged_reads: how many corrupt records reads have skipped since the store was opened.
        offsets_set_aside: one sentence for each committed offset that is not used.
        not_understood: a broker's files that Penstock does not understand.
        flushed_offset: the log offset up to which the log is durable.
        flushes: number of flushes.
        failure: why the store takes no more writes; None if it does.
        append_lock: how often appends waited for the append lock.
        strategies: for `write`, `alloc` and `flush` the strategy's `name` and its own figures.
        dispatchers: by name the `progress` as a log offset, the `error` or None, and its own figures.
        extensions: by name the figures of each extension; docs/delays.md describes some.
        replica: what the replicator says of the copies; None without one.
        upkeep: figures of sealing and scrubbing.
    """

    # `| Any` stands for `| None`: typed code need not check for these rare cases.
    path: str
    read_only: bool
    log_min_offset: int
    log_end_offset: int | Any
    dispatched_offset: int | Any
    segments: int
    log_bytes: int
    queues: int | Any
    damaged_reads: int
    offsets_set_aside: list[str]
    not_understood: list[NotUnderstood]
    flushed_offset: NotRequired[int]
    flushes: NotRequired[int]
    failure: NotRequired[str | Any]
    append_lock: NotRequired[dict[str, int]]
    strategies: NotRequired[dict[str, dict[str, Any]]]
    dispatchers: NotRequired[dict[str, dict[str, Any]]]
    extensions: NotRequired[dict[str, dict[str, Any]]]
    replica: NotRequired[dict[str, Any] | None]
    upkeep: NotRequired[dict[str, Any]]


def synced(receipt: Receipt) -> Receipt:
    """Return a receipt after a flush: the message is on disk; what it says of copies stays."""
    if receipt.durability not in (Durability.ACCEPTED, Durability.UNKNOWN):
        return receipt
    status = receipt.status
    if status is PutStatus.FLUSH_DISK_TIMEOUT:
        status = PutStatus.PUT_OK
    return receipt._replace(status=status, durability=Durability.ON_DISK)
