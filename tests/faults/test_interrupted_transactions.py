"""Ctrl-C in a transaction that consumes and produces, by a program that goes on: each message is moved once, or comes again."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.faults.interrupts import everywhere
from tests.faults.test_interrupted_consumers import ACK_WAIT_S, rest_of
from tests.lanes import rounds

from penstock import Message
from penstock.contracts import Consumer
from penstock.store.store import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock_messaging.extension import MessagingExtension

COUNT = 4
# Every so many places of a job; at night at every single one.
STEP = rounds(gate=9, night=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with open_store(tmp_path / "store", clock=clock) as opened:
        for number in range(COUNT):
            opened.put("orders", b"%d" % number, queue=0)
        opened.create_topic("moved", queues=1)
        yield opened


def move(store: Store, consumer: Consumer) -> None:
    """Move what is handed out in one transaction."""
    with store.transaction() as tx:
        given = consumer.poll(2, 0)
        tx.ack(given[0])
        for message in given:
            tx.put("moved", message.body, queue=0)
        tx.ack(given[1:])


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_an_interrupted_transaction_is_done_or_its_messages_come_again(
    store: Store, clock: ManualClock, ordered: bool
) -> None:
    """Messages stayed held until the consumer was closed, or those of a stored transaction without their acknowledgement."""
    count = 1 if ordered else 2
    messaging = store.lowlevel.extension("messaging")
    assert isinstance(messaging, MessagingExtension)
    for interrupt in everywhere(STEP):
        begun = store.max_offset("moved", 0)
        options: dict[str, Any] = {"ack_wait": ACK_WAIT_S, "ordered": ordered}
        with store.consumer(f"g{interrupt.number}", ["orders"], **options) as consumer:
            interrupt.during(partial(move, store, consumer))
            # As the worker of the store does.
            messaging.deciding.step()
            moved = [int(message.body) for message in store.scan("moved", start=begun)]
            seen = rest_of(consumer, clock)
            assert moved in ([], [*range(count)]), interrupt.place
            assert sorted(moved + seen) == [0, 1, 2, 3], interrupt.place
            assert not consumer.pending(), interrupt.place
        assert messaging.deciding.undecided == 0, interrupt.place


@pytest.mark.slow
def test_an_interrupted_transaction_is_stored_whole_or_not_at_all(store: Store) -> None:
    def job() -> None:
        with store.transaction() as tx:
            tx.put("moved", b"0", queue=0)
            tx.put_many(
                [Message("moved", b"1", queue=0), Message("late", b"2", queue=0, delay_level=3)]
            )
            tx.put("moved", b"2", queue=0)

    for interrupt in everywhere(STEP):
        begun = store.max_offset("moved", 0)
        interrupt.during(job)
        assert store.max_offset("moved", 0) - begun in (0, 3), interrupt.place
    assert not list(store.verify())


def test_what_two_threads_carry_out_is_done_once() -> None:
    """The worker of the store failed, and with it the store, if a consumer was closed just after an interrupt."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    store = open_store(Path("/store"), files=disk, clock=clock, spawn=InlineWorkers())
    store.put("orders", b"0", queue=0)
    messaging = store.lowlevel.extension("messaging")
    assert isinstance(messaging, MessagingExtension)
    threads = ThreadPoolExecutor(1)
    steps = list[Future[bool]]()

    def interrupted(_call: str, path: Path) -> None:
        if path.suffix == ".journal":
            disk.plan.watch = beside
            raise KeyboardInterrupt

    def beside(_call: str, path: Path) -> None:
        if path.suffix == ".journal" and not steps:
            steps.append(threads.submit(messaging.deciding.step))
            # It waits for this one, and finds that nothing is left.
            wait(steps, 0.3)

    with store.consumer("g", ["orders"]) as consumer:
        given = consumer.poll(1, 0)
        disk.plan.watch = interrupted
        with pytest.raises(KeyboardInterrupt), store.transaction() as tx:
            tx.put("moved", b"0", queue=0)
            tx.ack(given)
        messaging.deciding.step()
        assert [step.result() for step in steps] == [False]
        assert not consumer.pending()
    store.close()
