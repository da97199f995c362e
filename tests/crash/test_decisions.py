"""Transactions that consume and produce, over every crash: an input is consumed if and only if all its outputs are there, once each.

A crash comes before each call of a story on a simulated disk, and before each call of the opening that follows.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.conftest import messages_in
from tests.lanes import NIGHT, rounds

from penstock import Message, Store
from penstock.contracts import ConsumedMessage, Consumer
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Image, Survival
from penstock_messaging.extension import MessagingExtension

ROOT = Path("/store")
GROUP, SOURCE, TARGETS = "billing", "in", ("out", "more")
SETTINGS: dict[str, Any] = {"retention": []}
STEPS = 14
Input = tuple[int, int]


@attrs.frozen
class Moment:
    """The disk before a call, and what was promised then.

    Attributes:
        done: the inputs of transactions that had ended well.
        doing: those of the transaction that was ending.
        plain: those that were acknowledged without a transaction, or may have been.
    """

    call: str
    image: Image
    done: frozenset[Input]
    doing: frozenset[Input]
    plain: frozenset[Input]


class Tale:
    """One process after the other that moves messages, each acknowledgement together with two messages."""

    def __init__(self, seed: int, disk: SimulatedDisk | None = None) -> None:
        self.chance = Random(seed)
        self.disk = disk or SimulatedDisk(clock=ManualClock(), seed=seed, write_back=0.05)
        self.moments: list[Moment] = []
        self.done: set[Input] = set()
        self.doing: frozenset[Input] = frozenset()
        self.plain: set[Input] = set()
        self.put = 0
        self.open()
        self.add(12)

    def remember(self, call: str, path: Path) -> None:
        """Keep the disk as it is before a call."""
        self.moments.append(Moment(
            f"{call} {path.name}", self.disk.image(), frozenset(self.done), self.doing, frozenset(self.plain),
        ))  # fmt: skip

    def open(self) -> None:
        """Open the store, and join the group."""
        self.store, self.consumer = opened(self.disk)

    def add(self, count: int = 4) -> None:
        """Put inputs into two queues."""
        self.store.put_many([Message(SOURCE, b"x", queue=n % 2) for n in range(count)])

    def run(self) -> None:
        """Play some steps; each call that changes the disk is a moment."""
        self.disk.plan.watch = self.remember
        names = ["move", "move", "move", "fail", "ack", "add", "reopen", "rejoin", "full", "other"]
        for _ in range(STEPS):
            name = self.chance.choice(names)
            getattr(self, name)()
        self.disk.plan.watch = None

    def take(self) -> Sequence[ConsumedMessage]:
        """Take up to three messages."""
        return self.consumer.poll(self.chance.randint(1, 3), 0)

    def move(self) -> None:
        """Consume and produce in one transaction."""
        given = self.take()
        self.doing = frozenset(map(key, given))
        with self.store.transaction() as tx:
            for message in given:
                tx.ack(message)
                for topic in TARGETS:
                    tx.put(topic, "{}:{}".format(*key(message)).encode(), queue=0)
        self.done |= self.doing
        self.doing = frozenset()

    def fail(self) -> None:
        """Drop a transaction; its messages are released."""
        given = self.take()
        with pytest.raises(ZeroDivisionError), self.store.transaction() as tx:
            tx.ack(given)
            tx.put(TARGETS[0], b"never", queue=0)
            raise ZeroDivisionError
        self.consumer.release(given)

    def ack(self) -> None:
        """Acknowledge without a transaction."""
        given = self.take()
        self.plain |= set(map(key, given))
        self.consumer.ack(given, sync=self.chance.random() < 0.5)

    def full(self) -> None:
        """Remove what is over from the file, as a full one does."""
        messaging = self.store.lowlevel.extension("messaging")
        assert isinstance(messaging, MessagingExtension)
        deciding = messaging._parts.get("deciding")
        if deciding is not None:
            deciding._is_stale = True
            deciding.step()

    def other(self) -> None:
        """Flush, so that what follows is told from what was before."""
        self.store.flush()

    def rejoin(self) -> None:
        """Give all queues back, and take them again."""
        self.consumer.close()
        self.consumer = self.store.consumer(GROUP, SOURCE)

    def reopen(self) -> None:
        """Close the store, and open it again."""
        self.consumer.close()
        self.store.close()
        self.open()


def key(message: ConsumedMessage) -> Input:
    """Return what tells an input from others."""
    return message.queue, message.queue_offset


def opened(disk: SimulatedDisk) -> tuple[Store, Consumer]:
    """Open the store with its consumer."""
    clock = disk.clock
    assert isinstance(clock, ManualClock)
    store = open_store(ROOT, files=disk, clock=clock, spawn=InlineWorkers(), **SETTINGS)
    return store, store.consumer(GROUP, SOURCE)


def outputs(store: Store) -> dict[str, Counter[Input]]:
    """Return how often each input has gone to each topic."""
    found = {}
    for topic in TARGETS:
        bodies = [message.body.decode().split(":") for message in messages_in(store, topic)]
        found[topic] = Counter((int(queue), int(offset)) for queue, offset in bodies)
    return found


def wrong_with(store: Store, consumer: Consumer, moment: Moment) -> str:
    """Return what does not hold; "" if all does."""
    ends = {queue: store.max_offset(SOURCE, queue) for queue in (0, 1)}
    first, second = outputs(store).values()
    made, doubts = set(first), moment.doing
    handed = Counter(map(key, consumer.poll(1000, 0)))
    inputs = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    wrong = {
        "in part": first != second,
        "twice": max(first.values(), default=1) > 1,
        "lost": moment.done - made,
        "stored of part of the inputs": made - moment.done not in (set(), doubts),
        "of lost inputs": made - inputs,
        "handed out twice": max(handed.values(), default=1) > 1,
        "stored and handed out again": made & set(handed),
        "neither handed out nor stored": inputs - made - set(handed) - moment.plain,
    }
    return "; ".join(f"{name}: {what}" for name, what in wrong.items() if what)


def after(disk: SimulatedDisk, moment: Moment) -> str:
    """Open a crashed disk, and return what does not hold."""
    try:
        store, consumer = opened(disk)
        wrong = wrong_with(store, consumer, moment)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return wrong


@pytest.mark.parametrize("seed", range(rounds(gate=3, night=9)))
def test_an_input_is_consumed_if_and_only_if_its_outputs_are_there(seed: int) -> None:
    chance = Random(seed)
    tale = Tale(seed)
    tale.run()
    assert tale.done
    found: list[tuple[object, ...]] = []
    count = 0
    for number, moment in enumerate(tale.moments):
        # Others are explored by the tests of groups and of batches.
        rare = 6 if "decisions" in moment.call else 30
        if not NIGHT and chance.randrange(rare):
            continue
        for survival in tuple(Survival) if NIGHT else [chance.choice(tuple(Survival))]:
            disk = SimulatedDisk.after(moment.image, survival, Random(f"{seed} {number}"))
            count += 1
            again: list[tuple[str, Image]] = []
            disk.plan.watch = lambda call, path: again.append((f"{call} {path.name}", disk.image()))  # noqa: B023
            wrong = after(disk, moment)
            if wrong:
                found.append((number, moment.call, survival.value, wrong))
            if not again or chance.random() < 0.5:
                continue
            # The opening is cut off as well.
            call, image = chance.choice(again)
            second = chance.choice(tuple(Survival))
            wrong = after(SimulatedDisk.after(image, second, Random(f"{seed} {number} 2")), moment)
            if wrong:
                found.append((number, moment.call, survival.value, call, second.value, wrong))
    assert count
    assert found == []
