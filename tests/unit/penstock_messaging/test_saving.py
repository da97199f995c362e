"""Saving in the background: a second after the first change, at most once a second, and again after a failure."""

import logging
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_messaging.configuration.saving import DELAY_MS, RETRY_MS, Saving


class Saver:
    """A saving of which the test owns clock and thread."""

    def __init__(self, root: Path) -> None:
        self.clock, self.workers = ManualClock(0), ManualWorkers()
        self.count = 0
        self.failure: Exception | None = None
        context = make_context(root, clock=self.clock, spawn=self.workers)
        self.saving = Saving(context, self.save)

    def save(self) -> None:
        self.count += 1
        if self.failure is not None:
            raise self.failure

    def after(self, milliseconds: int) -> float | None:
        self.clock.now_ms += milliseconds
        return self.workers.run("penstock-topics")


def test_no_thread_runs_before_something_is_to_be_saved(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    assert saver.workers.by_name == {}
    saver.saving.request()
    assert list(saver.workers.by_name) == ["penstock-topics"]


def test_many_requests_within_a_second_are_one_write(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    for _ in range(10):
        saver.saving.request()
        assert saver.after(10)
    assert saver.count == 0
    assert saver.after(DELAY_MS - 100) is None
    assert saver.count == 1
    assert saver.after(10_000) is None
    assert saver.count == 1
    saver.saving.request()
    assert saver.after(DELAY_MS) is None
    assert saver.count == 2


@pytest.mark.parametrize("failure", [OSError(28, "full"), StorageError("full")])
def test_a_failure_is_logged_once_and_retried(tmp_path: Path, failure: Exception, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    saver = Saver(tmp_path)
    saver.failure = failure
    saver.saving.request()
    with caplog.at_level(logging.WARNING):
        assert saver.after(DELAY_MS) == RETRY_MS / 1000
        assert saver.after(RETRY_MS) == RETRY_MS / 1000
    assert saver.count == 2
    assert caplog.text.count("messages are not affected") == 1
    assert "full" in saver.saving.error
    saver.failure = None
    assert saver.after(RETRY_MS) is None
    assert saver.saving.error == ""


def test_the_end_saves_what_is_left(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    saver.saving.request()
    saver.saving.end()
    assert saver.count == 1
    # After the end nothing is started again.
    saver.saving.request()
    assert saver.after(DELAY_MS) is None
    assert saver.count == 1
    saver.failure = OSError("gone")
    saver.saving.end()


def test_another_error_is_a_defect_and_is_raised(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    saver.failure = KeyError("x")
    with pytest.raises(KeyError):
        saver.saving.save()
