"""A delayed message that cannot be delivered stays visible with its reason: a line in a log is no place to keep a message."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock_messaging.retries.copies import UNDELIVERED, dead_letter_topic
from penstock_messaging.retries.dead_letters import replay

HOUR_MS = 3_600_000
DELAYS: list[dict[str, int]] = [{"delay_level": 1}, {"delay": 1}]


class Opened:
    """A store whose clock and threads are controlled by the test."""

    def __init__(self, path: Path) -> None:
        self.clock, self.workers = ManualClock(), ManualWorkers()
        self.store: Any = penstock.open(path, clock=self.clock, spawn=self.workers, retention=[])

    def later(self) -> None:
        self.clock.now_ms += HOUR_MS
        for _ in range(4):
            self.workers.run_all()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "s")
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("target", "letters"),
    [("%RETRY%g", dead_letter_topic("g")), ("%RETRY%../g", dead_letter_topic(UNDELIVERED))],
)
def test_what_another_program_stored_is_kept_whatever_it_says(
    opened: Opened, target: str, letters: str
) -> None:
    text = f"DELAY\x011\x02REAL_TOPIC\x01{target}\x02REAL_QID\x01none\x02".encode()
    opened.store.lowlevel.put_copies(
        [(penstock.Message("SCHEDULE_TOPIC_XXXX", b"x", queue=0), text)]
    )
    opened.store.put("t", b"y", queue=0, delay_level=1)
    opened.later()
    assert [each.body for each in opened.store.scan("t")] == [b"y"]
    (letter,) = opened.store.scan(letters)
    assert letter.properties["FAILURE_REASON"]


@pytest.mark.parametrize("delay", DELAYS)
def test_it_is_a_dead_letter_and_the_others_are_delivered(
    opened: Opened, delay: dict[str, int]
) -> None:
    opened.store.create_topic("closed")
    for topic in ("open", "closed", "open"):
        opened.store.put(topic, topic.encode(), tag="a", **delay)
    opened.store.alter_topic("closed", perm=4)
    opened.later()
    assert [each.body for each in opened.store.scan("open")] == [b"open"] * 2
    (letter,) = opened.store.scan(dead_letter_topic(UNDELIVERED))
    assert (letter.body, letter.tag, letter.reconsume_times) == (b"closed", "a", 0)
    assert "perm 4 lacks 2, write" in letter.properties["FAILURE_REASON"]
    opened.store.alter_topic("closed", perm=6)
    assert replay(opened.store, UNDELIVERED, to_topic=True) == 1
    assert [each.body for each in opened.store.scan("closed")] == [b"closed"]


def test_a_round_that_fails_after_a_dead_letter_and_is_repeated_makes_no_second_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, workers, files = ManualClock(), ManualWorkers(), FaultyFiles()
    with open_store(
        tmp_path / "s", clock=clock, spawn=workers, files=files, write="file", retention=[]
    ) as store:
        store.create_topic("closed")
        for topic in ("closed", "open"):
            store.put(topic, b"x", queue=0, delay_level=1)
        store.alter_topic("closed", perm=4)
        clock.now_ms += HOUR_MS
        files.plan.fail("pwrite", errno.ENOSPC, path="commitlog", after=1, times=1)
        for _ in range(4):
            workers.run("penstock-deliver")
            clock.now_ms += HOUR_MS
        assert "delayed messages cannot be delivered now" in caplog.text, "the goal of this test"
        assert store.max_offset("open", 0) == 1
        assert store.max_offset(dead_letter_topic(UNDELIVERED), 0) == 1
