"""Faults that stories have found, told one by one."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock import Store
from penstock.testing import InlineWorkers, SimulatedDisk
from penstock.testing.platter import Survival

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 8192, "geometry.queue_entries": 3, "retention.pause_ms": 0, "flush": "none",
}  # fmt: skip


def opened(disk: SimulatedDisk, **more: Any) -> Store:
    given: dict[str, Any] = {
        "files": disk,
        "clock": disk.clock,
        "spawn": InlineWorkers(),
        "environ": {},
    }
    return penstock.open(Path("/store"), **{**given, **SMALL, **more})


def test_a_queue_goes_on_after_a_power_cut_if_retention_took_all_of_it() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    for _ in range(5):
        store.put("b", b"x", queue=0)
    for _ in range(4):
        store.put("a", b"y" * 3000, queue=0)
    assert store.discard_before(log_offset=8192) == 1
    assert (store.min_offset("b", 0), store.max_offset("b", 0)) == (5, 5)
    store = opened(SimulatedDisk.after(disk.image(), Survival.NONE, Random(0)))
    assert store.put("b", b"x", queue=0).queue_offset == 5


def test_a_queue_begins_at_0_after_a_power_cut_that_took_all_of_it() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    for _ in range(5):
        store.put("b", b"x", queue=0)
    store.stats()
    # The first file has lost its length, and the second its entries.
    store = opened(SimulatedDisk.after(disk.image(), Survival.PAGES, Random(71)))
    assert store.stats()["log_end_offset"] == 0
    assert store.put("b", b"x", queue=0).queue_offset == 0


def test_a_queue_begins_at_0_if_only_later_entries_survive_a_power_cut_that_took_the_log() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    for _ in range(5):
        store.put("b", b"x", queue=0)
    store.stats()
    disk = SimulatedDisk.after(disk.image(), Survival.ALL, Random(0))
    (log,) = disk.entries(Path("/store/commitlog"))
    disk.write_whole(log.path, bytes(log.size))
    disk.remove(disk.entries(Path("/store/consumequeue/b/0"))[0].path)
    store = opened(disk)
    assert store.max_offset("b", 0) == 0
    assert store.put("b", b"x", queue=0).queue_offset == 0


def space(store: Store) -> tuple[int, ...]:
    stats = store.stats()
    return stats["log_min_offset"], stats["segments"], stats["log_bytes"]


@pytest.mark.parametrize(
    "ask", [lambda store: store.min_offset("b", 0), lambda store: store.read("b", 0), space]
)
def test_a_reader_that_is_open_knows_what_retention_deleted(
    ask: Callable[[Store], Any], tmp_path: Path
) -> None:
    workers = InlineWorkers()
    with penstock.open(tmp_path / "store", spawn=workers, environ={}, **SMALL) as store:
        store.put("b", b"x", queue=0)
        for _ in range(4):
            store.put("a", b"y" * 3000, queue=0)
        workers.run_all()
        with penstock.open(tmp_path / "store", read_only=True, environ={}) as reader:
            before = ask(store)
            assert ask(reader) == before
            assert store.discard_before(log_offset=8192) == 1
            workers.run_all()
            assert ask(reader) == ask(store) != before


def test_a_message_does_not_count_as_tried_because_one_that_a_power_cut_took_was() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    store.put("a", b"durable", queue=0)
    store.flush()
    store.put("a", b"lost", queue=0)
    consumer = store.consumer("g", "a")
    given = consumer.poll(10, timeout=0)
    assert [each.body for each in given] == [b"durable", b"lost"]
    # That syncs what the journal says of the other one, too.
    consumer.ack(given[0])
    store = opened(SimulatedDisk.after(disk.image(), Survival.NONE, Random(0)))
    store.put("a", b"new", queue=0)
    (message,) = store.consumer("g", "a").poll(10, timeout=0)
    assert (message.body, message.attempt) == (b"new", 1)
