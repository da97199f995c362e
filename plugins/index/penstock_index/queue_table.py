"""The queues of a store by topic and number; each is opened at its first use.

A store that was closed cleanly may have a hundred thousand queues, of which a process uses some. The names in its
folder, or the summary of the clean close, show that a queue exists and which files it has. Only its files show where
its entries begin and end, and these are not opened before the first use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, overload

from penstock_index.queue_claims import Key
from penstock_index.queue_state import Queue
from penstock_index.queue_summary import ClosedQueue

Look = Callable[[Key, ClosedQueue], Queue]


class QueueTable(Mapping[Key, Queue]):
    """Queues by topic and number. Not thread-safe; the dispatcher's lock guards it.

    Counting or listing the keys opens no queue; iterating the values opens one after the other.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, Queue | ClosedQueue] = {}
        self._open_queue: Look | None = None

    def add_unopened(
        self, look: Look, known: Iterable[tuple[Key, ClosedQueue]] | Mapping[Key, ClosedQueue]
    ) -> None:
        """Add queues that are not open yet; `look` opens one, from what is known of it."""
        self._open_queue = look
        self._queues.update(known)

    def __setitem__(self, key: Key, queue: Queue) -> None:
        """Add an open queue."""
        self._queues[key] = queue

    def pop(self, key: Key) -> Queue:
        """Take a queue out, opened if needed."""
        found = self[key]
        del self._queues[key]
        return found

    def __getitem__(self, key: Key) -> Queue:
        """Return a queue, opened if needed; it stays unopened if that raises."""
        found = self._queues[key]
        if isinstance(found, ClosedQueue):
            assert self._open_queue is not None
            found = self._queues[key] = self._open_queue(key, found)
        return found

    @overload
    def get(self, key: Key) -> Queue | None: ...

    @overload
    def get(self, key: Key, default: Any) -> Any: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """Return a queue, or the default if there is none."""
        return self[key] if key in self._queues else default

    def __contains__(self, key: object) -> bool:
        """Return whether there is such a queue."""
        return key in self._queues

    def __iter__(self) -> Iterator[Key]:
        """Return an iterator over the keys."""
        return iter(self._queues)

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._queues)

    def unopened(self, key: Key) -> ClosedQueue | None:
        """Return what is known of a queue that is not open yet; None for others."""
        found = self._queues.get(key)
        return found if isinstance(found, ClosedQueue) else None

    def known(self, *, has_moved: bool) -> Iterator[tuple[Key, ClosedQueue]]:
        """Yield what is known of each queue; with `has_moved`, the log begins later than at the last close."""
        for key, found in self._queues.items():
            if isinstance(found, Queue):
                yield key, found.known()
            else:
                yield key, ClosedQueue(found.bases) if has_moved else found

    def opened(self) -> Iterator[Queue]:
        """Return the queues that are open."""
        return (found for found in list(self._queues.values()) if isinstance(found, Queue))

    def opened_or_with_files(self, least: int) -> Iterator[Queue]:
        """Yield the queues that are open, and those with at least this number of files."""
        for key, found in list(self._queues.items()):
            if isinstance(found, Queue) or len(found.bases) >= least:
                yield self[key]
