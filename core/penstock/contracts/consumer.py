"""Consumers as programs see them; an extension that provides "consumer" implements them."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypedDict

from penstock.message import StoredMessage


class ConsumerOptions(TypedDict, total=False):
    """The optional arguments of `Store.consumer`.

    Attributes:
        tag: which messages: `*`, one tag, or multiple tags joined by `||`; default `*`.
        start: where a group begins that has never consumed the topic: "earliest" (default), "latest", or a time: Unix
            milliseconds, or a `datetime` with a time zone.
        ack_wait: seconds after which a message that was neither acknowledged nor refused is handed out again; default 30.
        max_in_flight: maximum number of messages that are handed out and not answered; default 1000.
        workers: how many threads `run` uses; default 1.
        ordered: hand out one message of a queue at a time, in order: the next one waits for the answer; default False.
        broadcast: every consumer gets all messages, and nothing is acknowledged or retried; default False.
        max_retries: how often a message is retried before it becomes a dead letter; default the group's setting, 16.
    """

    tag: str
    start: str | float | datetime
    ack_wait: float
    max_in_flight: int
    workers: int
    ordered: bool
    broadcast: bool
    max_retries: int


class Pending(NamedTuple):
    """A message that is handed out and not answered.

    Attributes:
        topic: the topic that it was read from.
        queue: the queue's number.
        offset: its queue offset.
        age_s: seconds since it was handed out.
        left_s: seconds until it is handed out again.
    """

    topic: str
    queue: int
    offset: int
    age_s: float
    left_s: float


class ConsumedMessage(Protocol):
    """A message that a consumer has handed out; it has all attributes of `StoredMessage`, and methods to answer it.

    Attributes:
        stored: the message as it is stored.
        attempt: how often the message has been handed out to be processed, this time included: 1 at first.
    """

    stored: StoredMessage
    attempt: int

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stored message."""

    def ack(self, *, sync: bool = True) -> None:
        """Acknowledge this message; see `Consumer.ack`."""

    def nack(self, *, delay_level: int | None = None) -> None:
        """Refuse this message, so that it is retried; see `Consumer.nack`."""

    def extend(self) -> None:
        """Restart `ack_wait` for this message."""


class Consumer(Protocol):
    """A member of a consumer group, or a broadcast reader; returned by `Store.consumer`. Safe from any thread.

    Iterating hands out one message after another and waits for new ones without end. Use it as a context manager: an exception
    in the block refuses the message in hand (`nack`); everything else that was handed out or fetched is released, and
    another consumer gets it at once, without being counted as a retry.
    """

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """Hand out messages, waiting for new ones without end."""

    def poll(self, limit: int = 1, timeout: float | None = None) -> list[ConsumedMessage]:
        """Hand out up to `limit` messages; waits up to `timeout` seconds (None: without end) for the first one."""

    def run(self, handler: Callable[[ConsumedMessage], object]) -> None:
        """Call `handler` for each message, in `workers` threads, until `close`: acks if it returns, nacks if it raises."""

    def ack(
        self, messages: ConsumedMessage | Iterable[ConsumedMessage], *, sync: bool = True
    ) -> None:
        """Acknowledge one message or many: the group does not get them again.

        Returns when that is on disk, or with `sync=False` at once: then a crash of the machine within the next second may
        lose it, and a crash of the process does not.

        Raises `LostQueueError` for a message of a queue that this consumer has handed back: another one gets it.
        """

    def nack(
        self,
        messages: ConsumedMessage | Iterable[ConsumedMessage],
        *,
        delay_level: int | None = None,
    ) -> None:
        """Refuse messages: they are retried later, and become dead letters after `max_retries`.

        Args:
            messages: one message or many.
            delay_level: 1 to 18: when to retry (see docs/delays.md); None for 3 plus the number of retries so far.
        """

    def release(self, messages: ConsumedMessage | Iterable[ConsumedMessage]) -> None:
        """Give messages back unanswered: they are handed out again at once, without being counted as a retry."""

    def extend(self, messages: ConsumedMessage | Iterable[ConsumedMessage]) -> None:
        """Restart `ack_wait` for messages that take longer."""

    def seek(
        self,
        topic: str,
        queue: int | None = None,
        *,
        offset: int | None = None,
        time_ms: float | datetime | None = None,
    ) -> None:
        """Continue at an offset, or at a time, in one queue or in all queues of a topic that this consumer has."""

    def pause(self, *topics: str) -> None:
        """Hand out nothing more of these topics, or of all topics, until `resume`."""

    def resume(self, *topics: str) -> None:
        """Undo `pause`."""

    def lag(self) -> dict[tuple[str, int], int]:
        """Return (topic, queue) to the number of messages that the group has not acknowledged, for the queues of this consumer."""

    def assignment(self) -> list[tuple[str, int]]:
        """Return the queues that this consumer has, as (topic, queue), sorted."""

    def pending(self) -> list[Pending]:
        """Return the messages that are handed out and not answered."""

    def close(self) -> None:
        """Release everything that was not answered and leave the group; calling it again does nothing."""

    def __enter__(self) -> Self:
        """Return the consumer."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception in the block, refuse the message in hand first."""
