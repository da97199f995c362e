"""The queues of a store by topic and number, each looked at when it is first asked for.

A store that was closed cleanly may have a hundred thousand queues, of which a process uses some. That one of them is
there, and which files it has, its folder's names tell, or the summary of the clean close; where its entries begin and
end its files do, and these are not opened before somebody wants to know.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, overload

from penstock_index.queue_claims import Key
from penstock_index.queue_state import Queue
from penstock_index.queue_summary import Known

Look = Callable[[Key, Known], Queue]


class QueueTable(Mapping[Key, Queue]):
    """Queues by topic and number. Not thread-safe; the dispatcher's lock guards it.

    To count or list the keys looks at no queue; the values do, one by one.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, Queue | Known] = {}
        self._look: Look | None = None

    def wait_for(
        self, look: Look, known: Iterable[tuple[Key, Known]] | Mapping[Key, Known]
    ) -> None:
        """Take in queues that were not looked at yet; `look` does, given what is known."""
        self._look = look
        self._queues.update(known)

    def __setitem__(self, key: Key, queue: Queue) -> None:
        """Take in a queue that was looked at."""
        self._queues[key] = queue

    def __getitem__(self, key: Key) -> Queue:
        """Return a queue; it stays unknown where looking at it raises."""
        found = self._queues[key]
        if isinstance(found, Known):
            assert self._look is not None
            found = self._queues[key] = self._look(key, found)
        return found

    @overload
    def get(self, key: Key) -> Queue | None: ...

    @overload
    def get(self, key: Key, default: Any) -> Any: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """Return a queue, or the default where there is none."""
        return self[key] if key in self._queues else default

    def __contains__(self, key: object) -> bool:
        """Say whether there is such a queue."""
        return key in self._queues

    def __iter__(self) -> Iterator[Key]:
        """Return the keys."""
        return iter(self._queues)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._queues)

    def waiting(self, key: Key) -> Known | None:
        """Return what is known of a queue that was not looked at; None for others."""
        found = self._queues.get(key)
        return found if isinstance(found, Known) else None

    def known(self, *, has_moved: bool) -> Iterator[tuple[Key, Known]]:
        """Return what is known of each queue; with `has_moved`, the log begins later than when it was noted."""
        for key, found in self._queues.items():
            if isinstance(found, Queue):
                yield key, found.known()
            else:
                yield key, Known(found.bases) if has_moved else found

    def looked_at(self) -> Iterator[Queue]:
        """Yield the queues that were looked at already."""
        return (found for found in list(self._queues.values()) if isinstance(found, Queue))

    def of_files(self, least: int) -> Iterator[Queue]:
        """Yield the queues that were looked at already, and those of at least so many files."""
        for key, found in list(self._queues.items()):
            if isinstance(found, Queue) or len(found.bases) >= least:
                yield self[key]
