"""Time and threads in a test's hands."""

import pytest

from penstock.testing.control import InlineWorkers, ManualClock, ManualWorkers


def test_a_clock_stands_still_until_it_is_set() -> None:
    clock = ManualClock(1000)
    assert (clock.time_ms(), clock.monotonic_ms()) == (1000, 1000)
    clock.now_ms += 5
    assert (clock.monotonic_ns(), clock.thread_ns()) == (1_005_000_000, 1_005_000_000)


def test_a_manual_worker_runs_when_the_test_says_so() -> None:
    ran, workers = list[int](), ManualWorkers()
    worker = workers("w", lambda: ran.append(1))
    worker.wake()
    assert (ran, worker.is_awake) == ([], True)
    workers.run("w")
    workers.run_all()
    worker.stop()
    assert ran == [1, 1]
    with pytest.raises(KeyError):
        workers.run("none")


def test_an_inline_worker_runs_when_it_is_woken_and_not_within_itself() -> None:
    ran, workers = list[int](), InlineWorkers()

    def step() -> None:
        ran.append(1)
        worker.wake()

    worker = workers("w", step)
    worker.wake()
    worker.wake()
    assert ran == [1, 1]


def test_an_inline_worker_that_raised_runs_again() -> None:
    ran, workers = list[int](), InlineWorkers()

    def step() -> None:
        ran.append(1)
        raise ValueError("no")

    worker = workers("w", step)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            worker.wake()
    assert ran == [1, 1]
