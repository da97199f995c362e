"""Ctrl-C in the calls of a consumer, by a program that goes on with it: every message is acknowledged, or comes again."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.faults.interrupts import Interrupt, everywhere
from tests.lanes import rounds

from penstock import ConsumerClosedError, LostQueueError
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, open_store

COUNT, ACK_WAIT_S = 8, 5.0
# Every so many places of a job; at night at every single one.
STEP = rounds(gate=9, night=1)
CLOSE_STEP = rounds(gate=31, night=1)
NACK_STEP = rounds(gate=5, night=1)
Job = Callable[[Any], object]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with filled(tmp_path, clock) as opened:
        yield opened


def filled(path: Path, clock: ManualClock) -> Store:
    opened = open_store(path / "store", clock=clock)
    for number in range(COUNT):
        opened.put("orders", b"%d" % number, queue=0)
    return opened


def poll(consumer: Any) -> list[Any]:
    found: list[Any] = consumer.poll(5, 0)
    return found


def poll_and(answer: str, **options: Any) -> Job:
    def job(consumer: Any) -> None:
        found = poll(consumer)
        getattr(consumer, answer)(found[:-1], **options)
        getattr(found[-1], answer)(**options)

    return job


def iterate(consumer: Any) -> None:
    # Kept: Python swallows what is raised while a generator goes.
    consumer.kept = iter(consumer)
    for _ in range(3):
        next(consumer.kept).ack()


JOBS: dict[str, Job] = {
    "poll": poll,
    "one": lambda consumer: consumer.poll(1, 0),
    "ack": poll_and("ack"),
    "release": poll_and("release"),
    "extend": poll_and("extend"),
    "iterate": iterate,
}


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("job", JOBS)
def test_an_interrupted_call_loses_no_message(
    store: Store, clock: ManualClock, job: str, ordered: bool
) -> None:
    options: dict[str, Any] = {"ack_wait": ACK_WAIT_S, "max_in_flight": 6, "ordered": ordered}
    for interrupt in everywhere(STEP):
        with store.consumer(f"g{interrupt.number}", ["orders"], **options) as consumer:
            acked = watched(consumer)
            interrupt.during(partial(JOBS[job], consumer))
            seen = rest_of(consumer, clock)
            assert len(seen) == len(set(seen)), f"twice after an interrupt at {interrupt.place}"
            assert seen == sorted(seen) or not ordered, interrupt.place
            lost = set(range(COUNT)) - set(seen) - acked
            assert not lost, f"{lost} after an interrupt at {interrupt.place}"
            assert not consumer.pending(), interrupt.place


@pytest.mark.slow
def test_after_an_interrupted_nack_the_message_comes_once(tmp_path: Path, clock: ManualClock) -> None:  # fmt: skip
    """The writer made a retry of what was recorded, and the consumer delivered it once more as well."""
    workers = ManualWorkers()
    with open_store(tmp_path / "store", clock=clock, spawn=workers) as store:
        for body in (b"0", b"1"):
            store.put("orders", body, queue=0)
        for interrupt in everywhere(NACK_STEP):
            group = f"g{interrupt.number}"
            with store.consumer(group, "orders", ack_wait=ACK_WAIT_S) as consumer:
                first, second = consumer.poll(2, 0)
                interrupt.during(partial(consumer.nack, first, delay=1))
                # Its entry must not replace that of the refusal.
                consumer.ack(second)
                seen: list[bytes] = []
                for _ in range(3):
                    workers.run_all()
                    clock.now_ms += int(ACK_WAIT_S * 1000) + 1
                    workers.run_all()
                    found = consumer.poll(5, 0)
                    consumer.ack(found)
                    seen += [message.body for message in found]
                assert seen == [b"0"], interrupt.place


def iterate_and_ack(consumer: Any) -> None:
    for message in islice(consumer, 3):
        message.ack()


CLOSED: dict[str, Job] = {
    "poll": poll,
    "ack": poll_and("ack"),
    "unsynced": poll_and("ack", sync=False),
    "nack": poll_and("nack"),
    "release": poll_and("release"),
    "begun": lambda consumer: consumer.begin_ack(poll(consumer))(),
    "iterate": iterate_and_ack,
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.slow
@pytest.mark.parametrize("job", CLOSED)
def test_a_signal_handler_may_close_a_consumer_in_the_middle_of_a_call(
    tmp_path: Path, clock: ManualClock, job: str
) -> None:
    """It could wait for a lock that the call had: returning at once, it leaves the rest to the call."""
    # No fixture: it would wait for a thread that hangs.
    store = filled(tmp_path, clock)
    for interrupt in everywhere(3 if job == "close" else CLOSE_STEP):
        consumer = store.consumer(f"g{interrupt.number}", ["orders"])
        answered = {name: watched(consumer, name) for name in ("ack", "nack", "begin_ack")}
        interrupt.act = consumer.close
        thread = threading.Thread(target=run, args=(interrupt, job, consumer), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"it hangs after a close at {interrupt.place}"
        # What `begin_ack` returns leaves the rest to a later call.
        if interrupt.left <= 0 and job != "begun":
            assert repr(consumer).endswith(", closed>"), interrupt.place
        consumer.close()
        with store.consumer(f"g{interrupt.number}", ["orders"]) as again:
            found = again.poll(COUNT, 0)
            assert {message.attempt for message in found} <= {1}, interrupt.place
            seen = {int(message.body) for message in found}
            assert seen.union(*answered.values()) == set(range(COUNT)), interrupt.place
    store.close()


def run(interrupt: Interrupt, job: str, consumer: Any) -> None:
    with contextlib.suppress(ConsumerClosedError, LostQueueError):
        interrupt.during(lambda: CLOSED[job](consumer))


def watched(consumer: Any, call: str = "ack") -> set[int]:
    """Return the set that will hold the numbers of messages of which an answer began."""
    answered: set[int] = set()
    answer = getattr(consumer, call)

    def noted(messages: Any, **options: Any) -> Any:
        given = messages if isinstance(messages, list) else [messages]
        answered.update(int(message.body) for message in given)
        return answer(messages, **options)

    setattr(consumer, call, noted)
    return answered


def rest_of(consumer: Any, clock: ManualClock) -> list[int]:
    """Acknowledge all that comes until nothing is left; return the numbers."""
    seen: list[int] = []
    for _ in range(3):
        # As its worker does once a second.
        consumer._step()
        clock.now_ms += int(ACK_WAIT_S * 1000) + 1
        while found := consumer.poll(5, 0):
            assert len(found) == 1 or not consumer.options.ordered
            seen += [int(message.body) for message in found]
            consumer.ack(found)
    return seen
