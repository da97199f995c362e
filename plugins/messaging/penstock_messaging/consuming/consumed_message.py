"""A message that a consumer has delivered."""

from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock import StoredMessage
from penstock.contracts import ConsumedMessage
from penstock.contracts.deliveries import Delivery
from penstock_messaging.properties_text import REASON

if TYPE_CHECKING:
    from penstock_messaging.consuming.in_flight import QueueFlight

# The states of a delivery. OVER: it was redelivered, or will be, as another object; or its queue is gone. BOUND: it was
# delivered, and its acknowledgement is part of a transaction that has not ended. LATE: it is over because its time was:
# an answer to it still counts as long as nobody else has the message.
READY, OUT, DONE, OVER, BOUND, LATE, NACKED = range(7)
ANSWERED = DONE, NACKED

RETRY_TOPIC, ORIGIN_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"


class HandedMessage(Delivery):
    """One delivery of a message (`contracts.ConsumedMessage`). Safe from any thread.

    A retried message has the topic and the id that it had at first; `stored` is the copy in the retry topic.
    """

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:
        # `by`: the iteration that delivered it; None for `poll`.
        flight: QueueFlight

    queue = property(attrgetter("stored.queue"), doc="The number of the queue it was read from.")
    queue_offset = property(attrgetter("stored.queue_offset"), doc="Its offset in that queue.")
    tag = property(attrgetter("stored.tag"), doc="The tag.")
    keys = property(attrgetter("stored.keys"), doc="The keys.")

    @property
    def message_id(self) -> str:
        """The id of the message when it was first stored."""
        stored = self.stored
        if stored.reconsume_times:
            return stored.all_properties.get(ORIGIN_ID) or stored.message_id
        return stored.message_id

    @property
    def reason(self) -> str:
        """The reason of the last nack; "" at the first delivery, and if none was given."""
        return (
            self.stored.all_properties.get(REASON.decode(), "")
            if self.stored.reconsume_times
            else ""
        )

    def __getattr__(self, name: str) -> Any:
        # Only for names that this class does not have.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stored, name)

    def __dir__(self) -> list[str]:
        """Return the names for programs: those of `contracts.ConsumedMessage`, and of the stored message."""
        return sorted({*dir(ConsumedMessage), *ConsumedMessage.__annotations__, *dir(self.stored)})

    def __repr__(self) -> str:
        return f"<attempt {self.attempt}, first topic {self.topic!r}: {self.stored!r}>"

    def ack(self, *, sync: bool = True) -> None:
        """Acknowledge this message; see `Consumer.ack`."""
        self.flight.consumer.ack(self, sync=sync)

    def nack(
        self, *, delay: float | timedelta | None = None, reason: str | BaseException | None = None
    ) -> None:
        """Nack this message, so that it is retried; see `Consumer.nack`."""
        self.flight.consumer.nack(self, delay=delay, reason=reason)

    def release(self) -> None:
        """Give this message back unanswered; see `Consumer.release`."""
        self.flight.consumer.release(self)

    def extend(self) -> None:
        """Restart `ack_wait` for this message."""
        self.flight.consumer.extend(self)

    def again(self, attempt: int | None = None) -> "HandedMessage":
        """Return the next delivery of the same message."""
        attempt = self.attempt if attempt is None else attempt
        return HandedMessage(self.stored, self.topic, attempt, self.flight, self.offset)


def shown_topic(stored: StoredMessage, read_from: str) -> str:
    """Return the topic that a message was first put to; `read_from` is the topic of the queue it was read from."""
    if not stored.reconsume_times:
        return read_from
    return stored.all_properties.get(RETRY_TOPIC) or read_from
