"""What counts as delivered after a kill, a cut of the log, or a clock that went back: delayed messages come once.

Stories of delays with kills and power cuts before any call are those of `tests/model/test_messaging.py`.
"""

import json
from pathlib import Path
from random import Random

import pytest
from tests.conftest import messages_in

import penstock
from penstock import Message, Store
from penstock.format.names import LOST_END
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Survival
from penstock_messaging.delays.levels import delay_ms

ROOT = Path("/store")
WORKER = "penstock-deliver"
HOUR = 3_600_000


def opened(disk: SimulatedDisk) -> tuple[Store, InlineWorkers]:
    workers = InlineWorkers()
    clock = disk.clock
    assert isinstance(clock, ManualClock)
    return open_store(ROOT, files=disk, clock=clock, spawn=workers, flush="sync"), workers


def bodies(store: Store) -> list[tuple[int, int]]:
    """Return (level, number) of each delivered message."""
    found = [message.body.split(b":") for message in messages_in(store, "orders")]
    return [(int(level), int(number)) for level, number in found]


def test_what_was_delivered_after_where_the_log_was_cut_is_delivered_again_and_nothing_else() -> None:  # fmt: skip
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
    for number in range(3):
        store.put("orders", b"1:%d" % number, queue=0, delay_level=1)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    second = [message.log_offset for message in messages_in(store, "orders")][1]
    store.close()
    with penstock.open_follower(ROOT, cut_at=second, files=disk, clock=clock, spawn=InlineWorkers(), environ={}):  # fmt: skip
        pass
    for _ in range(2):
        store, workers = opened(disk)
        if WORKER in workers.by_name:
            workers.run(WORKER)
        assert bodies(store) == [(1, 0), (1, 1), (1, 2)]
        store.close()


def test_what_was_delivered_before_a_kill_is_counted_though_it_is_not_due_by_the_next_clock() -> None:  # fmt: skip
    """Another level was saved meanwhile, and the copy was then taken for one that the table counts."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
    store.put("orders", b"2:0", queue=0, delay_level=2)
    clock.now_ms += delay_ms(2)
    workers.run(WORKER)
    assert bodies(store) == [(2, 0)]
    # A copy that is promoted has another clock.
    behind = ManualClock(clock.now_ms - HOUR)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=behind)
    for _ in range(2):
        store, workers = opened(disk)
        store.put("orders", b"1:0", queue=0, delay_level=1)
        behind.now_ms += delay_ms(1)
        workers.run(WORKER)
        store.close()
    behind.now_ms += 2 * HOUR
    store, workers = opened(disk)
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
    store, workers = opened(disk)
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
        store, workers = opened(disk)
        if WORKER in workers.by_name:
            workers.run(WORKER)
        assert bodies(store) == [(9, 0)]
        store.close()


def test_a_table_of_a_longer_log_that_cannot_be_removed_is_not_believed_later() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
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
        store, workers = opened(disk)
        if WORKER in workers.by_name:
            workers.run(WORKER)
        store.put("fill", bytes(4000), queue=0)
        assert bodies(store) == [(1, 0), (1, 1)]
        store.close()


def test_a_close_amid_the_counting_saves_nothing() -> None:
    """The next opening would take the copies of the level that was not counted for ones that the table counts."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
    for level in (1, 2):
        store.put("orders", b"%d:0" % level, queue=0, delay_level=level)
    clock.now_ms += delay_ms(2)
    workers.run(WORKER)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
    for is_failing in (True, False):
        store, workers = opened(disk)
        if is_failing:
            disk.plan.fail("pread", path="consumequeue/SCHEDULE_TOPIC_XXXX/1")
        workers.run(WORKER)
        disk.plan.heal()
        store.close()
    store, _ = opened(disk)
    assert bodies(store) == [(1, 0), (2, 0)]


def test_what_has_no_copy_any_more_or_is_refused_now_ends_no_counting() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
    store.create_topic("orders", queues=1)
    for number, topic in enumerate(("gone", "orders", "orders")):
        store.put(topic, b"1:%d" % number, queue=0, delay_level=1)
    clock.now_ms += delay_ms(1)
    workers.run(WORKER)
    store.delete_topic("gone")
    store.alter_topic("orders", perm=4)
    disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
    store, workers = opened(disk)
    workers.run(WORKER)
    assert bodies(store) == [(1, 1), (1, 2)]
    assert [*store.topics()] == ["orders"], "no dead letter"


def test_a_copy_of_an_older_message_is_none_of_one_that_is_alike() -> None:
    """Retention had removed the older one, and a cut the table: the message that waited was lost."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
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
    store, workers = opened(disk)
    assert bodies(store) == [(1, 0)]
    clock.now_ms += HOUR
    workers.run(WORKER)
    assert bodies(store) == [(1, 0), (1, 0)]


@pytest.mark.parametrize("waits", [True, False])
def test_what_is_delivered_after_a_broker_is_counted_at_each_kill(waits: bool) -> None:
    """Its table does not say where the log ended: each kill within a second delivered the messages before it again."""
    clock = ManualClock()
    disk, table = SimulatedDisk(clock=clock), ROOT / "config" / "delayOffset.json"
    store, workers = opened(disk)
    for level in (1, 2):
        store.put("orders", b"%d:0" % level, queue=0, delay_level=level)
    clock.now_ms += delay_ms(1 if waits else 2)
    workers.run(WORKER)
    store.close()
    offsets = json.loads(disk.read_whole(table))
    del offsets["penstockLogEnd"]
    disk.write_whole(table, json.dumps(offsets).encode())
    expected = [(1, 0), (2, 0)]
    for round_number in range(3):
        store, workers = opened(disk)
        if round_number == 0 and not waits:
            store.put("orders", b"2:1", queue=0, delay_level=2)
            expected.append((2, 1))
        clock.now_ms += delay_ms(2) * (round_number == 0)
        if WORKER in workers.by_name:
            workers.run(WORKER)
        assert bodies(store) == expected
        disk = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)
