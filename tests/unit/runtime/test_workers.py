"""Time and threads: a clock that is not believed when it jumps; background threads that run step by step."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.interrupts import everywhere

from penstock.files import Files
from penstock.runtime.clock import BELIEVED_AFTER_MS, JUMP_MS, SteadyTime
from penstock.runtime.waking import Wakes, WorkWaiter
from penstock.runtime.workers import StopAfterError, WorkerGroup
from penstock.testing import ManualClock


class TwoClocks(ManualClock):
    """A wall clock that may be set apart from the monotonic one."""

    ahead_ms = 0

    def time_ms(self) -> int:
        return self.now_ms + self.ahead_ms


def test_drift_is_followed() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    clock.ahead_ms = JUMP_MS
    clock.now_ms += 5
    assert steady.time_ms() == clock.time_ms()
    assert not steady.is_doubted


def test_a_jump_is_believed_when_the_clock_has_kept_to_it_for_an_hour() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    clock.ahead_ms = 10 * JUMP_MS
    assert steady.time_ms() == clock.now_ms
    assert steady.is_doubted
    clock.now_ms += BELIEVED_AFTER_MS - 1
    assert steady.time_ms() == clock.now_ms
    clock.now_ms += 1
    assert steady.time_ms() == clock.time_ms()
    assert not steady.is_doubted


def test_a_clock_set_wrong_and_right_again_is_never_believed() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    for ahead in (-5 * JUMP_MS, 0, 5 * JUMP_MS, 0):
        clock.ahead_ms = ahead
        clock.now_ms += BELIEVED_AFTER_MS // 2
        assert steady.time_ms() == clock.now_ms


def test_a_second_jump_begins_the_hour_anew() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    for factor in (5, 9):
        clock.ahead_ms = factor * JUMP_MS
        steady.time_ms()
        clock.now_ms += BELIEVED_AFTER_MS - 1
        assert steady.time_ms() == clock.now_ms


# --- threads


LONG_S = 60


@pytest.fixture
def errors() -> list[tuple[str, BaseException]]:
    return []


@pytest.fixture
def workers(errors: list[tuple[str, BaseException]]) -> Iterator[WorkerGroup]:
    made = WorkerGroup(lambda name, error: errors.append((name, error)), slow_ms=0, limit_ms=60_000)
    yield made
    made.stop()


def test_a_step_runs_at_once_and_again_when_it_is_woken(workers: WorkerGroup) -> None:
    ran = threading.Semaphore(0)

    def step() -> None:
        ran.release()

    worker = workers("w", step)
    for _ in range(3):
        assert ran.acquire(timeout=LONG_S)
        worker.wake()
    worker.stop()
    assert not worker.is_alive
    assert worker.place() == "it has ended"


@pytest.mark.parametrize("arrive", [True, False])
def test_a_thread_rests_by_wakes_of_other_processes_if_they_arrive(
    arrive: bool, workers: WorkerGroup, tmp_path: Path
) -> None:
    (tmp_path / "penstock").mkdir()
    wakes = WorkWaiter(Wakes(Files(), tmp_path, writes=arrive))
    ran = threading.Semaphore(0)

    def step() -> float:
        assert wakes.ask() == arrive
        ran.release()
        return LONG_S

    worker = workers("w", step, wakes)
    assert ran.acquire(timeout=LONG_S)
    if arrive:
        # Whether before or in its rest: it has asked.
        WorkWaiter(Wakes(Files(), tmp_path)).wake()
        assert ran.acquire(timeout=LONG_S / 2)
    worker.wake()
    assert ran.acquire(timeout=LONG_S / 2)
    worker.stop()
    assert not worker.is_alive


def test_a_wake_during_a_step_is_not_lost(workers: WorkerGroup) -> None:
    began, may_end = threading.Semaphore(0), threading.Semaphore(0)

    def step() -> None:
        began.release()
        may_end.acquire()

    worker = workers("w", step)
    assert began.acquire(timeout=LONG_S)
    worker.wake()
    worker.wake()
    may_end.release()
    assert began.acquire(timeout=LONG_S), "once more, for both"
    may_end.release(9)


def test_a_job_for_the_end_runs_when_the_last_thread_has_ended_or_at_once() -> None:
    began, may_end, ran = (threading.Semaphore(0) for _ in range(3))
    workers = WorkerGroup(lambda name, error: None, slow_ms=0, limit_ms=0)

    def step() -> None:
        began.release()
        may_end.acquire()

    workers("w", step)
    assert began.acquire(timeout=LONG_S)
    workers.stop()
    workers.when_ended(ran.release)
    assert not ran.acquire(blocking=False)
    may_end.release()
    assert ran.acquire(timeout=LONG_S)
    workers.when_ended(ran.release)
    assert ran.acquire(blocking=False)


def test_a_thread_that_an_interrupt_cuts_off_at_its_start_is_ended_with_the_others() -> None:
    for interrupt in everywhere(1, more_than=5):
        workers = WorkerGroup(lambda name, error: None, slow_ms=0, limit_ms=60_000)
        interrupt.during(lambda: workers("cut-off", lambda: None))  # noqa: B023 - called at once
        workers.stop()
        assert "cut-off" not in [each.name for each in threading.enumerate()], interrupt.place
        assert not workers.hanging()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_step_that_raises_is_told_and_is_the_last(
    error: BaseException, workers: WorkerGroup, errors: list[tuple[str, BaseException]]
) -> None:
    """`SystemExit` ended the thread without a word."""

    def step() -> None:
        raise error

    worker = workers("w", step)
    worker.join()
    worker.wake()
    assert errors == [("w", error)]


def test_a_step_run_elsewhere_ends_for_good_at_its_first_error() -> None:
    calls, told = list[int](), list[tuple[str, BaseException]]()

    def step() -> float:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("no")
        return 0.5

    once = StopAfterError("w", step, lambda name, error: told.append((name, error)))
    assert [once(), once(), once()] == [0.5, None, None]
    assert (len(calls), told[0][0]) == (2, "w")
