"""Delayed messages on a disk that loses power, and in a process that is killed, before each call of a story that delivers.

Whatever survives, each delayed message that was durable is delivered, in the order of its level, and once.
"""

import functools
from collections import Counter
from pathlib import Path
from random import Random

import attrs
import pytest
from tests.conftest import messages_in
from tests.lanes import cases

import penstock
from penstock import Message, Store
from penstock.format.names import LOST_END
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Image, Survival
from penstock_messaging.delays.levels import delay_ms

ROOT = Path("/store")
WORKER = "penstock-deliver"
HOUR = 3_600_000


@attrs.frozen
class Moment:
    """The disk before a call, and what was promised then.

    Attributes:
        put: how many messages of each level the store had taken.
        durable: how many of them were durable.
        delivered: how many of each level had been delivered by a call that had returned.
    """

    call: str
    image: Image
    now_ms: int
    put: dict[int, int]
    durable: dict[int, int]
    delivered: dict[int, int]


class Tale:
    """Puts and delivers on a simulated disk, and keeps an image of the disk before each call that changes it."""

    def __init__(self, flush: str) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock, seed=7, write_back=0.05)
        self.flush = flush
        self.moments: list[Moment] = []
        self.put: Counter[int] = Counter()
        self.durable: dict[int, int] = {}
        self.delivered: dict[int, int] = {}
        self.disk.plan.watch = self._remember

    def _remember(self, call: str, path: Path) -> None:
        self.moments.append(Moment(
            f"{call} {path.name}", self.disk.image(), self.clock.now_ms, dict(self.put), dict(self.durable),
            dict(self.delivered),
        ))  # fmt: skip

    def run(self) -> None:
        """Deliver in four rounds, with a clean close between the second and the third."""
        for opening in range(2):
            store, workers = opened(self.disk, self.flush)
            for _ in range(2):
                self._round(store, workers)
            store.close()
            self.durable = dict(self.put)
            self.clock.now_ms += opening * HOUR

    def _round(self, store: Store, workers: InlineWorkers) -> None:
        for level in (1, 1, 2, 1, 2):
            self.put[level] += 1
            store.put("orders", b"%d:%d" % (level, self.put[level] - 1), queue=0, delay_level=level)
        store.flush()
        self.durable = dict(self.put)
        for level in (1, 2):
            self.clock.now_ms += delay_ms(level)
            workers.run(WORKER)
            # Level 1 is delivered with each round, level 2 once its delay is over.
            self.delivered = counted(store)
        self.clock.now_ms += 1000
        workers.run(WORKER)


def opened(disk: SimulatedDisk, flush: str) -> tuple[Store, InlineWorkers]:
    workers = InlineWorkers()
    clock = disk.clock
    assert isinstance(clock, ManualClock)
    return open_store(ROOT, files=disk, clock=clock, spawn=workers, flush=flush), workers


def bodies(store: Store) -> list[tuple[int, int]]:
    """Return (level, number) of each delivered message."""
    found = [message.body.split(b":") for message in messages_in(store, "orders")]
    return [(int(level), int(number)) for level, number in found]


def counted(store: Store) -> dict[int, int]:
    return dict(Counter(level for level, _ in bodies(store)))


@functools.cache
def told(flush: str) -> list[Moment]:
    tale = Tale(flush)
    tale.run()
    assert tale.delivered == dict(tale.put) == {1: 12, 2: 8}
    return tale.moments


def finished(image: Image, survival: Survival, now_ms: int, flush: str) -> list[tuple[int, int]]:
    """Return what is delivered in the end, after a crash and a power cut of the first opening's disk."""
    disk = SimulatedDisk.after(image, survival, Random(now_ms), clock=ManualClock(now_ms + HOUR))
    store, workers = opened(disk, flush)
    if WORKER in workers.by_name:
        workers.run(WORKER)
    store.close()
    store, workers = opened(disk, flush)
    assert WORKER not in workers.by_name, "after a clean close nothing that is due is left"
    found = bodies(store)
    assert [finding.text for finding in store.verify()] == []
    store.close()
    return found


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_after_a_crash_before_any_call_every_message_is_delivered(
    flush: str, survival: Survival
) -> None:
    for moment in cases(told(flush), f"{flush} {survival}", of_so_many=20):
        found = finished(moment.image, survival, moment.now_ms, flush)
        least = moment.durable if survival is not Survival.PROCESS else moment.put
        for level in (1, 2):
            numbers = [number for each, number in found if each == level]
            firsts = list(dict.fromkeys(numbers))
            about = f"level {level}, {survival.value} before {moment.call}: {numbers}"
            assert firsts == [*range(len(firsts))], f"lost or out of order: {about}"
            # The put in progress may be lost, also by a kill.
            in_progress = int(survival is Survival.PROCESS)
            assert len(firsts) >= least.get(level, 0) - in_progress, about
            assert firsts == numbers, f"delivered again: {about}"


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_crash_while_the_opening_delivers_loses_nothing_either(flush: str) -> None:
    """The second crash comes before a call of the opening and of its first delivery."""
    for moment in cases(told(flush)[::7], flush, of_so_many=20):
        disk = SimulatedDisk.after(
            moment.image, Survival.PROCESS, Random(1), clock=ManualClock(moment.now_ms + HOUR)
        )
        images: list[Image] = []
        disk.plan.watch = lambda call, path, disk=disk, images=images: images.append(disk.image())
        store, workers = opened(disk, flush)
        if WORKER in workers.by_name:
            workers.run(WORKER)
        store.close()
        everything = set(finished(disk.image(), Survival.PROCESS, moment.now_ms, flush))
        for number, image in enumerate(images[::5]):
            survival = (Survival.NONE, Survival.PAGES, Survival.PROCESS)[number % 3]
            found = finished(image, survival, moment.now_ms + number, flush)
            least = {(level, n) for level, count in moment.durable.items() for n in range(count)}
            assert least <= set(found) <= everything, f"{moment.call}, then {survival.value}"


def test_what_was_delivered_after_where_the_log_was_cut_is_delivered_again_and_nothing_else() -> None:  # fmt: skip
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    for number in range(3):
        store.put("orders", b"1:%d" % number, queue=0, delay_level=1)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    second = [message.log_offset for message in messages_in(store, "orders")][1]
    store.close()
    with penstock.open_follower(ROOT, cut_at=second, files=disk, clock=clock, spawn=InlineWorkers(), environ={}):  # fmt: skip
        pass
    for _ in range(2):
        store, workers = opened(disk, "sync")
        if WORKER in workers.by_name:
            workers.run(WORKER)
        assert bodies(store) == [(1, 0), (1, 1), (1, 2)]
        store.close()


def test_what_was_delivered_before_a_kill_is_counted_though_it_is_not_due_by_the_next_clock() -> None:  # fmt: skip
    """Another level was saved meanwhile, and the copy was then taken for one that the table counts."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    store.put("orders", b"2:0", queue=0, delay_level=2)
    clock.now_ms += delay_ms(2)
    workers.run(WORKER)
    assert bodies(store) == [(2, 0)]
    # A copy that is promoted has another clock.
    behind = ManualClock(clock.now_ms - HOUR)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=behind)
    for _ in range(2):
        store, workers = opened(disk, "sync")
        store.put("orders", b"1:0", queue=0, delay_level=1)
        behind.now_ms += delay_ms(1)
        workers.run(WORKER)
        store.close()
    behind.now_ms += 2 * HOUR
    store, workers = opened(disk, "sync")
    if WORKER in workers.by_name:
        workers.run(WORKER)
    assert bodies(store) == [(2, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("ahead", "put", "delivered", "opened_at"),
    [(0, 0, -HOUR, -HOUR + 1000), (24 * HOUR, 0, HOUR, HOUR + 1000), (0, 0, -HOUR, 1000)],
    ids=["the clock went back", "a record is a day ahead", "the clock went back and is right again"],
)  # fmt: skip
def test_what_a_clock_delivered_that_went_back_is_counted_after_a_kill(
    ahead: int, put: int, delivered: int, opened_at: int
) -> None:
    """Such a copy was stored before its message was due, and was not taken for one."""
    clock = ManualClock()
    disk, begin = SimulatedDisk(clock=clock), clock.now_ms
    store, workers = opened(disk, "sync")
    clock.now_ms = begin + ahead
    store.put("fill", b"x", queue=0)
    clock.now_ms = begin + put
    store.put("orders", b"9:0", queue=0, delay_level=9)
    clock.now_ms = begin + delivered
    workers.run(WORKER)
    assert bodies(store) == [(9, 0)]
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
    for at in (opened_at, 48 * HOUR):
        clock.now_ms = begin + at
        store, workers = opened(disk, "sync")
        if WORKER in workers.by_name:
            workers.run(WORKER)
        assert bodies(store) == [(9, 0)]
        store.close()


def test_a_table_of_a_longer_log_that_cannot_be_removed_is_not_believed_later() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    for number in range(2):
        store.put("orders", b"1:%d" % number, queue=0, delay_level=1)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    first = messages_in(store, "orders")[0].log_offset
    store.close()
    table = disk.read_whole(ROOT / "config" / "delayOffset.json")
    with penstock.open_follower(ROOT, cut_at=first, files=disk, clock=clock, spawn=InlineWorkers(), environ={}):  # fmt: skip
        pass
    # As a copy of the file that is older than the cut.
    disk.remove(ROOT / LOST_END)
    disk.write_whole(ROOT / "config" / "delayOffset.json", table)
    disk.plan.fail("remove", path="delayOffset.json", times=1)
    for _ in range(2):
        store, workers = opened(disk, "sync")
        if WORKER in workers.by_name:
            workers.run(WORKER)
        store.put("fill", bytes(4000), queue=0)
        assert bodies(store) == [(1, 0), (1, 1)]
        store.close()


def test_a_close_amid_the_counting_saves_nothing() -> None:
    """The next opening would take the copies of the level that was not counted for ones that the table counts."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    for level in (1, 2):
        store.put("orders", b"%d:0" % level, queue=0, delay_level=level)
    clock.now_ms += delay_ms(2)
    workers.run(WORKER)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
    for is_failing in (True, False):
        store, workers = opened(disk, "sync")
        if is_failing:
            disk.plan.fail("pread", path="consumequeue/SCHEDULE_TOPIC_XXXX/1")
        workers.run(WORKER)
        print("C1", dict(disk.plan.counts))
        disk.plan.heal()
        store.close()
    store, _ = opened(disk, "sync")
    assert bodies(store) == [(1, 0), (2, 0)]


def test_what_has_no_copy_any_more_or_is_refused_now_ends_no_counting() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    store.create_topic("orders", queues=1)
    for number, topic in enumerate(("gone", "orders", "orders")):
        store.put(topic, b"1:%d" % number, queue=0, delay_level=1)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    store.delete_topic("gone")
    store.alter_topic("orders", perm=4)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
    store, workers = opened(disk, "sync")
    workers.run(WORKER)
    assert bodies(store) == [(1, 1), (1, 2)]
    assert [*store.topics()] == ["orders"], "no dead letter"


def test_a_copy_of_an_older_message_is_none_of_one_that_is_alike() -> None:
    """Retention had removed the older one, and a cut the table: the message that waited was lost."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk, "sync")
    alike = Message("orders", b"1:0", queue=0, delay_level=1, born_time_ms=clock.now_ms)
    store.put_many([alike])
    for _ in range(9):
        store.put("fill", bytes(8000), queue=0)
    # It waits, too: copies from here on are looked at.
    store.put("later", b"5:0", queue=0, delay_level=5)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    store.put_many([alike])
    store.close()
    disk.remove(ROOT / "config" / "delayOffset.json")
    disk.remove(disk.entries(ROOT / "commitlog")[0].path)
    store, workers = opened(disk, "sync")
    assert bodies(store) == [(1, 0)]
    clock.now_ms += HOUR
    workers.run(WORKER)
    assert bodies(store) == [(1, 0), (1, 0)]
