"""The queues of one consumer: joins the group, computes its share, claims free ones, asks for the surplus back."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from penstock.errors import ArgumentError, StorageError
from penstock.escape import get_logger
from penstock.format.properties import TRIMMED
from penstock_messaging.groups.assignment import Queue, assigned
from penstock_messaging.groups.marks import usable_marks
from penstock_messaging.groups.members import (
    Member,
    Membership,
    living_members,
    remove_dead_members,
)
from penstock_messaging.groups.owned_queue import TOPIC_DELETED, OwnedQueue
from penstock_messaging.groups.position import VOIDED_BITS
from penstock_messaging.groups.starts import ensure_start
from penstock_messaging.groups.taking import Groups, taken_in
from penstock_messaging.retries.copies import retry_topic

logger = get_logger(__name__)

RETRY_PREFIX = "%RETRY%"
# What decides which messages count as done that no consumer is offered.
_AGREED = "tag", "start"


class Topics(Protocol):
    """Which topics a member subscribes to."""

    @property
    def text(self) -> str:
        """The selection as text, for the member's file."""

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are named without a pattern."""

    def matches(self, topic: str) -> bool:
        """Return whether a topic is selected."""

    @classmethod
    def parse(cls, text: str) -> "Topics":
        """Return the selection with this `text`; raises `ValueError` if it is none."""


class Claims:
    """The queues of one consumer. One thread at a time calls `step`, `start` and `stop`; any may read `owned`.

    Attributes:
        group: the group.
        wake: called when another member in this process joins or leaves; it must arrange that `step` is called soon.
        on_claimed: called with each queue that was taken.
        on_wanted_back: called in each step with a queue that is lost or another's to get, until it is handed back.
    """

    def __init__(
        self, groups: Groups, group: str, topics: Topics, *, start: str | int = "earliest",
        note: Mapping[str, Any] | None = None,
        on_claimed: Callable[[OwnedQueue], None] = lambda _queue: None,
        on_wanted_back: Callable[[OwnedQueue], None] = lambda _queue: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Prepare; nothing is taken before `start`.

        Args:
            groups: those of the open store.
            group: the group's name, checked.
            topics: the selected topics, including the group's retry topic.
            start: where the group begins in a topic it has never consumed: "earliest", "latest", or Unix milliseconds.
            note: facts for the member's file; living members that share a topic agree in those of `_AGREED`.
            on_claimed: see the class.
            on_wanted_back: see the class.
            wake: see the class.
        """
        self.group = group
        self._groups = groups
        self._topics = topics
        self._start = start
        self.on_claimed = on_claimed
        self.on_wanted_back = on_wanted_back
        self.wake = wake
        self._owned: dict[Queue, OwnedQueue] = {}
        self._files = groups.context.files
        self._paths = groups.paths(group)
        self._note = dict(note or {})
        self._member = Membership(
            self._files, self._paths, topics.text, groups.context.clock.time_ms(), self._note
        )
        # The topics that are there at the start: later ones begin at their first message.
        self._first_topics: frozenset[str] | None = None
        self._begins: dict[str, tuple[int, dict[int, int]]] = {}
        self._parsed: dict[str, Topics | None] = {topics.text: topics}
        self._warned: dict[Queue, str] = {}
        self._seen: frozenset[Queue] = frozenset()

    @property
    def owned(self) -> Mapping[Queue, OwnedQueue]:
        """The queues that this consumer has, by (topic, queue)."""
        return MappingProxyType(dict(self._owned))

    @property
    def id(self) -> str:
        """The member's name."""
        return self._member.id

    def start(self) -> None:
        """Join the group and take what is free.

        Raises:
            StorageError: the store cannot have consumers.
            ArgumentError: a living member consumes one of the topics with another tag or start.
        """
        self._groups.check_local()
        # Raises if no writer has ever made one.
        _ = self._groups.store_id
        self._join()
        self._groups.enter(self)
        self.step()

    def stop(self) -> None:
        """Leave the group; queues that are not handed back yet are. A second call does nothing.

        Raises `StorageError` if the disk fails for one of them; all are handed back nevertheless.
        """
        failures = []
        for queue in list(self._owned.values()):
            try:
                queue.hand_back()
            except StorageError as error:
                failures.append(error)
        self._member.leave()
        self._groups.exit(self)
        if failures:
            raise failures[0]

    def step(self) -> None:
        """Look at members and queues; take what belongs to this consumer and is free, and ask for the surplus back.

        Failures of the disk are logged; the next step tries again.
        """
        try:
            self._join()
            remove_dead_members(self._files, self._paths)
            wanted = self._wanted()
            self._check_owned()
        except (OSError, StorageError) as error:
            logger.warning(
                "group %s: its members could not be compared: %s; this is tried again", self.group, error
            )  # fmt: skip
            return
        for key, owned in list(self._owned.items()):
            if key not in wanted or owned.is_lost:
                self.on_wanted_back(owned)
        for key in sorted(wanted - self._owned.keys()):
            self._try_to_claim(key)

    def _join(self) -> None:
        if self._member.is_alive:
            return
        with self._groups.joining:
            self._check_agreement()
            self._member.join()
            try:
                # Of two processes that join at the same time, at least one sees the other.
                self._check_agreement()
            except BaseException:
                self._member.leave()
                raise

    def _check_agreement(self) -> None:
        """Raise `ArgumentError` if a living member selects other messages of a topic that this one consumes, too."""
        for member in living_members(self._files, self._paths):
            theirs = self._selection(member)
            if member.id == self._member.id or theirs is None or not self._shares_topics(theirs):
                continue
            for name in _AGREED:
                mine, other = self._note.get(name), member.options.get(name)
                if _as_selected(mine) != _as_selected(other):
                    raise ArgumentError(
                        "consumer", name, mine,
                        f"{other!r}: the members of a group agree on it, and the one in process {member.pid} has that "
                        f"value; pass the same, use another group than {self.group}, or close that member",
                    )  # fmt: skip

    def _shares_topics(self, other: Topics) -> bool:
        if "*" in self._topics.text and "*" in other.text:
            # Topics of both may be created later.
            return True
        both = ((self._topics, other), (other, self._topics))
        retries = retry_topic(self.group)
        return any(b.matches(name) for a, b in both for name in a.names if name != retries)

    def _wanted(self) -> set[Queue]:
        there = dict(self._groups.store.topics(system=True))
        self._seen = self._selected(there)
        # Before it has a message: the first retry would come a step late otherwise.
        there.setdefault(retry_topic(self.group), [0])
        if self._first_topics is None:
            self._first_topics = frozenset(there)
            for name in self._topics.names:
                if name not in there:
                    self._begin(name)
        subscribes = {
            member.id: topics.matches
            for member in living_members(self._files, self._paths)
            if (topics := self._selection(member)) is not None
        }
        return assigned(self._member.id, subscribes, there)

    def has_new(self) -> bool:
        """Return whether there are queues that the last step did not know; safe from any thread."""
        return not self._selected(self._groups.store.topics(system=True)) <= self._seen

    def _selected(self, there: Mapping[str, Iterable[int]]) -> frozenset[Queue]:
        return frozenset(
            (topic, queue)
            for topic, queues in there.items()
            if self._topics.matches(topic)
            for queue in queues
        )

    def _selection(self, member: Member) -> Topics | None:
        """Return the topics of a member; None, with one warning, if its file does not say."""
        text = member.topics
        if text not in self._parsed:
            try:
                self._parsed[text] = self._topics.parse(text)
            except ValueError as error:
                logger.warning(
                    "group %s: member %s gets no queues, since its topics are not understood: %s", self.group,
                    member.id, error
                )  # fmt: skip
                self._parsed[text] = None
        return self._parsed[text]

    def _check_owned(self) -> None:
        """Lose the queues whose journals do not count any more."""
        marks = usable_marks(self._files, self._paths) if self._owned else {}
        for key, owned in list(self._owned.items()):
            owned.check_lock()
            if self._groups.generation(owned.topic) != owned.generation >> VOIDED_BITS:
                owned.lose(TOPIC_DELETED)
                continue
            try:
                taken_in(marks.get(key), owned.generation, *key)
            except StorageError as error:
                owned.lose(getattr(error, "reason", str(error)))

    def _try_to_claim(self, key: Queue) -> None:
        topic, queue = key
        try:
            begins = self._begin(topic)
            if begins is None:
                return
            owned = self._groups.claim(
                self.group, topic, queue, member=self._member.id,
                begin=lambda: begins.get(queue, self._groups.store.min_offset(topic, queue)),
                on_handed_back=self._forget,
            )  # fmt: skip
        except (OSError, StorageError) as error:
            if self._warned.get(key) != str(error):
                self._warned[key] = str(error)
                logger.warning(
                    "group %s: queue %s/%d cannot be taken: %s; this is tried again", self.group, topic, queue, error
                )  # fmt: skip
            return
        self._warned.pop(key, None)
        if owned is not None:
            self._owned[key] = owned
            self.on_claimed(owned)

    def _forget(self, owned: OwnedQueue) -> None:
        if self._owned.get((owned.topic, owned.queue)) is owned:
            del self._owned[owned.topic, owned.queue]

    # --- where the group begins

    def _begin(self, topic: str) -> dict[int, int] | None:
        """Return where the group begins in each queue of a topic; None if another member is about to decide."""
        generation = self._groups.generation(topic)
        known = self._begins.get(topic)
        if known is None or known[0] != generation:
            offsets = ensure_start(
                self._files, self._paths, topic, generation, lambda: self._resolve(topic)
            )
            if offsets is None:
                return None
            known = self._begins[topic] = generation, offsets
        return known[1]

    def _resolve(self, topic: str) -> dict[int, int]:
        """Return the first offset of each queue that does not begin at its first message."""
        store = self._groups.store
        is_new = topic not in (self._first_topics or ())
        if self._start == "earliest" or is_new or topic == RETRY_PREFIX + self.group:
            return {}
        queues = store.topics(system=True).get(topic, [])
        if any(store.committed_offset(self.group, topic, queue) is not None for queue in queues):
            # The group has consumed the topic before, by other means.
            return {}
        if isinstance(self._start, int):
            at = self._start
            return {q: store.offset_at(topic, q, at / 1000) for q in queues}
        return {q: store.max_offset(topic, q) for q in queues}


def _as_selected(value: object) -> object:
    """Return a tag or a start in a form that compares: tags in any order, and as RocketMQ reads them."""
    if not isinstance(value, str):
        return value
    tags = {word for part in value.split("||") if (word := part.strip(TRIMMED))}
    return frozenset() if "*" in tags else frozenset(tags)
