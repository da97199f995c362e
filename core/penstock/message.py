"""What a caller hands in and gets back: messages, receipts, read results and their statuses.

The statuses carry RocketMQ's names (spec sections 7.4 and 10.2).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import attrs


class PutStatus(StrEnum):
    """What became of a message that is in the log. A message that is not in it raises instead."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"


class Durability(StrEnum):
    """What is known of a message's bytes when its receipt is made."""

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


class Receipt(NamedTuple):
    """The answer to a put: where the message is, and how much is known of its durability.

    Attributes:
        status: `PUT_OK`, or `FLUSH_DISK_TIMEOUT` when it is in the log but was not synced in time.
        log_offset: byte address of the record in the commit log.
        queue: the queue's number.
        queue_offset: the message's ordinal in its queue.
        store_time_ms: Unix milliseconds, never less than that of the record before it.
        size: the record's length in bytes.
        durability: accepted, on disk, or unknown; a time-out never says ok.
        store_host: address and port as the record holds them, for `message_id`.
    """

    status: PutStatus
    log_offset: int
    queue: int
    queue_offset: int
    store_time_ms: int
    size: int
    durability: Durability
    store_host: bytes

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id: upper-case hex of host, port and log offset."""
        return (self.store_host + self.log_offset.to_bytes(8, "big")).hex().upper()

    @property
    def is_durable(self) -> bool:
        """True only when the message is known to be on disk."""
        return self.durability is Durability.ON_DISK


# What a NamedTuple's own constructor does, in half the time.
new_receipt: Callable[[type[Receipt], tuple[Any, ...]], Receipt] = tuple.__new__


def _key_tuple(keys: Sequence[str]) -> tuple[str, ...] | str:
    # One string is kept as it is, so that the encoder can refuse it by name.
    return keys if isinstance(keys, str) else tuple(keys)


@attrs.define(slots=True, init=True)
class Message:
    """A message to be stored.

    Attributes:
        topic: 1 to 127 UTF-8 bytes (up to 255 with long topics), no `/`, no control characters.
        body: any bytes, up to `log.body_bytes_max` (4 MiB).
        queue: which queue of the topic, from 0.
        tag: one word to filter by; empty for none.
        keys: texts to find the message by. The format separates keys by a space: one that has spaces
            is stored as several words and found as a phrase.
        properties: further text pairs; values must not be empty.
        flag: 32 bits for the caller, kept as they are.
        delay_level: 0; others are refused until delayed delivery exists.
        born_time_ms: when the message came to be; the time of the put if None.
        born_host: "address:port" of the producer; the store's own if None.
        wait: False returns at once under a flush policy that would wait.
        sys_flag: RocketMQ's SYSFLAG bits; address bits are set by the store.
        reconsume_times: how often it was delivered before, for copies.
        prepared_offset: log offset of the half message, for copies of transactions.
    """

    topic: str
    body: bytes
    queue: int = attrs.field(default=0, kw_only=True)
    tag: str = attrs.field(default="", kw_only=True)
    keys: Sequence[str] = attrs.field(default=(), kw_only=True, converter=_key_tuple)
    properties: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    flag: int = attrs.field(default=0, kw_only=True)
    delay_level: int = attrs.field(default=0, kw_only=True)
    born_time_ms: int | None = attrs.field(default=None, kw_only=True)
    born_host: str | None = attrs.field(default=None, kw_only=True)
    wait: bool = attrs.field(default=True, kw_only=True)
    sys_flag: int = attrs.field(default=0, kw_only=True)
    reconsume_times: int = attrs.field(default=0, kw_only=True)
    prepared_offset: int = attrs.field(default=0, kw_only=True)
