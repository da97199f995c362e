"""The policy that syncs at intervals: when it looks, how much must wait, and what somebody may ask for."""

from pathlib import Path

import pytest

from penstock.errors import StoreFailedError
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_flush.asynchronous import PAGE_BYTES, AsyncFlush, AsyncOptions

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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def flusher() -> Counted:
    return Counted()


@pytest.fixture
def workers() -> ManualWorkers:
    return ManualWorkers()


@pytest.fixture
def policy(
    tmp_path: Path, clock: ManualClock, flusher: Counted, workers: ManualWorkers
) -> AsyncFlush:
    context = make_context(tmp_path, spawn=workers, clock=clock)
    made = AsyncFlush(AsyncOptions(interval_ms=500, least_pages=2), context, flusher)
    made.start()
    return made


@pytest.mark.usefixtures("policy")
def test_a_few_bytes_wait_and_enough_pages_do_not(flusher: Counted, workers: ManualWorkers) -> None:
    assert workers.run(NAME) == 0.5
    flusher.wrote_offset = 2 * PAGE_BYTES - 1
    workers.run(NAME)
    assert flusher.count == 0
    flusher.wrote_offset += 1
    workers.run(NAME)
    assert (flusher.count, flusher.flushed_offset) == (1, 2 * PAGE_BYTES)


@pytest.mark.usefixtures("policy")
def test_after_the_thorough_interval_everything_is_synced(
    clock: ManualClock, flusher: Counted, workers: ManualWorkers
) -> None:
    flusher.wrote_offset = 1
    clock.now_ms += 9_999
    workers.run(NAME)
    assert flusher.count == 0
    clock.now_ms += 1
    workers.run(NAME)
    assert flusher.count == 1
    clock.now_ms += 10_000
    workers.run(NAME)
    assert flusher.count == 1, "nothing waits"


def test_who_asks_is_served_at_the_next_look_and_once(
    policy: AsyncFlush, flusher: Counted, workers: ManualWorkers
) -> None:
    flusher.wrote_offset = 1
    policy.request()
    assert workers.by_name[NAME].is_awake
    workers.run(NAME)
    flusher.wrote_offset = 2
    workers.run(NAME)
    assert flusher.count == 1


def test_after_a_failed_sync_it_looks_no_more(
    policy: AsyncFlush, flusher: Counted, workers: ManualWorkers
) -> None:
    flusher.failure, flusher.wrote_offset = StoreFailedError("no", 0), 1
    policy.request()
    assert workers.run(NAME) is None


def test_no_append_is_told_of(policy: AsyncFlush) -> None:
    policy.after_append(1 << 40)
    assert (policy.hears_appends, policy.appender_waits) == (False, False)
