"""The file `penstock/removed-topics`: which topics were removed, and which of their records are removed with them.

Layout: JSON, one object: topic to `{"before": 4711, "count": 2, "earlier": [815]}`. The topic's records before log offset `before` have no
queue entry, whatever the log still holds; records from there on are of a topic of the same name that was created later.
`count` is how often the topic was removed: queue offsets begin at 0 each time. `earlier` has the log offsets of the removals before the
last one, ascending, for followers that are not there yet; the newest `_EARLIER_MAX` of them. Files of older versions lack it.

Invariants:
    * The file is written durably before the first queue file of the topic is deleted, so no recovery brings a removed topic
      back.
    * `before` is never after the log's end: if the log has lost its tail, it is lowered before new records are appended.
    * The size, modulo 1024, is one more after each write: spaces follow the JSON. So a process that reads finds every change
      by the size, also where two writes have the same time and the same inode number.
    * An entry stays when its records are gone, since the count tells old queue offsets from new ones.
    * A file that cannot be read is renamed when the store is next opened for writing, and named: removed topics come back,
      and no message is lost.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import attrs

from penstock.errors import MessageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER, check_topic

logger = get_logger(__name__)

_SIZE_MAX = 16 << 20
_OFFSET_MAX = 1 << 62
_SIZES = 1024
# Each is a few bytes of a file that is written with every removal.
_EARLIER_MAX = 256
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError)


@attrs.frozen
class Removal:
    """A topic was removed `count` times, the last time with all its records before log offset `before`, and before at the offsets `earlier`."""

    before: int
    count: int
    earlier: tuple[int, ...] = ()


@attrs.frozen
class RemovedTopics:
    """The removed topics of one store."""

    topics: Mapping[str, Removal] = attrs.Factory(dict)

    @property
    def before(self) -> dict[str, int]:
        """Topic to the log offset before which its records are removed."""
        return {topic: removal.before for topic, removal in self.topics.items()}

    @property
    def removals(self) -> list[tuple[str, int]]:
        """Each removal: the topic, and the log offset before which its records were removed."""
        return [
            (topic, before)
            for topic, removal in self.topics.items()
            for before in (*removal.earlier, removal.before)
        ]

    def before_of(self, topic: str) -> int:
        """Return the log offset before which a topic's records are removed; 0 if it never was."""
        found = self.topics.get(topic)
        return found.before if found else 0

    def count(self, topic: str) -> int:
        """Return how often a topic was removed."""
        found = self.topics.get(topic)
        return found.count if found else 0

    def with_removed(self, topic: str, log_offset: int) -> "RemovedTopics":
        """Return the same with a topic's records before a log offset removed."""
        last = self.topics.get(topic)
        earlier = () if last is None else (*last.earlier, last.before)[-_EARLIER_MAX:]
        removal = Removal(log_offset, self.count(topic) + 1, earlier)
        return RemovedTopics({**self.topics, topic: removal})

    def lowered(self, log_end: int) -> "RemovedTopics":
        """Return the same for a log that ends at `log_end`: records written from there on are not removed."""
        return RemovedTopics(
            {
                topic: attrs.evolve(
                    removal,
                    before=min(removal.before, log_end),
                    earlier=tuple(min(each, log_end) for each in removal.earlier),
                )
                for topic, removal in self.topics.items()
            }
        )


class RemovedTopicsFile:
    """The file of one store. Safe from any thread; one process writes."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / SIDE_FOLDER / "removed-topics"
        self._known: tuple[tuple[int, int, int], RemovedTopics] | None = None

    def read(self) -> RemovedTopics:
        """Return the content, read again only if the file has changed; empty if there is none, or it cannot be read."""
        now = self._files.version(self._path)
        known = self._known
        if known is not None and known[0] == now:
            return known[1]
        found = RemovedTopics()
        if any(now):
            try:
                found = self._parse()
            except _NOT_UNDERSTOOD as error:
                logger.warning(
                    "%s cannot be read (%s): topics that were removed have their messages again; no message is lost",
                    self._path, error,
                )  # fmt: skip
        self._known = now, found
        return found

    def _parse(self) -> RemovedTopics:
        table = json.loads(self._files.read_whole(self._path, _SIZE_MAX))
        found = {}
        for topic, about in table.items():
            before, count = about["before"], about["count"]
            earlier = tuple(about.get("earlier", ()))
            if {type(each) for each in (before, count, *earlier)} != {int}:
                raise ValueError(f"the entry of topic {topic!r} has no whole numbers")
            if not (0 <= before <= _OFFSET_MAX and 0 < count <= _OFFSET_MAX):
                raise ValueError(f"a number of topic {topic!r} is out of range")
            if (
                len(earlier) > _EARLIER_MAX
                or list(earlier) != sorted(earlier)
                or not all(0 <= each <= before for each in earlier)
            ):
                raise ValueError(f"the earlier removals of topic {topic!r} are out of order")
            try:
                found[check_topic(topic)] = Removal(before, count, earlier)
            except MessageError as error:
                raise ValueError(str(error)) from error
        return RemovedTopics(found)

    def write(self, removed: RemovedTopics) -> None:
        """Write the content durably; a content that is unchanged is not written."""
        if removed == self.read():
            return
        table = {topic: attrs.asdict(removal) for topic, removal in removed.topics.items()}
        data = json.dumps(table, indent=1).encode()
        size = self._files.version(self._path)[2] + 1
        self._files.write_whole(self._path, data + b" " * ((size - len(data)) % _SIZES))
        self._known = None

    def settle(self, log_end: int) -> list[str]:
        """Lower what is after the log's end, durably, and set an unreadable file aside; return a sentence for each repair.

        Called while the store is opened for writing, before anything is appended.
        """
        if not self._files.exists(self._path):
            return []
        try:
            found = self._parse()
        except _NOT_UNDERSTOOD as error:
            aside = self._files.unused(self._path.with_name("removed-topics.unreadable"))
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(self._path, aside)
            self._known = None
            text = f"{self._path} could not be read ({error}) and was renamed to {aside.name}: "
            return [f"{text}topics that were removed have their messages again"]
        lowered = found.lowered(log_end)
        if lowered == found:
            return []
        self.write(lowered)
        return [
            f"the log ends before the removal of a topic; {self._path.name} was lowered to {log_end}"
        ]
