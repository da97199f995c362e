"""When the built-in policies sync: at intervals, for each put that waits, or never by themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import NoOptions
from penstock.errors import StoreFailedError
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_flush.policies import (
    PAGE_BYTES,
    AsyncFlush,
    AsyncOptions,
    NoFlush,
    SyncFlush,
    SyncOptions,
)

NAME = "penstock-flush"


class Counted:
    """A flusher in memory that counts, and fails when told."""

    flushed_offset = wrote_offset = committed_offset = 0
    count = 0
    failure: StoreFailedError | None = None

    def flush(self) -> int:
        self.count += 1
        if self.failure is not None:
            raise self.failure
        self.flushed_offset = self.wrote_offset
        return self.flushed_offset


class World:
    """A policy with a flusher, a clock and workers of the test's own."""

    def __init__(self, make: Callable[..., Any], options: object, root: Path) -> None:
        self.flusher, self.clock, self.workers = Counted(), ManualClock(), ManualWorkers()
        context = make_context(root, spawn=self.workers, clock=self.clock)
        self.policy = make(options, context, self.flusher)

    def look(self) -> float | None:
        return self.workers.run(NAME)


@pytest.fixture
def at_intervals(tmp_path: Path) -> World:
    world = World(AsyncFlush, AsyncOptions(interval_ms=500, least_pages=2), tmp_path)
    world.policy.start()
    return world


def test_a_few_bytes_wait_and_enough_pages_do_not(at_intervals: World) -> None:
    flusher = at_intervals.flusher
    assert at_intervals.look() == 0.5
    flusher.wrote_offset = 2 * PAGE_BYTES - 1
    at_intervals.look()
    assert flusher.count == 0
    flusher.wrote_offset += 1
    at_intervals.look()
    assert (flusher.count, flusher.flushed_offset) == (1, 2 * PAGE_BYTES)


def test_after_the_thorough_interval_everything_is_synced(at_intervals: World) -> None:
    flusher, counts = at_intervals.flusher, list[int]()
    flusher.wrote_offset = 1
    for passed_ms in (9_999, 1, 10_000):
        at_intervals.clock.now_ms += passed_ms
        at_intervals.look()
        counts.append(flusher.count)
    assert counts == [0, 1, 1], "nothing waits the third time"


def test_who_asks_is_served_at_the_next_look_and_once(at_intervals: World) -> None:
    flusher = at_intervals.flusher
    flusher.wrote_offset = 1
    at_intervals.policy.request()
    assert at_intervals.workers.by_name[NAME].is_awake
    at_intervals.look()
    flusher.wrote_offset = 2
    at_intervals.look()
    assert flusher.count == 1


def test_after_a_failed_sync_it_looks_no_more(at_intervals: World) -> None:
    at_intervals.flusher.failure = StoreFailedError("no", 0)
    at_intervals.flusher.wrote_offset = 1
    at_intervals.policy.request()
    assert at_intervals.look() is None


def test_who_waits_wakes_the_thread_of_sync_which_syncs_even_after_a_failure(
    tmp_path: Path,
) -> None:
    """Each who waits gets the error from the flusher itself."""
    world = World(SyncFlush, SyncOptions(timeout_ms=7), tmp_path)
    world.policy.request()
    world.policy.start()
    worker = world.workers.by_name[NAME]
    woken = [worker.is_awake]
    world.policy.request()
    assert [*woken, worker.is_awake] == [False, True]
    assert world.look() is None
    world.flusher.failure = StoreFailedError("no", 0)
    assert (world.look(), world.look(), world.flusher.count) == (None, None, 3)
    assert (world.policy.timeout_ms, SyncOptions().timeout_ms) == (7, 5000)


def test_none_syncs_nothing_and_runs_no_thread_until_somebody_asks(tmp_path: Path) -> None:
    world = World(NoFlush, NoOptions(), tmp_path)
    world.policy.start()
    world.policy.close()
    assert (world.flusher.count, world.workers.by_name) == (0, {})
    world.policy.request()
    assert world.flusher.count == 1


@pytest.mark.parametrize(
    ("kind", "options", "waits"),
    [(AsyncFlush, AsyncOptions(), False), (SyncFlush, SyncOptions(), True), (NoFlush, NoOptions(), False)],
)  # fmt: skip
def test_no_append_asks_for_anything_and_puts_wait_for_sync_only(
    kind: Callable[..., Any], options: object, waits: bool, tmp_path: Path
) -> None:
    world = World(kind, options, tmp_path)
    world.policy.after_append(1 << 40)
    assert world.flusher.count == 0
    assert world.policy.waits is waits
