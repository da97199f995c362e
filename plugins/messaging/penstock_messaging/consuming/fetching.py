"""Reads messages ahead, in batches, from all queues of a consumer in turn."""

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

from penstock.contracts import OpenStore
from penstock.errors import PenstockError
from penstock_messaging.consuming.in_flight import InFlight, QueueFlight

# A batch is small enough that what is read ahead and then released costs little, and that it is read while an
# acknowledgement waits for the disk: a thread that returns from the disk waits for the one that reads. It is large
# enough to hide the cost of a read.
BATCH, BATCH_MAX = 128, 512
# The first one, while the size of messages is not known.
FIRST_BATCH = 32
BATCH_BYTES = 4 << 20

_size = attrgetter("size")


class Fetcher:
    """Reads the queues of one consumer. Safe from any thread: one reads at a time, without the consumer's lock.

    Attributes:
        queues: what to read; replaced as a whole when it changes.
    """

    def __init__(
        self,
        store: OpenStore,
        in_flight: InFlight,
        lock: AbstractContextManager[Any],
        tag: str,
    ) -> None:
        self.queues: Sequence[QueueFlight] = ()
        self._store = store
        self._in_flight = in_flight
        self._lock = lock
        self._tag = tag
        self._reading = threading.Lock()
        self._turn = -1
        self._batch, self._count_max = FIRST_BATCH, BATCH_MAX
        # The last limit, and whether the last reading found as many messages as it wanted: then there may be more.
        self._limit, self._has_more = 1, False

    @property
    def may_read_ahead(self) -> bool:
        """Whether the next `fetch` will probably find messages."""
        return self._has_more and not self._in_flight.has_ready

    def fetch_ahead(self) -> None:
        """Read as the last `fetch` did, so that the next one has nothing to do; errors are left to that."""
        with contextlib.suppress(PenstockError, OSError):
            self.fetch(self._limit)

    def fetch(self, limit: int) -> bool:
        """Read batches until there are `limit` messages; return False if there was nothing new in any queue."""
        with self._reading:
            with self._lock:
                if self._in_flight.has_ready or self._in_flight.is_full:
                    return self._in_flight.has_ready and not self._in_flight.is_full
            self._limit = limit = min(limit, BATCH_MAX)
            # A multiple of what the caller takes at a time: no call gets a rest, and few get messages of two queues.
            queues, wanted = self.queues, limit * max(self._batch // limit, 1)
            got, has_moved = 0, False
            for _ in range(len(queues)):
                self._turn = (self._turn + 1) % len(queues)
                count, moved = self._fetch_from(queues[self._turn], wanted - got)
                got += count
                has_moved |= moved
                # No more queues than are needed: what is found is to be in the caller's hand soon.
                if got >= limit:
                    break
            self._has_more = got >= wanted
            return has_moved

    def _fetch_from(self, flight: QueueFlight, wanted: int) -> tuple[int, bool]:
        """Read from one queue; return how many messages were added, and whether there was anything new."""
        with self._lock:
            if not self._in_flight.may_fetch(flight):
                return 0, False
            offset, limit = flight.fetched, min(wanted, flight.room, self._count_max)
        tag = "*" if flight.is_retry else self._tag
        result = self._store.read(flight.topic, flight.queue, offset, limit, tag)
        messages = result.messages
        if messages:
            mean = sum(map(_size, messages)) // len(messages)
            self._batch = BATCH
            self._count_max = max(1, min(BATCH_BYTES // max(mean, 1), BATCH_MAX))
        if result.next_offset <= offset or flight.owned.is_lost:
            # Also if the queue ends before: whether the log was cut is decided by the writing process, which then takes
            # the queue from its owner. What was read of a lost queue may be of a new topic of the same name.
            return 0, False
        with self._lock:
            # Meanwhile the queue may have been given back, or the consumer may have continued elsewhere.
            if flight.is_over or flight.is_leaving or flight.fetched != offset:
                return 0, True
            return self._in_flight.add(flight, messages, result.next_offset), True
