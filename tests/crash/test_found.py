"""What the exploration of crashes and failures found, each once more by itself, with its story."""

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock import Message
from penstock.durability.progress import Checkpoint
from penstock.store.store import Store
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.crash import ROOT, Plot, Stage
from penstock.testing.kit import InlineWorkers
from penstock.testing.platter import Survival
from penstock.testing.story import TINY

T = "t"
LOG = ROOT / "commitlog" / f"{0:020d}"
QUEUE = ROOT / "consumequeue" / T / "0"
LAZY = {"write": "mmap", "alloc": "on-demand", "flush": "none"}


def opened(disk: SimulatedDisk, **settings: Any) -> tuple[Store, InlineWorkers]:
    return Stage(Plot(settings={**LAZY, **settings})).open(disk)


def cut_power(
    disk: SimulatedDisk, survival: Survival = Survival.NONE, clock: ManualClock | None = None
) -> SimulatedDisk:
    return SimulatedDisk.after(disk.image(), survival, Random(1), clock=clock)


def lose(disk: SimulatedDisk, path: Path, start: int, stop: int) -> None:
    """Turn bytes of a file into zeros, as if they had never been written."""
    file = disk.open(path, writable=True)
    file.pwrite(bytes(stop - start), start)
    file.sync()
    file.close()


def bodies(store: Store) -> list[bytes]:
    return [message.body for message in store.scan(T)]


@pytest.fixture
def crashed() -> tuple[SimulatedDisk, list[int]]:
    """A store of 25 messages in one queue, 17 of them durable, whose machine lost power; all reached the disk."""
    disk = SimulatedDisk()
    store, workers = opened(disk)
    ends = []
    for number in range(25):
        if number == 17:
            store.flush()
        receipt = store.put(T, b"%d:" % number + b"x" * 420, queue=0, keys=[f"k{number}"])
        ends.append(receipt.log_offset + receipt.size)
    workers.run_all()
    return cut_power(disk, Survival.ALL), ends


def test_a_hole_in_a_queue_gives_no_offsets_away(crashed: tuple[SimulatedDisk, list[int]]) -> None:
    """The cut was found by halving: entries that never reached the disk were taken for earlier ones, so
    three absent ones stayed at the end, and the next message skipped their offsets."""
    disk, ends = crashed
    lose(disk, LOG, ends[16], TINY.segment_bytes)
    lose(disk, QUEUE / f"{0:020d}", 0, 400)
    store, _ = opened(disk)
    assert store.max_offset(T, 0) == 17
    assert store.put(T, b"next", queue=0).queue_offset == 17
    assert len(store.read(T, 0, 0, 50).messages) == 18


def test_a_crash_of_the_opening_leaves_the_store_ours() -> None:
    """The lock file got a new time first and the marks said so last: killed in between, our own store was
    a stranger's, walked whole, and refused for a torn sector."""
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.put(T, b"x", queue=0)
    store.flush()
    disk = cut_power(disk, clock=ManualClock(1_800_000_000_000))
    states = []

    def remember(_call: str, _path: Path) -> None:
        states.append(disk.image())

    disk.plan.watch = remember
    opened(disk)
    for image in states:
        store, _ = opened(SimulatedDisk.after(image, Survival.NONE, Random(1)))
        assert store.recovery is not None
        assert store.recovery.state == "abnormal"
        assert bodies(store) == [b"x"]


class Hurried(ManualClock):
    """A clock that is later each time it is asked."""

    def time_ms(self) -> int:
        self.now_ms += 5
        return self.now_ms


def test_the_newest_store_time_is_that_of_a_record() -> None:
    """It was taken anew when a batch had been written, so the checkpoint could be ahead of the data."""
    disk = SimulatedDisk(clock=Hurried())
    store, _ = opened(disk)
    last = store.put_many([Message(T, b"x", queue=0), Message(T, b"y", queue=0)])[-1]
    store.close()
    assert Checkpoint(disk, ROOT).read().log_ms == last.store_time_ms


@pytest.mark.parametrize("field", [0, 1])
def test_a_checkpoint_torn_or_damaged_within_a_time_is_not_carried_on(field: int) -> None:
    """ENOSPC at pwrite 40 of the 7th combination: new high bytes before old low bytes made a time of days ahead."""
    clock = ManualClock(1_700_000_000_000)
    disk = SimulatedDisk(clock=clock)
    store, workers = opened(disk)
    store.put(T, b"1", queue=0)
    store.flush()
    workers.run_all()
    late = cut_power(disk, Survival.ALL, ManualClock(1_700_000_060_000))
    file = late.open(ROOT / "checkpoint", writable=True)
    file.pwrite((2**62).to_bytes(8, "big"), 8 * field)
    file.sync()
    file.close()
    store, workers = opened(late)
    store.put(T, b"2", queue=0)
    store.close()
    times = [message.store_time_ms for message in opened(late)[0].scan(T)]
    assert times == [1_700_000_000_000, 1_700_000_060_000]
    assert Checkpoint(late, ROOT).read().log_ms == 1_700_000_060_000


def test_a_piece_of_an_entry_that_a_torn_cut_left_is_cut_too(
    crashed: tuple[SimulatedDisk, list[int]],
) -> None:
    """Soak, seed 20261122, point 101: log offset erased, size not, some entries behind the queue's end."""
    disk, ends = crashed
    path = QUEUE / f"{0:020d}"
    lose(disk, LOG, ends[17], TINY.segment_bytes)
    lose(disk, path, 18 * 20, 20 * 20)
    file = disk.open(path, writable=True)
    file.pwrite(struct.pack(">qiq", 0, 137, 0), 19 * 20)
    file.sync()
    file.close()
    store, _ = opened(disk)
    assert len(bodies(store)) == store.max_offset(T, 0) == 18
    assert not list(store.verify())


@pytest.mark.parametrize("size", [0, 7])
def test_a_queue_whose_only_file_is_lost_begins_where_its_log_does(size: int) -> None:
    """Soak, seed 30261135, point 377: the file's length had not reached the disk; queue 0 then said 0 to 32."""
    disk = SimulatedDisk()
    store, workers = opened(disk)
    for number in range(60):
        store.put(T, b"%d:" % number + b"x" * 800, queue=0)
    workers.run_all()
    store.flush()
    assert store.discard_before(log_offset=2 * TINY.segment_bytes)
    first, low = next(store.scan(T)).queue_offset, store.min_offset(T, 0)
    assert first == low >= TINY.queue_entries
    workers.run_all()
    crashed = cut_power(disk, Survival.ALL)
    for entry in list(crashed.entries(QUEUE)):
        file = crashed.open(entry.path, writable=True)
        file.resize(size)
        file.sync()
        file.close()
    again, _ = opened(crashed)
    assert (again.min_offset(T, 0), again.max_offset(T, 0)) == (first, 60)
    assert not list(again.verify())


def test_an_index_header_torn_between_its_counts_is_not_written_on() -> None:
    """Soak, seed 30261158, point 149: 20 slots and no entries; with the next keys it said 40 of 20."""
    disk = SimulatedDisk()
    store, workers = opened(disk)
    for number in range(5):
        store.put(T, b"%d" % number, queue=0, keys=[f"k{number}"])
    workers.run_all()
    store.flush()
    crashed = cut_power(disk, Survival.ALL)
    (entry,) = crashed.entries(ROOT / "index")
    file = crashed.open(entry.path, writable=True)
    file.pwrite(bytes(4), 36)
    file.pwrite(bytes(entry.size - 40), 40)
    file.sync()
    file.close()
    again, _ = opened(crashed)
    assert not list(again.verify())
    assert [message.body for message in again.find("k3", T)] == [b"3"]
