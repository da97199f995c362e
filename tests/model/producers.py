"""Plays what producers do: messages, delays, transactions, prepared messages; and holds all topics against the model.

What topics have is compared after each step. `members` adds the groups that get the messages.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from random import Random

import attrs
from tests.model.messaging import (
    HALVES,
    LEVELS_S,
    REMOVALS,
    TIMERS,
    WAITING,
    Half,
    Model,
    Place,
    Promise,
    Record,
)
from tests.model.story import Player
from tests.model.worlds import World

from penstock import Durability, Message, Receipt, Store, StoredMessage
from penstock.contracts import Prepared
from penstock.errors import PreparedFinishedError
from penstock.testing import ManualClock
from penstock.testing.platter import Survival

TOPICS, QUEUES = ("a", "b"), 2
# Two have the same hash in Java.
TAGS = ("", "red", "Aa", "BB")
LATE_HALVES = "TRANS_CHECK_MAX_TIME_TOPIC", 0
IMMUNITY_MS, INTERVAL_MS, CHECKS_MAX = 6000, 30_000, 3
# A thread of one process leaves work to one of another.
ROUNDS = 3


@attrs.define(eq=False)
class CheckBack:
    """The program that decides about prepared messages; not while the store is being opened."""

    model: Model
    clock: ManualClock
    is_opening: bool = False
    asked_at_opening: set[str] = attrs.Factory(set)
    wrong: str = ""

    def __call__(self, prepared: Prepared) -> str | None:
        """Answer as the story says; what is raised here counts as no answer."""
        try:
            return self._answer(prepared)
        except (AssertionError, LookupError) as error:
            self.wrong = repr(error)
            raise

    def _answer(self, prepared: Prepared) -> str | None:
        if self.is_opening:
            self.asked_at_opening.add(prepared.transaction_id)
            return None
        half = self.model.halves[prepared.transaction_id]
        assert not half.outcome, f"asked about {half}"
        assert not half.in_block, f"asked about {half}"
        assert half.due_ms <= self.clock.now_ms, f"asked about {half}"
        assert prepared.checks == half.asked + 1
        answer = half.answers[half.asked]
        half.asked, half.due_ms = half.asked + 1, self.clock.now_ms + INTERVAL_MS
        if answer is not None:
            self.model.finish(half, answer)
        return answer


class Producing(Player):
    """A store, what is put to it, and the model."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Its file is large for a simulated disk.
        self.has_timers = not world.has_power or world.chance.random() < 0.05
        self.model = Model()
        self.check_back = CheckBack(self.model, world.clock)
        world.settings |= {
            "retention": [], "write": world.chance.choice(("mmap", "file")), "check_back": {"shop": self.check_back},
            "extensions.messaging.checks_max": CHECKS_MAX,
        }  # fmt: skip
        self.prepared: dict[str, Prepared] = {}
        self._sent = 0
        # Up to where the log is durable, now and when the step began; and where it ended then.
        self._synced = self._durable = self._end_before = 0
        # Stores of processes that have died.
        self._dead: list[Store] = []
        self._open()

    # --- steps

    @property
    def now(self) -> int:
        return self.world.clock.now_ms

    def _begin(self, chance: Random) -> None:
        while self._image is not None:
            # It was taken at the end of the last crash.
            self._come_back(chance.choice(tuple(Survival)), chance)
        self.world.clock.now_ms += chance.choice((0, 1, 300))
        self._remember()
        if chance.random() < 0.1:
            self._doom(chance)

    def _remember(self) -> None:
        """Keep what is promised now, for a crash in what follows."""
        self._durable = max(self._durable, self._synced)
        self._end_before = self.store.stats()["log_end_offset"]
        for promise in self.model.promises:
            promise.is_sure = True

    def _look(self) -> None:
        self._see()

    def _explain(self, group: str, letter: Record) -> None:
        """Called with each dead letter, before it must have been promised."""

    def _see(self) -> None:
        """Hold what topics have got against what was promised."""
        found: list[StoredMessage] = []
        for topic, queues in self.store.topics(system=True).items():
            for queue in queues:
                start = len(self.model.records.get((topic, queue), ()))
                if self.store.max_offset(topic, queue) > start:
                    found += self.store.scan(topic, queue=queue, start={(topic, queue): start})
        for message in sorted(found, key=lambda each: each.log_offset):
            self._see_one(self._record(message), message.all_properties)
        assert not self.check_back.wrong, self.check_back.wrong
        for half in self.model.halves.values():
            assert self.model.is_open(half) == (not half.outcome), f"open or not? {half}"

    def _see_one(self, record: Record, properties: Mapping[str, str]) -> None:
        topic = record.place[0]
        if record.place == LATE_HALVES:
            (half,) = (each for each in self.model.halves.values() if each.body == record.body)
            assert half.asked == CHECKS_MAX, f"given up: {half}"
            assert half.due_ms <= self.now, f"given up: {half}"
            half.outcome = "late"
        elif topic.startswith("%DLQ%"):
            self._explain(topic.removeprefix("%DLQ%"), record)
        is_own = (
            record.place in (HALVES, REMOVALS, LATE_HALVES) or "TIMER_DEL_UNIQKEY" in properties
        )
        if is_own:
            self.model.records.setdefault(record.place, []).append(record)
        else:
            self.model.see(record, self.now)

    def _record(self, message: StoredMessage) -> Record:
        given, due_ms, target = message.all_properties, 0, None
        if message.topic in (WAITING, TIMERS):
            target = given["REAL_TOPIC"], int(given["REAL_QID"])
            due_ms = message.store_time_ms + 1000 * LEVELS_S[message.queue]
        if message.topic == TIMERS:
            due_ms = int(given["TIMER_DELIVER_MS"])
        return Record(
            (message.topic, message.queue), message.queue_offset, message.log_offset, message.body, message.tag,
            message.reconsume_times, (message.topic, message.message_id), target, due_ms,
        )  # fmt: skip

    # --- time

    def _pass(self, ms: int) -> None:
        """Let time pass, and all threads do what there is to do."""
        self._round()
        self.world.clock.now_ms += ms
        for _ in range(ROUNDS):
            self._round()

    def _round(self) -> None:
        for half in self.model.halves.values():
            if half.in_block and half.due_ms <= self.now:
                half.due_ms = self.now + INTERVAL_MS
        self.world.work()

    # --- producers

    def _message(self, chance: Random) -> Message:
        self._sent += 1
        topic, queue = chance.choices(TOPICS, (3, 1))[0], chance.randrange(QUEUES)
        body = b"%d" % self._sent + b"." * chance.choice((0, 50, 1000))
        return Message(topic, body, queue=queue, tag=chance.choice(TAGS))

    def _promise(self, message: Message, place: Place | None = None) -> None:
        at = message.topic, message.queue or 0
        target = message.topic if place else ""
        self.model.promises.append(Promise(place or at, message.body, target=target))

    def _is_durable(self, *receipts: Receipt) -> None:
        for each in receipts:
            if each.durability is Durability.ON_DISK:
                self._synced = max(self._synced, each.log_offset + each.size)

    def _put(self, chance: Random) -> None:
        given = [self._message(chance) for _ in range(chance.choice((1, 1, 4)))]
        for message in given:
            self._promise(message)
        self._is_durable(*self.store.put_many(given))

    def _delay(self, chance: Random) -> None:
        """Put a message that waits for a level, or for a time."""
        message, delay_ms = self._message(chance), chance.choice((1, 250, 1000, 9999, 65_000))
        level, is_time = chance.randint(1, 5), self.has_timers and chance.random() < 0.5
        if not is_time:
            message.delay_level = level
        elif chance.random() < 0.5:
            message.delay = delay_ms / 1000
        else:
            message.deliver_at = datetime.fromtimestamp((self.now + delay_ms) / 1000, UTC)
        self._promise(message, (TIMERS, 0) if is_time else (WAITING, level - 1))
        self._is_durable(*self.store.put_many([message]))

    def _cancel(self, chance: Random) -> None:
        # After a kill, a round finds what was delivered.
        self._round()
        self._see()
        waiting = self.store.delayed()
        expected = [
            p for p in self.model.promises if p.is_open and p.source and p.source.place[0] == TIMERS
        ]  # fmt: skip
        listed = sorted((each.due_ms, each.topic, each.queue) for each in waiting)
        known = sorted((each.due_ms, *each.place) for each in expected)
        assert listed == known, f"{listed} wait, and not {known}"
        if waiting:
            one = chance.choice(waiting)
            (promise,) = (p for p in expected if p.source and p.source.first[1] == one.message_id)
            promise.cancelled_at = self.store.stats()["log_end_offset"]
            assert self.store.cancel_delayed(one.message_id)

    def _transaction(self, chance: Random) -> None:
        given = [self._message(chance) for _ in range(chance.randint(1, 3))]
        fails = chance.random() < 0.3
        with suppress(ZeroDivisionError), self.store.transaction() as tx:
            tx.put_many(given)
            if fails:
                raise ZeroDivisionError
        if not fails:
            for message in given:
                self._promise(message)
            self._is_durable(*tx.receipts)

    def _flush(self, _chance: Random) -> None:
        self._synced = max(self._synced, self.store.flush())

    # --- prepared messages

    def _prepare(self, chance: Random) -> None:
        message = self._message(chance)
        prepared = self.store.prepare(
            message.topic, message.body, queue=message.queue, tag=message.tag, group="shop"
        )
        half = Half(
            message.body, (message.topic, message.queue or 0), self.now + IMMUNITY_MS, self.now,
            tuple(chance.choice((None, None, "commit", "rollback")) for _ in range(CHECKS_MAX)),
        )  # fmt: skip
        self.model.halves[prepared.transaction_id] = half
        self.prepared[prepared.transaction_id] = prepared
        self._synced = max(self._synced, prepared.message.log_offset)

    def _finish(self, chance: Random) -> None:
        if not self.prepared:
            return
        name = chance.choice(list(self.prepared))
        prepared, half = self.prepared[name], self.model.halves[name]
        way = chance.choice(("commit", "rollback", "block", "error"))
        if half.outcome:
            self._refused(prepared)
        elif way in ("commit", "rollback"):
            getattr(prepared, way)()
            self.model.finish(half, way)
        else:
            half.in_block = True
            with suppress(ZeroDivisionError), prepared:
                self._pass(chance.choice((0, IMMUNITY_MS, INTERVAL_MS)))
                if way == "error":
                    raise ZeroDivisionError
            half.in_block = False
            if way == "block":
                self.model.finish(half, "commit")

    def _refused(self, prepared: Prepared) -> None:
        for call in (prepared.commit, prepared.rollback):
            with suppress(PreparedFinishedError):
                call()
                raise AssertionError("finished twice")

    # --- coming back

    def _crash(self, survival: Survival, chance: Random) -> bool:
        self._dead.append(self.store)
        return super()._crash(survival, chance)

    def _open(self) -> None:
        self.check_back.is_opening, self.check_back.asked_at_opening = True, set()
        self.store = self.world.open()
        self.check_back.is_opening = False

    def _take_halves(self) -> None:
        """Take over which prepared messages are open, and have been asked about: an opening asks about what is old."""
        self.prepared = {each.transaction_id: each for each in self.store.prepared()}
        for name, half in self.model.halves.items():
            half.due_ms = max(half.born_ms + IMMUNITY_MS, self.now)
            if name in self.check_back.asked_at_opening:
                assert not half.outcome, f"asked about {half}"
                assert half.due_ms <= self.now, f"asked about {half}"
                half.asked, half.due_ms = half.asked + 1, self.now + INTERVAL_MS

    def _reconcile(self, *, is_kill: bool) -> None:
        report = self.store.recovery
        assert report is not None
        least = self._end_before if is_kill else self._durable
        assert report.log_end >= least, f"the log ends at {report.log_end}, not at {least}"
        self.model.cut(report.log_end)
        self._synced = report.log_end
        self._forget(is_kill=is_kill)
        self._take_halves()
        self._see()
        self.model.settle()
        self._remember()

    def _forget(self, *, is_kill: bool) -> None:
        """Called after a crash, before anything is seen."""
