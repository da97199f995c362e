"""The queues that a consumer has: taking them over, giving them back, continuing elsewhere, and how far they are."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.contracts import GroupLag, OpenStore
from penstock.errors import ArgumentError, LostQueueError, StorageError
from penstock.escape import get_logger
from penstock.format import arguments
from penstock_messaging.consuming.consumer_options import seek_time_ms
from penstock_messaging.consuming.fetching import Fetcher
from penstock_messaging.consuming.in_flight import SPAN_MAX, InFlight, QueueFlight, StartPosition
from penstock_messaging.consuming.queue_rights import QueueRight

if TYPE_CHECKING:
    from penstock_messaging.consuming.consumer import GroupConsumer

logger = get_logger(__name__)

QueueKey = tuple[str, int]


class AssignedQueues:
    """The queues of one consumer. Safe from any thread; never waits for a disk under the consumer's lock."""

    def __init__(
        self,
        consumer: "GroupConsumer",
        store: OpenStore,
        in_flight: InFlight,
        lock: AbstractContextManager[Any],
        fetcher: Fetcher,
        retry_topic: str | None,
        rouse: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._in_flight = in_flight
        self._lock = lock
        self._fetcher = fetcher
        self._retry_topic = retry_topic
        self._rouse = rouse
        self._span = max(SPAN_MAX, consumer.options.max_in_flight)
        self._flights: dict[QueueKey, QueueFlight] = {}
        self._is_closed = False
        self._trouble = ""

    # --- taken and given back

    def add(self, owned: QueueRight) -> None:
        """Begin to deliver the messages of a queue that this member took."""
        is_retry = owned.topic == self._retry_topic
        flight = QueueFlight(
            self._consumer, owned, owned.position, is_retry=is_retry, span=self._span
        )
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._put(flight)
        if is_late:
            owned.hand_back()
        else:
            self._rouse()

    def _put(self, flight: QueueFlight) -> None:
        self._flights[flight.topic, flight.queue] = flight
        self._fetcher.queues = list(self._flights.values())

    def want_back(self, owned: QueueRight) -> None:
        """Deliver nothing more of a queue, and give it back once nothing of it is out; at once if it is lost."""
        with self._lock:
            flight = self._flights.get((owned.topic, owned.queue))
            if flight is None or flight.owned is not owned:
                return
            if not flight.is_leaving:
                self._in_flight.leave(flight)
            if owned.is_lost:
                self._in_flight.drop(flight, lost=True)
        self.hand_back_leaving()

    def lose(self, flight: QueueFlight) -> None:
        """Drop a queue that was lost while this member had it; `hand_back_leaving` gives it back."""
        with self._lock:
            self._in_flight.drop(flight, lost=True)
            flight.is_leaving = True

    def hand_back_leaving(self) -> None:
        """Give back the queues that leave and have nothing out, also after a failure of the disk, which is logged."""
        with self._lock:
            going = [
                each
                for each in self._flights.values()
                if each.is_leaving and not self._in_flight.has_out(each)
            ]
            self._forget(going)
        for error in self._give_back(going):
            logger.warning(
                "group %s: the last answers of a queue could not be made durable before it was given back: %s; a crash "
                "of the machine may bring their messages again", self._consumer.group, error,
            )  # fmt: skip

    def _forget(self, going: list[QueueFlight]) -> None:
        for flight in going:
            if not flight.is_over:
                self._in_flight.drop(flight, lost=True)
            del self._flights[flight.topic, flight.queue]
        if going:
            self._fetcher.queues = list(self._flights.values())

    def _give_back(self, going: list[QueueFlight]) -> list[Exception]:
        """Give queues back, all of them; return what has failed."""
        failures: list[Exception] = []
        for flight in going:
            try:
                _record_base(flight)
            except LostQueueError:
                pass
            except (OSError, StorageError) as error:
                failures.append(error)
            try:
                flight.owned.hand_back()
            except (OSError, StorageError) as error:
                failures.append(error)
        return failures

    def close(self) -> None:
        """Give all queues back; what is out is released, and can no longer be answered.

        Raises the first failure, after all queues were given back.
        """
        with self._lock:
            self._is_closed = True
            going = list(self._flights.values())
            self._forget(going)
        failures = self._give_back(going)
        if failures:
            raise failures[0]

    def free(self) -> None:
        """Record that nothing is delivered any more, at the end of the process."""
        for flight in list(self._flights.values()):
            flight.owned.free((), 0)

    def leave(self) -> None:
        """Drop all queues, in a forked child: they are the parent's."""
        for flight in self._flights.values():
            self._in_flight.drop(flight, lost=True)
        self._flights, self._fetcher.queues, self._is_closed = {}, (), True

    # --- progress

    def record(self) -> None:
        """Record progress that no acknowledgement has recorded, and sync acknowledgements that nobody has waited for.

        A disk that is full, or fails, is logged. A queue whose journal can take nothing more is lost, and taken anew.
        """
        unsynced = []
        with self._lock:
            flights = list(self._flights.values())
            for flight in flights:
                with self._noted(flight):
                    _record_base(flight)
                if flight.is_unsynced:
                    flight.is_unsynced = False
                    unsynced.append((flight, flight.ticket))
        for flight, ticket in unsynced:
            with self._noted(flight):
                flight.owned.sync(ticket)

    @contextmanager
    def _noted(self, flight: QueueFlight) -> Iterator[None]:
        """Lose a queue that its owner has lost, and log another failure of it once."""
        try:
            yield
        except LostQueueError:
            self.lose(flight)
        except (OSError, StorageError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning(
                    "group %s: how far queue %s/%d is consumed cannot be recorded now: %s; this is tried again",
                    self._consumer.group, flight.topic, flight.queue, error,
                )  # fmt: skip

    def has_limit(self) -> bool:
        """Return whether an answer may make room for another message; the caller has the lock."""
        return any(each.room <= 0 for each in self._flights.values())

    def assignment(self) -> list[QueueKey]:
        """Return the queues, sorted."""
        with self._lock:
            return sorted(self._flights)

    def lag(self) -> list[GroupLag]:
        """Return how far the group is in each queue."""
        ends = {key: self._store.max_offset(*key) for key in self.assignment()}
        with self._lock:
            return [
                GroupLag(
                    self._consumer.group, *key, flight.base,
                    len(flight.open) + max(ends[key] - flight.fetched - flight.done_ahead, 0),
                )
                for key, flight in sorted(self._flights.items())
                if key in ends
            ]  # fmt: skip

    # --- elsewhere

    def seek(
        self,
        topic: str,
        queue: int | None,
        offset: int | None,
        time: float | datetime | timedelta | None,
    ) -> None:
        """Continue at an offset, or at a time, in one queue or in all of a topic; see `Consumer.seek`."""
        if (offset is None) == (time is None):
            expected = "an offset, or a time instead (time=...)"
            raise ArgumentError("seek", "offset", offset, expected)
        if queue is not None:
            queue = arguments.whole("seek", "queue", queue, 0)
        with self._lock:
            flights = [
                each
                for (name, _), each in sorted(self._flights.items())
                if name == topic and not each.is_leaving
            ]
        if not flights:
            expected = "a topic of which this consumer has a queue; assignment() lists them"
            raise ArgumentError("seek", "topic", topic, expected)
        flights = [each for each in flights if queue in (None, each.queue)]
        if not flights:
            expected = f"a queue of topic {topic} that this consumer has; assignment() lists them"
            raise ArgumentError("seek", "queue", queue, expected)
        targets = [self._target(each, offset, time, is_one=queue is not None) for each in flights]
        for flight, target in zip(flights, targets, strict=True):
            self._continue_at(flight, target)
        self._rouse()

    def _target(
        self,
        flight: QueueFlight,
        offset: int | None,
        time: float | datetime | timedelta | None,
        *,
        is_one: bool,
    ) -> int:
        topic, queue = flight.topic, flight.queue
        if time is not None:
            return self._store.offset_at(topic, queue, seek_time_ms(time) / 1000)
        low, high = self._store.min_offset(topic, queue), self._store.max_offset(topic, queue)
        wanted = arguments.whole("seek", "offset", offset, arguments.INT64_MIN)
        if wanted > high and is_one:
            expected = f"at most {high}, the end of queue {queue} of {topic}"
            raise ArgumentError("seek", "offset", offset, expected)
        return max(low, min(wanted, high))

    def _continue_at(self, flight: QueueFlight, offset: int) -> None:
        with self._lock:
            if flight.is_over or flight.is_leaving:
                return
            ticket = flight.owned.reset(offset)
            self._in_flight.drop(flight, lost=False)
            following = QueueFlight(
                self._consumer, flight.owned, StartPosition(offset), is_retry=flight.is_retry, span=self._span,
            )  # fmt: skip
            following.ticket = ticket
            self._put(following)
        flight.owned.sync(ticket)


def _record_base(flight: QueueFlight) -> None:
    base = flight.base
    if base > flight.recorded and not flight.owned.is_lost:
        flight.owned.advance(base)
        flight.recorded = base
