"""Prepared messages on a disk that loses power, and in a process that is killed, before each call of a story that finishes some.

Whatever survives: a message that was prepared is open, or finished as the program wanted; none is committed twice, none that was
rolled back is seen, and what was finished and durable stays so.
"""

import functools
from pathlib import Path
from random import Random

import attrs
import pytest
from tests.conftest import messages_in
from tests.lanes import cases

from penstock import Store
from penstock.contracts import Prepared
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Image, Survival

ROOT = Path("/store")
WORKER = "penstock-check-back"
MINUTE = 60_000


@attrs.frozen
class Moment:
    """The disk before a call, and what was promised then, each by the bodies of messages.

    Attributes:
        begun: `prepare` was called.
        kept: `prepare` had returned, so the message was durable.
        deciding: a commit or rollback was called, or a check-back may have been asked.
        sure: that had returned, and was durable.
        done: that had returned.
    """

    call: str
    image: Image
    now_ms: int
    begun: frozenset[bytes]
    kept: frozenset[bytes]
    deciding: frozenset[bytes]
    done: frozenset[bytes]
    sure: frozenset[bytes]


def is_to_commit(body: bytes) -> bool:
    return body.startswith(b"commit")


def answer(prepared: Prepared) -> str | None:
    body = prepared.message.body
    if b"late" in body and prepared.checks < 2:
        return None
    return "commit" if is_to_commit(body) else "rollback"


class Tale:
    """Prepares and finishes on a simulated disk, and keeps an image of the disk before each call that changes it."""

    def __init__(self, flush: str) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock, seed=7, write_back=0.05)
        self.flush = flush
        self.moments: list[Moment] = []
        self.begun: set[bytes] = set()
        self.kept: set[bytes] = set()
        self.deciding: set[bytes] = set()
        self.done: set[bytes] = set()
        self.sure: set[bytes] = set()
        self.disk.plan.watch = self._remember

    def _remember(self, call: str, path: Path) -> None:
        promised = (self.begun, self.kept, self.deciding, self.done, self.sure)
        self.moments.append(Moment(f"{call} {path.name}", self.disk.image(), self.clock.now_ms, *map(frozenset, promised)))  # fmt: skip

    def run(self) -> None:
        for opening in range(2):
            store, workers = opened(self.disk, self.flush)
            for turn in range(2):
                self._round(store, workers, b"%d%d" % (opening, turn))
            store.close()
            self.sure = set(self.done)
        store, workers = opened(self.disk, self.flush)
        self.deciding |= self.begun
        finish_all(store, workers, self.clock)
        store.close()

    def _prepare(self, store: Store, body: bytes) -> Prepared:
        self.begun.add(body)
        made = store.prepare("orders", body, group="g", keys=["k"])
        self.kept.add(body)
        return made

    def _round(self, store: Store, workers: InlineWorkers, name: bytes) -> None:
        for kind in (b"commit", b"rollback"):
            for when in (b"now", b"asked", b"late", b"open"):
                body = b"%s %s %s" % (kind, when, name)
                made = self._prepare(store, body)
                if when == b"now":
                    self.deciding.add(body)
                    made.commit() if is_to_commit(body) else made.rollback()
                    self.done.add(body)
        store.flush()
        self.sure = set(self.done)
        self.clock.now_ms += MINUTE
        self.deciding |= self.begun
        workers.run(WORKER)
        left = {each.message.body for each in store.prepared()}
        self.done = self.begun - left
        self._prepare(store, b"commit new " + name)


def opened(disk: SimulatedDisk, flush: str) -> tuple[Store, InlineWorkers]:
    workers, clock = InlineWorkers(), disk.clock
    assert isinstance(clock, ManualClock)
    return open_store(ROOT, files=disk, clock=clock, spawn=workers, flush=flush, check_back=answer), workers  # fmt: skip


def finish_all(store: Store, workers: InlineWorkers, clock: ManualClock) -> None:
    for _ in range(4):
        clock.now_ms += MINUTE
        if WORKER in workers.by_name:
            workers.run(WORKER)
    assert store.prepared() == []


@functools.cache
def told(flush: str) -> list[Moment]:
    tale = Tale(flush)
    tale.run()
    # Flushing each put makes many more calls, and few that differ.
    return tale.moments[:: 3 if flush == "sync" else 1]


def checked(moment: Moment, survival: Survival, flush: str, chance: int) -> SimulatedDisk:
    """Open the disk that a crash leaves, and check what is there, now and when everything is finished; returns that disk."""
    clock = ManualClock(moment.now_ms)
    disk = SimulatedDisk.after(moment.image, survival, Random(chance), clock=clock)
    about = f"{survival.value} before {moment.call}"
    store, workers = opened(disk, flush)
    seen = [message.body for message in messages_in(store, "orders")]
    left = [each.message.body for each in store.prepared()]
    assert len(set(seen)) == len(seen), f"twice: {about}"
    assert len(set(left)) == len(left), about
    assert not set(seen) & set(left), f"committed and open: {about}"
    assert set(seen) <= {body for body in moment.deciding if is_to_commit(body)}, about
    assert set(left) <= moment.begun, about
    ended = moment.done if survival is Survival.PROCESS else moment.sure
    # The commit in progress of a killed process may be there.
    gone = moment.kept - set(left) - set(seen)
    assert gone <= {body for body in moment.deciding if not is_to_commit(body)}, f"lost: {gone} {about}"  # fmt: skip
    assert {body for body in ended if is_to_commit(body)} <= set(seen), about
    assert not ended & set(left), about
    finish_all(store, workers, clock)
    final = [message.body for message in messages_in(store, "orders")]
    assert sorted(final) == sorted(set(seen) | {body for body in left if is_to_commit(body)}), about
    assert [finding.text for finding in store.verify()] == []
    return disk


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_after_a_crash_before_any_call_each_message_is_finished_once(
    flush: str, survival: Survival
) -> None:
    for number, moment in enumerate(cases(told(flush), f"{flush} {survival}", of_so_many=20)):
        checked(moment, survival, flush, number)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_crash_while_the_opening_finishes_loses_nothing_either(flush: str) -> None:
    """The second crash is a kill before a call of the opening, or of the check-backs after it."""
    for number, moment in enumerate(cases(told(flush)[::9], flush, of_so_many=20)):
        clock = ManualClock(moment.now_ms)
        disk = SimulatedDisk.after(moment.image, Survival.PROCESS, Random(number), clock=clock)
        images: list[Image] = []
        disk.plan.watch = lambda call, path, disk=disk, images=images: images.append(disk.image())
        store, workers = opened(disk, flush)
        finish_all(store, workers, clock)
        store.close()
        # By then, anything may be decided.
        later = attrs.evolve(moment, deciding=moment.begun, done=frozenset(), sure=frozenset())
        for image in images[::7]:
            checked(attrs.evolve(later, image=image, now_ms=clock.now_ms), Survival.PROCESS, flush, number)  # fmt: skip
