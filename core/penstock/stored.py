"""A message as it was read back, and the answer of a read."""

from typing import NamedTuple

from penstock._kernel import StoredMessage
from penstock.message import ReadStatus

__all__ = ["ReadResult", "StoredMessage"]


class ReadResult(NamedTuple):
    """The answer of `read`: RocketMQ's status, the messages, and where to go on.

    `next_offset` is the queue offset to read next; `min_offset` and `max_offset` (exclusive) bound
    what the queue holds.
    """

    status: ReadStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
