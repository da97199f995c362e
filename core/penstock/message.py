"""The values that callers pass and receive: messages, receipts, read results and their statuses.

The statuses carry RocketMQ's names (spec sections 7.4 and 10.2).
"""

from enum import StrEnum
from typing import NamedTuple

from penstock._kernel import Message, Receipt, StoredMessage

__all__ = [
    "Durability",
    "Message",
    "PutStatus",
    "ReadResult",
    "ReadStatus",
    "Receipt",
    "StoredMessage",
]


class PutStatus(StrEnum):
    """The outcome of a put whose message is in the log. A put that stores nothing raises instead."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"


class Durability(StrEnum):
    """The durability of a message when its receipt is created."""

    ACCEPTED = "accepted"
    ON_DISK = "on disk"
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

    `next_offset` is the queue offset to read next. The queue holds the offsets from `min_offset` to
    `max_offset` (exclusive).
    """

    status: ReadStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
