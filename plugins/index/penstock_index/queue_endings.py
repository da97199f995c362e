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
    """Collects the runs of the whole log, in log order. Not thread-safe.

    A broker deletes all queues of a topic at once. Records of a queue that lie before the first entry of its
    present life were there at the deletion; so was every life of another queue that began before the last
    of these.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._lives: dict[tuple[str, int], list[_Life]] = {}

    def take(
        self, key: tuple[str, int], ordinal: int, offsets: Int64s, first: tuple[int, int] | None
    ) -> None:
        """Take in log offsets of records of a queue, whose queue offsets count up from `ordinal`.

        `first` is the queue offset and the log offset at which its present life begins; None without entries.
        """
        if first is not None:
            ordinals = ordinal + np.arange(len(offsets))
            before = offsets[(offsets < first[1]) & (ordinals >= first[0])]
            if len(before):
                self._known[key[0]] = max(self._known.get(key[0], -1), int(before[-1]))
            return
        lives = self._lives.setdefault(key, [])
        if ordinal == 0 or not lives:
            lives.append(_Life(int(offsets[0]), int(offsets[-1])))
        else:
            lives[-1] = lives[-1]._replace(last=int(offsets[-1]))

    def of(self, topic: str) -> int:
        """Return the last log offset of what the topic had when it was deleted; -1 if it was not."""
        end = self._known.get(topic, -1)
        lives = [life for key, found in self._lives.items() if key[0] == topic for life in found]
        for life in sorted(lives):
            if life.first <= end:
                end = max(end, life.last)
        return end
