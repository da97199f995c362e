"""When a topic that was deleted and made again was deleted, as the log and the surviving queues tell."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class _Life(NamedTuple):
    """First and last log offset of records of one queue that count up."""

    first: int
    last: int


class Endings:
    """Collects the records of the whole log, in log order. Not thread-safe.

    A broker deletes all queues of a topic at once. Where a queue has records from before the first entry of its
    present life, the topic was deleted before that entry: what other queues without entries have from before it
    is of an ended life as well. Not a life that goes on behind it: no deletion was in between.
    """

    def __init__(self) -> None:
        self._again: dict[str, int] = {}
        self._lives: dict[tuple[str, int], list[_Life]] = {}

    def take(
        self, key: tuple[str, int], ordinal: int, offsets: Int64s, first: tuple[int, int] | None
    ) -> None:
        """Take in log offsets of records of a queue, whose queue offsets count up from `ordinal`.

        `first` is the queue offset and the log offset at which its present life begins; None without entries.
        """
        if first is not None:
            if first[0] == 0 and offsets[0] < first[1]:
                self._again[key[0]] = min(self._again.get(key[0], first[1]), first[1])
            return
        lives = self._lives.setdefault(key, [])
        if ordinal == 0 or not lives:
            lives.append(_Life(int(offsets[0]), int(offsets[-1])))
        else:
            lives[-1] = lives[-1]._replace(last=int(offsets[-1]))

    def before(self, key: tuple[str, int]) -> int:
        """Return the log offset before which the records of a queue without entries are of ended lives."""
        end = self._again.get(key[0], 0)
        going_on = (
            life.first for life in self._lives.get(key, ()) if life.first < end <= life.last
        )
        return min(going_on, default=end)
