"""Groups on a simulated disk: consumers that answer, a writer that takes the answers in, and what must hold after a crash."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs

from penstock import Message, StoredMessage
from penstock.errors import StorageError
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.kit import ManualWorkers, make_context, open_store
from penstock.testing.platter import Image
from penstock_messaging.groups.entries import GROUP_SETTING
from penstock_messaging.groups.intake import Intake
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.taking import Groups

ROOT = Path("/store")
GROUP, TOPIC = "billing", "orders"
SETTINGS: dict[str, Any] = {"extensions.use": [], "retention": []}


class PlainRetries:
    """Retries as a broker stores them, with the few properties by which they are recognised."""

    def __init__(self) -> None:
        self.rounds = 0

    def copy(
        self,
        message: StoredMessage,
        group: str,
        level: int | None,
        tries: int | None,
        more: int = 1,
        reason: bytes = b"",
    ) -> tuple[Message, bytes]:
        """Return a delayed retry."""
        first_id, count = self.origin(message)
        pairs = {"ORIGIN_MESSAGE_ID": first_id, "REAL_TOPIC": f"%RETRY%{group}"}
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
        copy = Message(
            "SCHEDULE_TOPIC_XXXX", message.body, queue=(level or 3 + count) - 1, reconsume_times=count + more,
        )  # fmt: skip
        return copy, text.encode()

    def letters(self, message: StoredMessage, group: str, _: object) -> list[tuple[Message, bytes]]:
        """Return a dead letter."""
        return [(Message(f"%DLQ%{group}", message.body, queue=0), b"")]

    def origin(self, message: StoredMessage) -> tuple[str, int]:
        """Return the first id and the number of tries."""
        named = message.all_properties.get("ORIGIN_MESSAGE_ID", message.message_id)
        return named, message.reconsume_times

    def were_put(self) -> None:
        """Count the rounds."""
        self.rounds += 1


@attrs.define
class Promises:
    """What consumers have been told so far."""

    # Offsets whose acknowledgement was synced, and those that were answered at all, in this order.
    acked: set[int] = attrs.Factory(set)
    answered: set[int] = attrs.Factory(set)
    # Refusals: synced ones, those that have returned, and all.
    nacked: set[int] = attrs.Factory(set)
    noted: set[int] = attrs.Factory(set)
    refused: set[int] = attrs.Factory(set)
    # Refused before the group was set back behind them: they are retried, and handed out again.
    sought: set[int] = attrs.Factory(set)
    epoch: int = 0

    def copy(self) -> "Promises":
        """Return a copy."""
        return Promises(set(self.acked), set(self.answered), set(self.nacked), set(self.noted), set(self.refused), set(self.sought), self.epoch)  # fmt: skip


@attrs.frozen
class Moment:
    """The disk just before a call, and the promises: those given before it, and those that may be given by it."""

    call: str
    image: Image
    promised: Promises


def opened(disk: Files, clock: ManualClock) -> tuple[Store, Groups, Intake]:
    """Open the store for writing, and its groups; nothing is taken in yet."""
    store = open_store(ROOT, files=disk, clock=clock, spawn=ManualWorkers(), **SETTINGS)
    return store, *services(store, disk, clock)


def services(store: Store, files: Files, clock: ManualClock) -> tuple[Groups, Intake]:
    """Return the groups of an open store, and the service that takes their journals in."""
    context = make_context(store.path, files=files, clock=clock)
    context = attrs.evolve(context, read_only=store.read_only)
    groups = Groups(context, store.lowlevel)
    return groups, Intake(groups, PlainRetries(), store.lowlevel.work_wakes())


def take(groups: Groups, topic: str = TOPIC, queue: int = 0, group: str = GROUP) -> OwnedQueue:
    """Take a queue, which must be free."""
    taken = groups.claim(group, topic, queue, member="1-test", begin=lambda: 0)
    assert taken is not None
    return taken


class GroupStory:
    """A writer and one consumer after the other, on a disk whose calls are watched."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock, seed=seed, write_back=0.05)
        self.promised = Promises()
        self.moments: list[Moment] = []
        self.store, self.groups, self.intake = opened(self.disk, self.clock)
        self.intake.take_all()
        self._put(12)
        self.queue = self._take()

    def play(self, steps: int) -> Iterator[Moment]:
        """Run the story; yields a moment for each call that changes the disk."""
        self.disk.plan.watch = lambda call, path: self.moments.append(
            Moment(f"{call} {path.name}", self.disk.image(), self.promised.copy())
        )
        names = ["ack", "ack", "ack", "nack", "nack", "intake", "intake", "take", "reopen", "put", "advance", "full", "seek", "hand_out"]  # fmt: skip
        for _ in range(steps):
            getattr(self, f"_{self.chance.choice(names)}")()
            yield from self.moments
            self.moments.clear()

    def _put(self, count: int = 4) -> None:
        for _ in range(count):
            self.store.put(TOPIC, b"%d" % self.store.max_offset(TOPIC, 0), queue=0)
        if self.chance.random() < 0.5:
            self.store.flush()

    def _take(self) -> OwnedQueue:
        if hasattr(self, "queue") and self.chance.random() < 0.5:
            self.queue.hand_back()
        elif hasattr(self, "queue"):
            # As a kill leaves it: nothing was synced.
            self.queue._lock.release()
        self.queue = take(self.groups)
        assert self.queue.epoch > self.promised.epoch
        self.promised.epoch = self.queue.epoch
        position = self.queue.position
        assert all(map(position.is_done, self.promised.acked)), position
        done = {o for o in range(self.store.max_offset(TOPIC, 0)) if position.is_done(o)}
        assert done <= self.promised.answered, position
        return self.queue

    def _base(self) -> int:
        offset = 0
        while offset in self.promised.answered:
            offset += 1
        return offset

    def _open_offsets(self) -> list[int]:
        end = self.store.max_offset(TOPIC, 0)
        return [o for o in range(end) if o not in self.promised.answered]

    def _ack(self) -> None:
        there = self._open_offsets()
        if not there:
            return
        base = self._base()
        some = sorted(self.chance.sample(there, self.chance.randint(1, min(3, len(there)))))
        self.promised.answered |= set(some)
        ticket = self.queue.ack(some, base)
        if self.chance.random() < 0.7:
            self.queue.sync(ticket)
            # A sync makes all earlier answers durable as well.
            self.promised.acked |= self.promised.answered - self.promised.refused
            self.promised.nacked |= self.promised.noted

    def _hand_out(self) -> None:
        some = self._open_offsets()[:3]
        if some:
            self.queue.hand_out(some, self._base())
            if self.chance.random() < 0.3:
                self.queue.free(some[:1], self._base())

    def _nack(self) -> None:
        there = [each for each in self._open_offsets() if each not in self.promised.refused]
        if not there:
            return
        base, offset = self._base(), self.chance.choice(there)
        self.promised.answered.add(offset)
        self.promised.refused.add(offset)
        ticket = self.queue.nack(offset, self.chance.choice((0, 2)), GROUP_SETTING, base)
        self.promised.noted.add(offset)
        if self.chance.random() < 0.7:
            self.queue.sync(ticket)
            self.promised.acked |= self.promised.answered - self.promised.refused
            self.promised.nacked |= self.promised.noted

    def _seek(self) -> None:
        """Set the group back: what it has answered from there on counts no more, once that is durable."""
        offset = self.chance.randint(max(self._base() - 6, 0), self._base())
        promised = self.promised
        before = {each for each in promised.answered if each < offset}
        # From the first byte on, either position may be found.
        promised.acked &= before
        promised.sought |= promised.refused - before
        self.queue.sync(self.queue.reset(offset))
        promised.answered = before
        promised.nacked |= promised.noted

    def _advance(self) -> None:
        self.queue.advance(self._base())

    def _full(self) -> None:
        """Begin a new file, as a full one does."""
        self.queue._journal._begin_anew()
        self.promised.acked |= self.promised.answered - self.promised.refused
        self.promised.nacked |= self.promised.noted

    def _intake(self) -> None:
        self.intake.take_all()

    def _reopen(self) -> None:
        """Close the store and open it again, while the consumer lives on in another process."""
        self.store.close()
        self.store, groups, self.intake = opened(self.disk, self.clock)
        self.groups = groups
        self.intake.take_all()


def retries_of(store: Store) -> Counter[str]:
    """Return how many retries each first message has, by its body."""
    found: Counter[str] = Counter()
    for queue in store.topics(system=True).get("SCHEDULE_TOPIC_XXXX", ()):
        found.update(
            m.body.decode() for m in store.read("SCHEDULE_TOPIC_XXXX", queue, 0, 1000).messages
        )
    return found


def wrong_after(disk: SimulatedDisk, promised: Promises, *, killed: bool) -> str:
    """Open a crashed disk, take everything in, and return what does not hold; "" if all does."""
    clock = ManualClock(1_700_003_600_000)
    store, groups, intake = opened(disk, clock)
    with suppress(StorageError):
        wrong = _wrong_position(store, groups, promised, "before the intake")
        if wrong:
            return wrong
    intake.take_all()
    intake.take_all()
    made = retries_of(store)
    # What a power cut has taken away with the log's tail cannot be retried, and its offsets are used again.
    end = store.max_offset(TOPIC, 0)
    must = promised.noted if killed else promised.nacked
    for offset in must & set(range(end)):
        if made[str(offset)] != 1:
            return f"offset {offset} was refused and has {made[str(offset)]} retries"
    if any(count > 1 for count in made.values()):
        return f"made twice: {made}"
    if not set(map(int, made)) <= promised.refused:
        return f"not refused: {made}"
    wrong = _wrong_position(store, groups, promised, "after the intake")
    wrong = wrong or _wrong_with_new(store, groups, intake, end)
    committed = store.committed_offset(GROUP, TOPIC, 0) or 0
    position = groups.position(GROUP, TOPIC, 0)
    if not wrong and position is not None and position.nacked:
        wrong = f"refusals were not taken in: {position.nacked}"
    if not wrong and any(o not in promised.answered for o in range(committed)):
        wrong = f"committed {committed}, answered only {sorted(promised.answered)}"
    if not wrong and (owned := take(groups)).epoch <= promised.epoch:
        wrong = f"epoch {owned.epoch} after {promised.epoch}"
    return wrong


def _wrong_with_new(store: Store, groups: Groups, intake: Intake, end: int) -> str:
    """Put messages in place of those that were lost: none of them counts as consumed."""
    for number in range(8):
        store.put(TOPIC, b"%d" % (1000 + number), queue=0)
    intake.take_all()
    position = groups.position(GROUP, TOPIC, 0)
    done = [o for o in range(end, end + 8) if position is not None and position.is_done(o)]
    return f"put after the crash, and consumed already: {done}, {position}" if done else ""


def _wrong_position(store: Store, groups: Groups, promised: Promises, when: str) -> str:
    position = groups.position(GROUP, TOPIC, 0)
    if position is None:
        return f"{when} there is no position" if promised.acked or promised.nacked else ""
    end = store.max_offset(TOPIC, 0)
    for offset in (promised.acked | (promised.nacked - promised.sought)) & set(range(end)):
        if not position.is_done(offset):
            return f"{when} the answer to {offset} is lost: {position}"
    for offset in range(store.max_offset(TOPIC, 0)):
        if position.is_done(offset) and offset not in promised.answered:
            return f"{when} {offset} counts as consumed: {position}"
    return ""
