"""A message that waits for its time, as programs see it; an extension that provides "delayed" knows them."""

from typing import NamedTuple


class DelayedMessage(NamedTuple):
    """A message that waits to be delivered at a time.

    Attributes:
        message_id: names it for `Store.cancel_delayed`.
        topic: the topic to which it will be delivered.
        queue: the queue of that topic.
        due_ms: when, Unix milliseconds.
        born_time_ms: when it was created.
        body_bytes: the size of its body.
    """

    message_id: str
    topic: str
    queue: int
    due_ms: int
    born_time_ms: int
    body_bytes: int
