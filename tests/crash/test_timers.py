"""Messages that wait for a time, on a disk that loses power, and in a process that is killed, before each call of a story that
delivers, rolls, cancels, closes and opens.

Whatever survives, each durable message is delivered, none before its time, none that was cancelled, and
none twice. The same holds if a second crash follows.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs
import pytest
from tests.conftest import messages_in
from tests.lanes import cases

from penstock import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Image, Survival
from penstock_messaging.timers import timer_queue, timer_state
from penstock_messaging.timers.timer_state import TimerSizes

ROOT = Path("/store")
WORKER = "penstock-timers"
# A window of 20 s, so that some messages are put to the timer topic again.
WINDOW_MS = 20_000
SIZES = TimerSizes(slots=600, log_file_bytes=52 * 12 + 16)
DELAYS_MS = (300, 900, 2400, 7000, 30_000)
LATER_MS = 120_000
# The second crash comes before this time is over.
SECOND_LIFE_MS = 9000


@attrs.frozen
class TimerMoment:
    """The disk before a call, and what was promised then.

    Attributes:
        put: when each message that the store had taken was due, by its body.
        durable: the bodies of those that were durable.
        cancelled: the bodies of messages whose cancelling call had returned.
        cancelling: the bodies of those for which it had begun.
    """

    call: str
    image: Image
    now_ms: int
    put: dict[bytes, int]
    durable: frozenset[bytes]
    cancelled: frozenset[bytes]
    cancelling: frozenset[bytes]


class TimerTale:
    """Puts, delivers and cancels on a simulated disk, and keeps an image of the disk before each call that changes it."""

    def __init__(self, flush: str) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock, seed=11, write_back=0.05)
        self.flush = flush
        self.moments: list[TimerMoment] = []
        self.put: dict[bytes, int] = {}
        self.durable: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.cancelling: set[bytes] = set()
        self.disk.plan.watch = self._remember

    def _remember(self, call: str, path: Path) -> None:
        self.moments.append(TimerMoment(
            f"{call} {path.name}", self.disk.image(), self.clock.now_ms, dict(self.put),
            frozenset(self.durable), frozenset(self.cancelled), frozenset(self.cancelling),
        ))  # fmt: skip

    def run(self) -> None:
        for _ in range(2):
            store, workers = opened(self.disk, self.flush)
            self._round(store, workers)
            store.close()
            self.durable = set(self.put)
            self.clock.now_ms += 1500

    def _round(self, store: Store, workers: InlineWorkers) -> None:
        receipts = {}
        for delay_ms in DELAYS_MS:
            for _ in range(2):
                body = b"%d" % len(self.put)
                self.put[body] = self.clock.now_ms + delay_ms
                receipts[body] = store.put("orders", body, queue=0, delay=delay_ms / 1000)
        store.flush()
        self.durable = set(self.put)
        self._pass(store, workers, 1700)
        # One that waits, and one that is put to the timer topic again on the way.
        for back in (3, 1):
            body = b"%d" % (len(self.put) - back)
            self.cancelling.add(body)
            assert store.cancel_delayed(receipts[body])
            self.cancelled.add(body)
        self._pass(store, workers, 10_000)

    def _pass(self, store: Store, workers: InlineWorkers, ms: int) -> None:
        """Let time go by in steps of 850 ms, so that seconds are delivered in part."""
        for _ in range(ms // 850):
            self.clock.now_ms += 850
            turn(workers)


def turn(workers: InlineWorkers) -> None:
    while WORKER in workers.by_name and workers.run(WORKER) == 0:
        pass


def opened(disk: SimulatedDisk, flush: str) -> tuple[Store, InlineWorkers]:
    workers = InlineWorkers()
    clock = disk.clock
    assert isinstance(clock, ManualClock)
    return open_store(ROOT, files=disk, clock=clock, spawn=workers, flush=flush), workers


def delivered(store: Store) -> list[bytes]:
    return [message.body for message in messages_in(store, "orders")]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        yield


def small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timer_state, "SIZES", SIZES)
    patch.setattr(timer_queue, "_WINDOW_MS", WINDOW_MS)


@functools.cache
def told(flush: str) -> list[TimerMoment]:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        tale = TimerTale(flush)
        tale.run()
    return tale.moments


def finished(
    image: Image, survival: Survival, now_ms: int, flush: str, chance: Random
) -> list[tuple[bytes, int]]:
    """Return what is delivered in the end, and when, after a crash and a second one some seconds later."""
    clock = ManualClock(now_ms)
    disk = SimulatedDisk.after(image, survival, chance, clock=clock)
    _, workers = opened(disk, flush)
    for ms in (0, chance.randrange(SECOND_LIFE_MS)):
        clock.now_ms += ms
        turn(workers)
    disk = SimulatedDisk.after(disk.image(), survival, chance, clock=clock)
    store, workers = opened(disk, flush)
    for _ in range(12):
        turn(workers)
        clock.now_ms += LATER_MS // 12
    turn(workers)
    store.close()
    store, workers = opened(disk, flush)
    assert WORKER not in workers.by_name, "after a clean close nothing that is due is left"
    found = [(message.body, message.store_time_ms) for message in messages_in(store, "orders")]
    assert [finding.text for finding in store.verify()] == []
    store.close()
    return found


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_after_a_crash_before_any_call_every_message_is_delivered_at_its_time(
    flush: str, survival: Survival
) -> None:
    chance = Random(f"{flush} {survival}")
    for moment in cases(told(flush), f"{flush} {survival}", of_so_many=30):
        found = finished(moment.image, survival, moment.now_ms, flush, chance)
        bodies = [body for body, _ in found]
        about = f"{survival.value} before {moment.call}: {bodies}"
        early = [body for body, at_ms in found if at_ms < moment.put[body]]
        assert not early, f"{early} early, {about}"
        lost = moment.durable - moment.cancelling - set(bodies)
        assert not lost, f"{lost} lost, {about}"
        assert not moment.cancelled & set(bodies), f"delivered though cancelled: {about}"
        assert len(bodies) == len(set(bodies)), f"delivered again: {about}"
