"""Ctrl-C in put, batch, read, flush, close and opening: no lock is left held, and nothing half done."""

import errno
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from tests.conftest import messages_in
from tests.faults.children import TIMES
from tests.faults.interrupts import everywhere
from tests.lanes import rounds

from penstock import Message, StoreFailedError
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, open_store
from penstock.testing.kit import copy_store
from penstock.testing.platter import Survival

# Cut through between `os.scandir` and the `with` that closes it, a folder's listing warns.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# Every so many places of a job; at night at every single one.
STEP = rounds(gate=9, night=1)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Let what was cut through go now, not in the middle of some later test."""
    yield
    gc.collect()


WAYS: dict[str, dict[str, Any]] = {
    "mmap": {"write": "mmap"},
    "file": {"write": "file"},
    "file gathering": {"write": "file", "flush": "sync", "flush.sync.timeout_ms": 1},
    "pool": {"write": "transient-pool", "write.transient-pool.lock_memory": False},
    "recycle": {"write": "mmap", "alloc": "recycle"},
}


def number_of(body: bytes) -> int:
    return int(body.split(b":")[0])


def check(store: Store, sure: set[int], asked: int) -> None:
    """What was acknowledged is there once; all that is there was asked for, in order, and hangs together."""
    seen = [number_of(m.body) for m in messages_in(store, "t")]
    assert seen == sorted(set(seen)), "in order, nothing twice"
    assert sure <= set(seen)
    assert not seen or seen[-1] < asked
    for queue in store.topics().get("t", []):
        offsets = [m.queue_offset for m in store.scan("t", queue=queue)]
        assert offsets == list(range(len(offsets))), (
            "no queue offset was given twice, none left out"
        )
    assert not list(store.verify())


def story(store: Store, number: int, sizes: list[int]) -> int:
    """One put for one size, a batch for several."""
    if len(sizes) == 1:
        store.put("t", b"%d:" % number + b"x" * sizes[0], queue=number % 2, keys=[f"k{number}"])
    else:
        store.put_many([
            Message("t", b"%d:" % (number + at) + b"x" * size, queue=(number + at) % 2, keys=[f"k{number + at}"])
            for at, size in enumerate(sizes)
        ])  # fmt: skip
    return number + len(sizes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [[300], [40_000], [30_000, 20_000, 30_000, 100]], ids=["put", "roll", "batch"])  # fmt: skip
def test_an_interrupt_anywhere_in_an_append_leaves_nothing_half_done(
    way: str, sizes: list[int], tmp_path: Path
) -> None:
    """Between the write and the count of the queue's next offset it once left one offset to two messages;
    between taking the append lock and noting it, the lock stayed taken for good."""
    workers = ManualWorkers()
    settings = {"retention": [], **WAYS[way]}
    store = open_store(tmp_path / "s", spawn=workers, **settings)
    number, sure = 0, set[int]()
    # The kernel does a single put in one step: there are few places left, and all are tried.
    step = STEP if len(sizes) > 1 else 1
    for turns, interrupt in enumerate(everywhere(step, more_than=10 * step)):
        following = number + len(sizes)
        if not interrupt.during(lambda: story(store, number, sizes)):  # noqa: B023 - it is called at once
            sure |= set(range(number, following))
        # It would be refused if this thread had the append lock yet.
        number = story(store, following, [10])
        sure.add(following)
        if turns % 25 == 24:
            store.flush()
            check(store, sure, number)
    store.flush()
    check(store, sure, number)
    store.close()
    with open_store(tmp_path / "s", retention=[]) as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"
        check(again, sure, number)


@pytest.mark.parametrize("count", [1, 2], ids=["put", "batch"])
def test_an_interrupt_of_the_clean_up_leaves_no_lock(count: int, tmp_path: Path) -> None:
    """After a full disk and one Ctrl-C, the append lock was held for good, and `close` waited for ever."""
    files = FaultyFiles()
    store = open_store(tmp_path / "s", files=files, spawn=ManualWorkers(), write="file")
    story(store, 0, [10])
    files.plan.fail("pwrite", errno.ENOSPC, path="commitlog")

    def entered(frame: FrameType, _event: str, _: object) -> None:
        if frame.f_code.co_name.startswith("_complete_or_undo"):
            sys.settrace(None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sys.settrace(entered)
        story(store, 1, [10] * count)
    with pytest.raises(StoreFailedError):
        store.put("t", b"x", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()
    with open_store(tmp_path / "s") as again:
        check(again, {0}, 3)


class Alarm(Exception):  # noqa: N818 - as a program calls it
    """What a signal handler raises."""


@pytest.mark.parametrize("error", [Alarm, TimeoutError])
@pytest.mark.parametrize("way", ["mmap", "file"])
def test_a_signal_handler_may_raise_any_exception_within_a_put(
    way: str, error: type[Exception], tmp_path: Path
) -> None:
    """Between the write and the count it left one queue offset to two messages, and the store closed as clean."""
    store = open_store(tmp_path / "s", spawn=ManualWorkers(), retention=[], **WAYS[way])
    number, sure = 0, set[int]()
    for interrupt in everywhere(1, more_than=50, error=error):
        # Each put begins a segment.
        story(store, number, [40_000])
        interrupt.during(lambda: story(store, number + 1, [40_000]))  # noqa: B023 - called at once
        story(store, number + 2, [10])
        story(store, number + 3, [10])
        sure |= {number, number + 2, number + 3}
        number += 4
    store.flush()
    check(store, sure, number)
    store.close()


READS: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read("t", 0, 0),
    "find": lambda store: store.find("k3", "t"),
    "flush": lambda store: store.flush(),
    "commit_offset": lambda store: store.commit_offset("g", "t", 0, offset=1),
}


@pytest.mark.parametrize("way", ["mmap", "file gathering"])
@pytest.mark.parametrize("job", READS)
def test_an_interrupt_anywhere_in_a_look_or_a_flush_loses_nothing(
    job: str, way: str, tmp_path: Path
) -> None:
    """What a writer gathers was once taken out of its queue before it was in the file: an interrupt there
    left a hole of zeros that a later flush acknowledged."""
    settings = {"retention": [], **WAYS[way]}
    store = open_store(tmp_path / "s", spawn=ManualWorkers(), **settings)
    number = story(store, 0, [50] * 3)
    # What is not durable is in no queue, and nobody else syncs here.
    store.flush()
    for interrupt in everywhere(2 * STEP + 2):
        # An interrupted roll leaves a file to look at, and so more places: hence an end of its own.
        if interrupt.number >= 300 * TIMES:
            break
        for _ in range(3):
            number = story(store, number, [50])
        interrupt.during(lambda: READS[job](store))
    store.flush()
    check(store, set(range(number)), number)
    assert [number_of(m.body) for m in store.find("k3", "t")] == [3]
    store.close()
    with open_store(tmp_path / "s", retention=[]) as again:
        check(again, set(range(number)), number)


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_an_interrupt_anywhere_in_opening_leaves_no_lock_and_loses_nothing(
    how: str, tmp_path: Path
) -> None:
    """Between taking the lock and the block that frees it, an interrupt once kept the store shut for the
    life of the process."""
    path = tmp_path / "s"
    store = open_store(path, spawn=ManualWorkers(), retention=[])
    number = 0
    for _ in range(30):
        number = story(store, number, [3000])
    for interrupt in everywhere(rounds(gate=600, night=100), more_than=2000):
        killed = copy_store(path, tmp_path / f"s{interrupt.number}") if how == "killed" else path
        store.close()
        path = killed
        opened: list[Store] = []

        def job(path: Path = path, opened: list[Store] = opened) -> None:
            opened.append(open_store(path, spawn=ManualWorkers(), retention=[]))

        interrupt.during(job)
        for each in opened:
            each.close()
        store = open_store(path, spawn=ManualWorkers(), retention=[])
        check(store, set(range(number)), number)
    store.close()


def test_an_interrupt_anywhere_in_opening_leaves_no_thread(tmp_path: Path) -> None:
    """A thread that went on could write to the store of the next process; one was started before it was noted."""
    before = set(threading.enumerate())
    for interrupt in everywhere(rounds(gate=290, night=11), more_than=2000):
        opened: list[Store] = []

        def job(opened: list[Store] = opened) -> None:
            opened.append(open_store(tmp_path / "s", retention=[]))

        interrupt.during(job)
        for each in opened:
            each.close()
        left = set(threading.enumerate()) - before
        assert not left, interrupt.place
        open_store(tmp_path / "s", retention=[]).close()


def test_an_interrupt_anywhere_in_close_leaves_no_lock(tmp_path: Path) -> None:
    """The close once gave up half way and said at the next call that it was done, with the lock held; and a
    descriptor was once closed twice, the second time perhaps another file's."""
    path, number = tmp_path / "s", 0
    for interrupt in everywhere(max(30 // TIMES, 1), more_than=300):
        store = open_store(path, retention=[])
        check(store, set(range(number)), number)
        for _ in range(3):
            number = story(store, number, [3000])
        if interrupt.during(store.close):
            store.close()
    with open_store(path, retention=[]) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        check(store, set(range(number)), number)


def test_after_an_interrupt_anywhere_in_a_deletion_a_queue_goes_on_where_it_was() -> None:
    """What was to be synced before the segment goes is not forgotten: a power cut would let the queue begin at 0."""
    for interrupt in everywhere(STEP, more_than=300):
        disk = SimulatedDisk()
        store = opened_on(disk)
        for _ in range(5):
            store.put("b", b"x", queue=0, keys=["k"])
        for _ in range(4):
            store.put("a", b"y" * 3000, queue=0)
        interrupt.during(lambda: store.discard_before(log_offset=8192))  # noqa: B023 - called at once
        store.discard_before(log_offset=8192)
        assert store.min_offset("b", 0) == 5, interrupt.place
        store = opened_on(SimulatedDisk.after(disk.image(), Survival.NONE, Random(0)))
        assert store.put("b", b"x", queue=0).queue_offset == 5, interrupt.place


def opened_on(disk: SimulatedDisk) -> Store:
    small: dict[str, Any] = {
        "geometry.segment_bytes": 8192, "geometry.queue_entries": 3, "retention.pause_ms": 0, "flush": "none",
    }  # fmt: skip
    return open_store(Path("/store"), files=disk, spawn=ManualWorkers(), **small)


@pytest.mark.parametrize("way", ["mmap", "file"])
def test_after_an_interrupt_anywhere_in_a_roll_the_closed_store_goes_on(way: str) -> None:
    for interrupt in everywhere(STEP, more_than=50):
        disk = SimulatedDisk()
        with open_store(
            Path("/store"), files=disk, spawn=ManualWorkers(), retention=[], **WAYS[way]
        ) as store:
            store.put("t", b"0:" + bytes(50_000), queue=0)
            interrupt.during(partial(store.put, "t", b"1:" + bytes(30_000), queue=0))
        with open_store(
            Path("/store"), files=disk, spawn=ManualWorkers(), retention=[], **WAYS[way]
        ) as store:
            store.put("t", b"2:", queue=0)
            seen = [number_of(m.body) for m in store.scan("t")]
            assert seen in ([0, 1, 2], [0, 2]), interrupt.place
            assert not [each.text for each in store.verify(deep=True) if not each.is_note]
