"""The policy whose puts wait: its thread syncs when it is asked, and goes on after a failure."""

from pathlib import Path

from penstock.errors import StoreFailedError
from penstock.testing import ManualWorkers, make_context
from penstock_flush.sync import SyncFlush, SyncOptions


class Counted:
    """A flusher in memory that counts, and fails when told."""

    flushed_offset = wrote_offset = committed_offset = 0
    count = 0
    failure: StoreFailedError | None = None

    def flush(self) -> int:
        self.count += 1
        if self.failure is not None:
            raise self.failure
        return self.flushed_offset


def made(root: Path) -> tuple[SyncFlush, Counted, ManualWorkers]:
    workers, flusher = ManualWorkers(), Counted()
    policy = SyncFlush(SyncOptions(timeout_ms=7), make_context(root, spawn=workers), flusher)
    return policy, flusher, workers


def test_who_waits_wakes_the_thread_which_syncs_even_where_all_is_durable(tmp_path: Path) -> None:
    policy, flusher, workers = made(tmp_path)
    policy.request()
    policy.start()
    woken = [workers.by_name["penstock-flush"].is_awake]
    policy.request()
    woken.append(workers.by_name["penstock-flush"].is_awake)
    assert woken == [False, True]
    assert workers.run("penstock-flush") is None
    assert flusher.count == 1


def test_a_failed_sync_does_not_end_the_thread(tmp_path: Path) -> None:
    """Each who waits gets the error from the flusher itself."""
    policy, flusher, workers = made(tmp_path)
    policy.start()
    flusher.failure = StoreFailedError("no", 0)
    assert [workers.run("penstock-flush") for _ in range(2)] == [None, None]
    assert flusher.count == 2


def test_appends_ask_for_nothing_and_puts_wait_as_long_as_the_options_say(tmp_path: Path) -> None:
    policy, flusher, _ = made(tmp_path)
    policy.after_append(100)
    assert flusher.count == 0
    assert (policy.timeout_ms, SyncOptions().timeout_ms) == (7, 5000)
    assert (policy.appender_waits, policy.group_commit, policy.hears_appends) == (True, True, False)
