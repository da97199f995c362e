"""A group in memory, with the rules of groups across processes, so that tests of consumers need no files.

It asserts what consumers promise: sorted offsets, a base that never decreases and never passes what was not answered.
"""

from collections.abc import Sequence

from penstock.errors import LostQueueError
from penstock.store.store import Store
from penstock_messaging.consuming.in_flight import StartPosition
from penstock_messaging.consuming.queue_rights import OnQueue
from penstock_messaging.consuming.selection import TopicSelection


class FakeJournal:
    """What is recorded of one queue."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.acked: set[int] = set()
        self.nacked: dict[int, tuple[int, int]] = {}
        self.tries: dict[int, int] = {}
        self.out: set[int] = set()
        self.epoch = 0
        self.records = self.synced = 0
        self.owner: FakeQueue | None = None
        self.ack_calls: list[tuple[int, ...]] = []

    def position(self) -> StartPosition:
        ranges = [(each, each + 1) for each in sorted(self.acked) if each >= self.base]
        return StartPosition(self.base, ranges, sorted(self.nacked), dict(self.tries))

    def raise_base(self, base: int) -> None:
        assert base >= 0
        self.base = max(self.base, base)


class FakeQueue:
    """A queue that a member has."""

    def __init__(self, topic: str, queue: int, journal: FakeJournal) -> None:
        self.topic, self.queue = topic, queue
        self._journal = journal
        journal.epoch += 1
        self.epoch = journal.epoch
        self.position = journal.position()
        self.is_lost = False
        self.is_back = False
        journal.owner = self

    def lose(self) -> None:
        self.is_lost = True

    @property
    def turn(self) -> tuple[int, int, int]:
        return 0, self.epoch, 0

    @property
    def lost_reason(self) -> str:
        return "a test took it" if self.is_lost else "it was handed back" if self.is_back else ""

    def _record(self, base: int) -> int:
        if self.is_lost or self.is_back:
            raise LostQueueError(self.topic, self.queue)
        assert self._journal.owner is self
        self._journal.raise_base(base)
        self._journal.records += 1
        return self._journal.records

    def ack(self, offsets: Sequence[int], base: int) -> int:
        ticket = self._record(base)
        assert list(offsets) == sorted(set(offsets))
        assert all(each >= base for each in offsets)
        assert not self._journal.acked & set(offsets), "acknowledged twice"
        self._journal.acked.update(offsets)
        self._journal.ack_calls.append(tuple(offsets))
        return ticket

    def hand_out(self, offsets: Sequence[int], base: int) -> None:
        if self.is_lost or self.is_back:
            raise LostQueueError(self.topic, self.queue)
        assert all(each >= base for each in offsets)
        self._journal.out.update(offsets)

    def free(self, offsets: Sequence[int], base: int) -> None:
        self._journal.out.difference_update(offsets)

    def nack(
        self, offset: int, level: int, tries: int, base: int, count: int = 1, reason: bytes = b""
    ) -> int:  # fmt: skip
        ticket = self._record(base)
        assert offset >= base
        assert offset not in self._journal.nacked, "refused twice"
        self._journal.nacked[offset] = (level, tries)
        return ticket

    def has_refused(self, offset: int) -> bool:
        return offset in self._journal.nacked

    def retry(self, offset: int, tries: int, base: int) -> int:
        ticket = self._record(base)
        self._journal.tries[offset] = tries
        return ticket

    def reset(self, offset: int) -> int:
        ticket = self._record(0)
        journal = self._journal
        journal.base, journal.acked, journal.nacked, journal.tries = offset, set(), {}, {}
        return ticket

    def advance(self, base: int) -> None:
        self._record(base)

    def sync(self, ticket: int) -> None:
        self._journal.synced = max(self._journal.synced, ticket)

    def hand_back(self) -> None:
        if self._journal.owner is self:
            self._journal.owner = None
            self._journal.synced = self._journal.records
        self.is_back = True


class FakeGroup:
    """A group, with any number of members in this process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.journals: dict[tuple[str, int], FakeJournal] = {}
        self.members: list[FakeClaims] = []

    def queues(self, selection: TopicSelection) -> list[tuple[str, int]]:
        return sorted(
            (topic, queue)
            for topic, queues in self.store.topics(system=True).items()
            for queue in queues
            if selection.matches(topic)
        )


class FakeClaims:
    """The membership of one consumer."""

    def __init__(
        self,
        group: FakeGroup,
        selection: TopicSelection,
        on_claimed: OnQueue,
        on_wanted_back: OnQueue,
    ) -> None:
        self._group = group
        self._selection = selection
        self._on_claimed, self._on_wanted_back = on_claimed, on_wanted_back
        self.owned: dict[tuple[str, int], FakeQueue] = {}

    def start(self) -> None:
        self._group.members.append(self)
        self.step()

    def step(self) -> None:
        keys, members = self._group.queues(self._selection), self._group.members
        mine = set(keys[members.index(self) :: len(members)])
        for key, owned in list(self.owned.items()):
            if owned.is_back:
                del self.owned[key]
            elif key not in mine or owned.is_lost:
                self._on_wanted_back(owned)
        for key in sorted(mine):
            journal = self._group.journals.setdefault(key, FakeJournal())
            if journal.owner is None:
                self.owned[key] = FakeQueue(*key, journal)
                self._on_claimed(self.owned[key])

    def has_new(self) -> bool:
        return not set(self._group.queues(self._selection)) <= self._group.journals.keys()

    def stop(self) -> None:
        assert all(each.is_back for each in self.owned.values())
        if self in self._group.members:
            self._group.members.remove(self)
