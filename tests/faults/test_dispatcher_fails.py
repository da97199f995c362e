"""Queues or index whose disk fails: no way of reading answers as if what was just acknowledged were not there."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DispatcherFailedError
from penstock.message import PutStatus
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store

Reading = Callable[[Store], Any]
QUEUE_READS: dict[str, Reading] = {
    "read": lambda s: s.read("t", 0, 5),
    "read from the start": lambda s: s.read("t", 0, 0),
    "scan": lambda s: list(s.scan("t")),
    "scan one queue": lambda s: list(s.scan("t", queue=0)),
    "follow": lambda s: next(s.scan("t", queue=0, start=5, follow=True)),
    "max_offset": lambda s: s.max_offset("t", 0),
    "min_offset": lambda s: s.min_offset("new", 0),
    "topics": lambda s: s.topics(),
    "to_arrow": lambda s: s.to_arrow("t", queue=0),
    "arrow_spans": lambda s: list(s.lowlevel.arrow_spans([])),
    "offset_at": lambda s: s.offset_at("t", 0, 1 << 35),
    "bounds": lambda s: s.lowlevel.bounds(),
    "sample": lambda s: s.lowlevel.sample("t", 0, 0, 5, 2),
    "space": lambda s: s.space(),
}
PLACES = {"consume-queue": "consumequeue", "hash-index": "/new-index-"}


def failing(path: Path, number: int, dispatcher: str, **more: Any) -> tuple[Store, FaultyFiles, ManualClock]:  # fmt: skip
    """A store with five messages in its queue, whose dispatcher's disk fails from then on."""
    files, clock = FaultyFiles(), ManualClock()
    store = open_store(path, files=files, clock=clock, spawn=ManualWorkers(), retention=[], **more)
    for at in range(5):
        store.put("t", b"%d" % at, queue=0, keys=[f"k{at}"])
    assert store.max_offset("t", 0) == 5
    assert store.find("k4", "t")
    for call in ("pwrite", "create", "allocate"):
        files.plan.fail(call, number, path=PLACES[dispatcher])
    return store, files, clock


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("way", QUEUE_READS)
def test_reading_while_the_queues_cannot_be_written_raises_the_named_error(
    way: str, number: int, tmp_path: Path
) -> None:
    """It answered OFFSET_OVERFLOW_BADLY, or nothing, for a message whose put had just returned."""
    store, files, clock = failing(tmp_path / "s", number, "consume-queue")
    receipt = store.put("t", b"5", queue=0, keys=["k5"])
    store.put("new", b"6", queue=0)
    assert receipt.status is PutStatus.PUT_OK
    with pytest.raises(DispatcherFailedError):
        QUEUE_READS[way](store)
    with pytest.raises(DispatcherFailedError) as caught:
        QUEUE_READS[way](store)
    error = caught.value
    assert (error.name, error.reached) == ("consume-queue", receipt.log_offset)
    assert error.end == store.stats()["log_end_offset"]
    assert str(number) in error.reason
    # What does not need the queues goes on.
    assert store.at(receipt.log_offset).body == b"5"
    assert [m.body for m in store.find("k5", "t")] == [b"5"]
    files.plan.heal()
    clock.now_ms += 60_000
    QUEUE_READS[way](store)
    assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(6)]
    store.close()


def test_a_failing_index_keeps_only_from_finding_by_key(tmp_path: Path) -> None:
    store, files, clock = failing(tmp_path / "s", errno.EIO, "hash-index", **{"geometry.index_entries": 7})  # fmt: skip
    for at in range(5, 20):
        store.put("t", b"%d" % at, queue=0, keys=[f"k{at}"])
    for reading in QUEUE_READS.values():
        reading(store)
    with pytest.raises(DispatcherFailedError, match="hash-index fails"):
        store.find("k19", "t")
    files.plan.heal()
    clock.now_ms += 60_000
    assert [m.body for m in store.find("k19", "t")] == [b"19"]
    store.close()


def test_figures_and_verify_say_how_far_they_see(tmp_path: Path) -> None:
    store, files, clock = failing(tmp_path / "s", errno.EIO, "consume-queue")
    receipt = store.put("t", b"5", queue=0)
    figures = store.stats()
    assert figures["dispatched_offset"] == receipt.log_offset < figures["log_end_offset"]
    assert "Input/output" in figures["dispatchers"]["consume-queue"]["error"]
    [finding] = store.verify()
    assert (finding.part, finding.log_offset) == ("consume-queue", receipt.log_offset)
    assert "retried" in finding.what_now
    files.plan.heal()
    clock.now_ms += 60_000
    assert store.stats()["dispatched_offset"] == store.stats()["log_end_offset"]
    assert not list(store.verify())
    store.close()


def test_a_scan_that_follows_raises_when_the_queues_begin_to_fail(tmp_path: Path) -> None:
    store, files, clock = failing(tmp_path / "s", errno.EIO, "consume-queue")
    files.plan.heal()
    coming = store.scan("t", follow=True)
    assert [next(coming).body for _ in range(5)] == [b"%d" % n for n in range(5)]
    files.plan.fail("pwrite", errno.EIO, path="consumequeue")
    store.put("t", b"5", queue=0)
    with pytest.raises(DispatcherFailedError):
        next(coming)
    files.plan.heal()
    clock.now_ms += 60_000
    assert next(store.scan("t", queue=0, start=5, follow=True)).body == b"5"
    store.close()


def test_a_reader_beside_sees_what_the_writer_has_published(tmp_path: Path) -> None:
    """It cannot know of the writer's trouble; its figures say up to where they hold."""
    store, files, _ = failing(tmp_path / "s", errno.EIO, "consume-queue")
    receipt = store.put("t", b"5", queue=0)
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert reader.max_offset("t", 0) == 5
        assert reader.stats()["dispatched_offset"] == receipt.log_offset
    files.plan.heal()
    store.close()
