"""Bytes of segments: by plain writes, through a map, or pooled in buffers; what each holds back, and for how long."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import BusyError
from penstock._kernel import GatherBuffer
from penstock.contracts import NoOptions, SegmentChannel
from penstock.files import Files
from penstock.files.blocks import Blocks
from penstock.files.file import FOLIO_BYTES, File
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, make_context, open_store
from penstock_alloc.writers import (
    BufferPool,
    FileChannel,
    FileWriter,
    GatheringChannel,
    MmapChannel,
    TransientPoolWriter,
)

CAPACITY = 64 * 1024
ROOT = Path("/store")
WAITS = pytest.mark.parametrize("waits", [True, False])

# --- by plain writes: at once, or gathered where puts wait for the disk anyway


def opened(files: Files, root: Path, *, waits: bool, capacity: int = CAPACITY) -> SegmentChannel:
    writer = FileWriter(NoOptions(), make_context(root, files=files, appenders_wait=waits))
    assert writer.commits_at_once is not waits
    file = files.create(root / "file")
    file.resize(capacity)
    return writer.open(file, capacity, 0)


def test_without_waiting_puts_what_is_written_is_readable_at_once() -> None:
    channel = opened(SimulatedDisk(), ROOT, waits=False)
    assert type(channel) is FileChannel
    channel.write(10, b"abc")
    assert bytes(channel.view[10:13]) == b"abc"
    assert channel.buffer is None


def test_with_waiting_puts_bytes_gather_until_they_are_committed(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    for files, root in ((Files(), tmp_path), (disk, ROOT)):
        channel = opened(files, root, waits=True)
        assert type(channel) is GatheringChannel
        # A file that does more than the system lends no descriptor.
        assert (channel.descriptor is None) is (files is disk)
        channel.write(0, b"abc")
        channel.write(3, b"def")
        assert bytes(channel.view[:6]) == bytes(6)
        channel.commit(6)
        assert bytes(channel.view[:6]) == b"abcdef"
        written = disk.plan.counts.get("pwrite")
        channel.commit(6)
        assert disk.plan.counts.get("pwrite") == written, "not written again"
        channel.close()


def test_what_is_too_much_to_gather_is_written_after_what_waits() -> None:
    room = GatherBuffer().room
    channel = opened(SimulatedDisk(), ROOT, waits=True, capacity=room + 3)
    channel.write(0, b"abc")
    large = b"x" * room
    channel.write(3, large)
    assert bytes(channel.view) == b"abc" + large, "no byte is in the file before those ahead of it"
    channel.commit(room + 3)
    assert bytes(channel.view) == b"abc" + large


@WAITS
def test_blocks_are_there_before_a_byte_is_written(waits: bool) -> None:
    disk, calls = SimulatedDisk(), list[str]()
    channel = opened(disk, ROOT, waits=waits)
    disk.plan.fail("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        channel.write(0, b"abc")
    disk.plan.heal()
    disk.plan.watch = lambda call, path: calls.append(call)
    channel.write(0, b"abc")
    channel.commit(3)
    assert calls == ["allocate", "pwrite"]


@WAITS
def test_a_flush_syncs(waits: bool) -> None:
    disk, calls = SimulatedDisk(), list[str]()
    channel = opened(disk, ROOT, waits=waits)
    channel.write(0, b"abc")
    channel.commit(3)
    disk.plan.watch = lambda call, path: calls.append(call)
    channel.flush()
    assert calls[-1:] == ["sync"]


# --- through a map: what is there at once, and pages that leave the table

SIZE = 64 << 20


def mapped_file(tmp_path: Path) -> File:
    file = Files().create(tmp_path / "f")
    file.resize(SIZE)
    return file


@pytest.mark.slow
def test_pages_that_were_stored_into_leave_the_page_table_in_steps(tmp_path: Path) -> None:
    """A sync costs an interrupt of every processor for each page that is mapped; what was stored stays where it is."""
    file = mapped_file(tmp_path)
    unmapped: list[tuple[int, int]] = []
    real = file.unmap_pages

    def watched(made_map: mmap.mmap, start: int, stop: int) -> None:
        unmapped.append((start, stop))
        real(made_map, start, stop)

    file.unmap_pages = watched  # type: ignore[method-assign, assignment] # watched
    channel = MmapChannel(file, SIZE, Blocks(file, SIZE, 0, mapped=True, zeroes=True))
    data, at = bytes(range(1, 251)) * 4, 0
    while at < 4 << 20:
        channel.write(at, data)
        at += len(data)
    assert unmapped[0][0] == 0
    assert [stop for _, stop in unmapped][:-1] == [start for start, _ in unmapped][1:]
    assert 0 <= at - unmapped[-1][1] <= 256 << 10
    assert max(stop - start for start, stop in unmapped) <= FOLIO_BYTES + (256 << 10)
    assert bytes(channel.view[:at]) == data * (at // len(data))
    channel.close()


def test_a_batch_is_stored_through_the_map_only_where_the_file_has_blocks(tmp_path: Path) -> None:
    """A store into a hole of a full disk would kill the process; a write is refused instead."""
    wrote: list[tuple[int, int]] = []

    class Unprepared(Blocks):
        def prepare(self, position: int, stop: int) -> int:
            return position

    class WatchedFile(File):
        def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
            wrote.append((position, position + len(data)))
            super().pwrite(data, position)

    plain = mapped_file(tmp_path)
    file = WatchedFile(plain.path, plain.detach())
    channel = MmapChannel(file, SIZE, Unprepared(file, SIZE, 0, mapped=True, zeroes=True))
    channel.write(0, bytes(80), [40, 40])
    assert wrote == [(0, 80)]
    channel.close()


# --- a few buffers in turn: how many there are, which is lent next, and memory that cannot be locked


class Unlockable(Files):
    """A machine without room for locked memory."""

    calls = 0

    def lock_memory(self, memory: mmap.mmap) -> None:
        self.calls += 1
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_so_many_buffers_are_lent_the_one_that_came_back_last_first_and_none_after_the_close() -> (
    None
):
    pool = BufferPool(SimulatedDisk(), 2, 8192, lock_memory=False)
    assert pool.available == 2
    first, second, none = (pool.borrow() for _ in range(3))
    assert first is not None
    assert second is not None
    assert (none, len(first), len(second), pool.available) == (None, 8192, 8192, 0)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.available == 2
    assert pool.borrow() is second
    pool.close()
    assert (pool.available, pool.borrow()) == (0, None)


def test_memory_that_cannot_be_locked_is_lent_all_the_same_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Unlockable()
    pool = BufferPool(files, 2, 8192, lock_memory=True)
    assert None not in (pool.borrow(), pool.borrow())
    assert files.calls == 1
    assert caplog.text.count("cannot be locked into memory") == 1
    assert "to 16 KiB" in caplog.text
    caplog.clear()
    with open_store(
        tmp_path / "s", files=files, spawn=ManualWorkers(), write="transient-pool"
    ) as store:
        for _ in range(6):
            store.put("t", b"x" * 40_000, queue=0)
            store.flush()
        assert len(list(store.scan("t"))) == 6
    assert caplog.text.count("cannot be locked into memory") == 1


# --- the transient pool

OpenPool = Callable[..., penstock.Store]


@pytest.fixture
def pooled(tmp_path: Path) -> OpenPool:
    """Return a function that opens a store whose writer has buffers; arguments are its options."""

    def open_it(files: Files | None = None, **options: Any) -> penstock.Store:
        given = {"lock_memory": False, **options}
        return open_store(
            tmp_path / "s", spawn=ManualWorkers(), files=files, write="transient-pool",
            **{f"write.transient-pool.{name}": value for name, value in given.items()},
        )  # fmt: skip

    return open_it


def figures(store: penstock.Store) -> Any:
    return store.stats()["strategies"]["write"]


def test_a_reader_of_the_same_process_finds_what_was_put(pooled: OpenPool) -> None:
    with pooled() as store:
        store.put("t", b"mine", queue=0)
        assert [m.body for m in store.scan("t")] == [b"mine"]


def test_a_full_committed_segment_gives_its_buffer_back(pooled: OpenPool) -> None:
    with pooled(buffers=2) as store:
        store.put("t", b"x" * 60_000, queue=0)
        assert figures(store)["buffers_free"] == 1
        store.put("t", b"x" * 60_000, queue=0)
        # `stats` commits: the first buffer is free again.
        assert figures(store)["buffers_free"] == 1
        for _ in range(6):
            store.put("t", b"x" * 60_000, queue=0)
            store.flush()
        assert figures(store) == {
            "name": "transient-pool",
            "buffers_free": 1,
            "segments_without_buffer": 0,
        }


def test_a_later_segment_is_never_committed_before_an_earlier_one(
    pooled: OpenPool, tmp_path: Path
) -> None:
    files = FaultyFiles()
    store = pooled(files)
    for _ in range(3):
        store.put("t", b"x" * 40_000, queue=0)
    first, second, third = sorted((tmp_path / "s" / "commitlog").iterdir())
    assert not any(b"x" in path.read_bytes() for path in (first, second, third))
    files.plan.fail("pwrite", path=second.name)
    store.stats()  # it commits, as every read does
    assert [b"x" in path.read_bytes() for path in (first, second, third)] == [True, False, False]
    with pytest.raises(penstock.PenstockError, match="could not be passed to the system"):
        store.put("t", b"no", queue=0)
    with pytest.raises(penstock.PenstockError):
        store.close()
    with open_store(tmp_path / "s") as again:
        assert len(list(again.scan("t"))) == 1


@pytest.mark.parametrize("fast_fail", [False, True])
def test_without_a_free_buffer_it_writes_to_the_file_or_fails_fast(
    pooled: OpenPool, tmp_path: Path, fast_fail: bool
) -> None:
    with pooled(buffers=1, fast_fail=fast_fail) as store:
        store.put("t", b"x" * 60_000, queue=0)
        if fast_fail:
            with pytest.raises(BusyError, match="no buffer"):
                store.put("t", b"refused" * 9000, queue=0)
            store.flush()
            # The full segment is committed only when there is a next one; then its buffer is free.
            assert [m.body[:1] for m in store.scan("t")] == [b"x"]
            assert len(list((tmp_path / "s" / "commitlog").iterdir())) == 1
            return
        for _ in range(3):
            store.put("t", b"x" * 60_000, queue=0)
        assert figures(store)["segments_without_buffer"] > 0
        assert len(list(store.scan("t"))) == 4


def test_it_makes_no_sense_where_every_put_waits() -> None:
    assert "every put waits" in (TransientPoolWriter.conflict({"flush": ["sync"]}) or "")
    assert TransientPoolWriter.conflict({"flush": ["async"]}) is None
    assert not TransientPoolWriter.commits_at_once
