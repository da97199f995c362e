"""Ctrl-C in the calls of a consumer, by a program that goes on with it: every message is acknowledged, or comes again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.interrupts import Interrupt
from tests.lanes import rounds

from penstock.store.store import Store
from penstock.testing import ManualClock, open_store

COUNT, ACK_WAIT_S = 8, 5.0
# Every so many places of a job; at night at every single one.
STEP = rounds(gate=9, night=1)
Job = Callable[[Any], object]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with open_store(tmp_path / "store", clock=clock) as opened:
        for number in range(COUNT):
            opened.put("orders", b"%d" % number, queue=0)
        yield opened


def poll(consumer: Any) -> list[Any]:
    found: list[Any] = consumer.poll(5, 0)
    return found


def poll_and(answer: str) -> Job:
    def job(consumer: Any) -> None:
        found = poll(consumer)
        getattr(consumer, answer)(found[:-1])
        getattr(found[-1], answer)()

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
    number, was_interrupted = 1, True
    while was_interrupted:
        options: dict[str, Any] = {"ack_wait": ACK_WAIT_S, "max_in_flight": 6}
        with store.consumer(f"g{number}", ["orders"], ordered=ordered, **options) as consumer:  # fmt: skip
            acked = watched(consumer)
            interrupt = Interrupt(number)
            was_interrupted = interrupt.during(lambda: JOBS[job](consumer))
            seen = rest_of(consumer, clock)
            assert len(seen) == len(set(seen)), f"twice after an interrupt at {interrupt.place}"
            assert seen == sorted(seen) or not ordered, interrupt.place
            lost = set(range(COUNT)) - set(seen) - acked
            assert not lost, f"{lost} after an interrupt at {interrupt.place}"
            assert not consumer.pending(), interrupt.place
        number += STEP


def watched(consumer: Any) -> set[int]:
    """Return the set that will hold the numbers of messages whose acknowledgement began."""
    acked: set[int] = set()
    ack = consumer.ack

    def noted(messages: Any, **options: Any) -> None:
        given = messages if isinstance(messages, list) else [messages]
        acked.update(int(message.body) for message in given)
        ack(messages, **options)

    consumer.ack = noted
    return acked


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
