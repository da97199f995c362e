"""The policy that never syncs by itself."""

from pathlib import Path

from penstock.contracts import NoOptions
from penstock.testing import ManualWorkers, make_context
from penstock_flush.none import NoFlush


class Counted:
    """A flusher in memory that counts."""

    flushed_offset = wrote_offset = committed_offset = 0
    count = 0

    def flush(self) -> int:
        self.count += 1
        return self.flushed_offset


def test_nothing_is_synced_and_no_thread_runs_until_somebody_asks(tmp_path: Path) -> None:
    workers, flusher = ManualWorkers(), Counted()
    policy = NoFlush(NoOptions(), make_context(tmp_path, spawn=workers), flusher)
    policy.start()
    policy.after_append(1 << 40)
    policy.close()
    assert (flusher.count, workers.by_name) == (0, {})
    policy.request()
    assert flusher.count == 1


def test_it_says_what_it_does_not_do() -> None:
    assert (NoFlush.name, NoFlush.appender_waits, NoFlush.hears_appends) == ("none", False, False)
    assert NoFlush.capabilities == frozenset()
