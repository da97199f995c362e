"""Blocks ahead of the tail: steps that grow with the rate, none after a clean close, and never a store into a hole."""

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import OpenStore

import penstock
from penstock.errors import DiskFullError, StoreFailedError
from penstock.files import Files
from penstock.files.blocks import STEP_BYTES_MAX, STEP_BYTES_MIN, ZEROS_BYTES, Blocks
from penstock.files.file import FOLIO_BYTES, File
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing.disk import SimulatedDisk
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import ManualClock, ManualWorkers, copy_files, open_store
from penstock_alloc.writers import MmapChannel

SIZE = 64 << 20


WRITERS = [("mmap", "async"), ("file", "sync"), ("file", "async"), ("transient-pool", "async")]


def on_disk(root: Path) -> int:
    """Bytes that a store takes, folders included."""
    return sum(path.stat().st_blocks * 512 for path in [root, *root.rglob("*")])


def apparent(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def made(tmp_path: Path, files: Files | None = None) -> File:
    if files is None:
        tmp_path.mkdir(exist_ok=True)
    file = (files or Files()).create(tmp_path / "f")
    file.resize(SIZE)
    return file


# --- the targets


@pytest.mark.slow
@pytest.mark.parametrize(("write", "flush"), WRITERS)
def test_one_message_takes_under_2_mb(write: str, flush: str, tmp_path: Path) -> None:
    """In version 0.1 a message of 18 bytes took 105 MB."""
    root = tmp_path / "s"
    for turn in range(3):
        with penstock.open(root, environ={}, write=write, flush=flush) as store:
            assert store.recovery is not None
            assert store.recovery.state == ("clean" if turn else "new")
            store.put("t", b"x" * 18, queue=0, keys=["k"])
            store.flush()
            assert [m.body for m in store.find("k", "t")] == [b"x" * 18] * (turn + 1)
            assert on_disk(root) < 2_000_000, "while it is open as well"
        assert on_disk(root) < 200_000, "nothing is left ahead"
    segment = root / "commitlog" / f"{0:020d}"
    assert segment.stat().st_size == 64 << 20, "RocketMQ asks for the full length"


@pytest.mark.slow
def test_200_topics_take_under_8_mb_and_seem_to_take_under_150(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with penstock.open(root, environ={}) as store:
        for number in range(200):
            store.put(f"topic-{number}", b"x" * 18, queue=0, keys=[f"k{number}"])
    assert on_disk(root) < 8_000_000
    assert apparent(root) < 150_000_000
    with penstock.open(root, environ={}) as store:
        assert all(store.find(f"k{n}", f"topic-{n}") for n in range(200))
        assert not list(store.verify())


@pytest.mark.slow
def test_a_killed_store_gives_back_at_the_next_opening(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = penstock.open(root, environ={})
    store.put_many([Message("t", b"x" * 1000, queue=0, keys=[f"k{n}"]) for n in range(3000)])
    store.flush()
    assert store.max_offset("t", 0) == 3000
    assert store.find("k0", "t")
    copy_files(root, tmp_path / "killed")
    subprocess.run(["cp", "-a", "--sparse=never", str(root), str(tmp_path / "full")], check=True)
    store.close()
    assert on_disk(tmp_path / "full") > 64 << 20
    for name in ("killed", "full"):
        penstock.open(tmp_path / name, environ={}).close()
        assert on_disk(tmp_path / name) < 6 << 20, name


# --- copies


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("way", ["cp -a", "cp -a --sparse=never", "cp -a --sparse=always", "tar", "tar -S", "rsync -a", "rsync -aS"])  # fmt: skip
@pytest.mark.parametrize("is_closed", [True, False])
def test_every_copy_opens_equal_and_is_written_on(
    way: str, is_closed: bool, open_small: OpenStore, tmp_path: Path
) -> None:
    tool = way.split(maxsplit=1)[0]
    if shutil.which(tool) is None:
        assert tool == "rsync", f"{tool} is needed"
        pytest.skip("there is no rsync here")
    source, target = tmp_path / "store", tmp_path / "copy"
    sent = [b"%d:" % n + bytes(n * 97 % 9000) for n in range(60)]
    # A copier fails on a file that was there when it listed the folder: while it runs none may be made beside its place.
    store = open_small(**{"scrub.digests": is_closed})
    for number, body in enumerate(sent):
        store.put("t", body, queue=0, keys=[f"k{number}"])
    store.flush()
    assert store.max_offset("t", 0) == len(sent)
    assert store.find("k0", "t"), "the index is up to it"
    if is_closed:
        store.close()
    if tool == "tar":
        target.mkdir()
        command = f"{way} -C {source} -cf - . | tar -C {target} -xf -"
    else:
        command = f"{way} {source}/ {target}" if tool == "rsync" else f"{way} {source} {target}"
    subprocess.run(["sh", "-c", command], check=True)
    store.close()
    for more in range(3):
        with open_small(path=target) as copy:
            bodies = [message.body for message in copy.scan("t")]
            assert bodies == sent + [b"more" * 999] * more
            assert all(copy.find(f"k{n}", "t") for n in range(len(sent)))
            assert not list(copy.verify())
            copy.put("t", b"more" * 999, queue=0)


# --- steps


def test_steps_grow_with_the_rate_and_shrink_again(tmp_path: Path) -> None:
    clock, file = ManualClock(), made(tmp_path)
    file.resize(2 * SIZE)
    blocks = Blocks(file, 2 * SIZE, 0, clock.monotonic_ms)
    steps = []
    for lasted_ms in [0] + [10] * 7 + [1000] * 2 + [5000] * 7:
        clock.now_ms += lasted_ms
        before = blocks.end
        blocks.reserve(before + 1)
        steps.append(blocks.end - before)
    assert steps[:3] == [STEP_BYTES_MIN, 8 * STEP_BYTES_MIN, STEP_BYTES_MAX]
    assert steps[3:10] == [STEP_BYTES_MAX] * 7, (
        "as large as they get, and then neither short nor long"
    )
    assert steps[10:] == [
        *(STEP_BYTES_MAX >> n for n in range(1, 6)),
        STEP_BYTES_MIN,
        STEP_BYTES_MIN,
    ]


def test_the_next_file_goes_on_with_the_rate_of_the_one_before(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Blocks(made(tmp_path), SIZE, 0, clock.monotonic_ms)
    while first.end < SIZE:
        first.reserve(first.end + 1)
        clock.now_ms += 1
    fast = Blocks(made(tmp_path / "next"), SIZE, 0, clock.monotonic_ms, after=first)
    fast.reserve(1)
    assert fast.end == STEP_BYTES_MAX
    clock.now_ms += 60_000
    slow = Blocks(made(tmp_path / "slow"), SIZE, 0, clock.monotonic_ms, after=fast)
    slow.reserve(1)
    assert slow.end == STEP_BYTES_MAX // 2


@pytest.mark.slow
@pytest.mark.parametrize("begin", [0, 5000, FOLIO_BYTES - 1, FOLIO_BYTES, 3 * FOLIO_BYTES + 77])
def test_stores_go_only_where_a_whole_folio_has_blocks(begin: int, tmp_path: Path) -> None:
    """The page cache gives blocks to whole folios: with a hole in one of them a store dies on a full disk."""
    file = made(tmp_path)
    asked: list[tuple[int, int]] = []
    file.allocate_range = lambda start, stop: asked.append((start, stop))  # type: ignore[method-assign] # watched
    blocks = Blocks(file, SIZE, begin, ManualClock().monotonic_ms, mapped=True)
    position = begin
    while position < SIZE:
        position = min(position + 100_000, SIZE)
        blocks.reserve(position)
        assert blocks.end >= position
        has = bytearray(SIZE // 4096)
        for start, stop in asked:
            has[start // 4096 : stop // 4096] = b"\1" * (stop // 4096 - start // 4096)
        assert all(has[begin // 4096 : blocks.end // 4096])
        if blocks.mapped_end:
            assert all(has[(begin - begin % FOLIO_BYTES) // 4096 : blocks.mapped_end // 4096])
            assert blocks.mapped_end % FOLIO_BYTES == 0
    assert blocks.mapped_end == SIZE


def test_what_fits_is_allocated_where_a_step_does_not(tmp_path: Path) -> None:
    disk = SimulatedDisk(capacity=40 * 4096)
    disk.make_folder(tmp_path)
    file = made(tmp_path, disk)
    blocks = Blocks(file, SIZE, 0, ManualClock().monotonic_ms)
    blocks.reserve(10 * 4096 - 5)
    assert blocks.end == 10 * 4096
    with pytest.raises(OSError, match="space") as caught:
        blocks.reserve(41 * 4096)
    assert caught.value.errno == errno.ENOSPC
    assert blocks.end == 10 * 4096
    blocks.reserve(40 * 4096)
    assert blocks.end == 40 * 4096


def test_a_file_system_that_cannot_allocate_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(tmp_path)
    file.pwrite(b"kept", 8190)

    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file.allocate_range(4096, 3 << 20)
    assert (tmp_path / "f").stat().st_blocks * 512 >= (3 << 20) - 4096
    assert file.pread(12, 8186) == b"\0\0\0\0kept\0\0\0\0"
    assert file.size == SIZE


def test_a_punch_that_fails_leaves_the_store_marked_and_whole(tmp_path: Path) -> None:
    files = FaultyFiles()
    # A file larger than a step, so that something is ahead.
    sizes: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}
    store = open_store(tmp_path / "s", files=files, **sizes)
    store.put("t", b"x", queue=0, keys=["k"])
    files.plan.fail("punch")
    with pytest.raises(penstock.errors.StorageError, match="could not be closed cleanly"):
        store.close()
    files.abandon()
    with open_store(tmp_path / "s", **sizes) as store:
        assert store.recovery is not None
        assert store.recovery.state != "clean"
        assert [m.body for m in store.scan("t")] == [b"x"]
        assert not list(store.verify())


# --- zeros ahead


class WatchedFile(File):
    """A file that notes what is written to it, and which zeros are withdrawn."""

    def __init__(self, file: File) -> None:
        super().__init__(file.path, file.detach())
        self.wrote: list[tuple[int, int]] = []
        self.withdrawn: list[tuple[int, int]] = []

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        assert not any(data)
        self.wrote.append((position, position + len(data)))
        super().pwrite(data, position)

    def zero_range(self, start: int, stop: int) -> bool:
        self.withdrawn.append((start, stop))
        return super().zero_range(start, stop)


def watched(tmp_path: Path) -> tuple[WatchedFile, Blocks]:
    file = WatchedFile(made(tmp_path))
    file.allocated = SIZE
    return file, Blocks(file, SIZE, 0, mapped=True, zeroes=True)


@pytest.mark.parametrize("size", [1, 1157, 4096, 5000, ZEROS_BYTES - 1, ZEROS_BYTES, 300_000])
def test_zeros_are_written_after_what_comes_next_and_up_to_a_step(
    size: int, tmp_path: Path
) -> None:
    """Over what comes next, or before it, they could replace what was acknowledged."""
    file, blocks = watched(tmp_path)
    position = ready = 0
    while position + size < 4 * ZEROS_BYTES + 2 * size:
        stop = position + size
        if stop > ready:
            before = len(file.wrote)
            ready = blocks.prepare(position, stop)
            assert stop <= ready <= blocks.mapped_end
            assert file.wrote[before:] in ([], [(stop, ready)])
        position = stop
    assert file.wrote, "some went ahead"
    assert file.wrote[0][0] >= ZEROS_BYTES, (
        "but none in the first step: messages may be synced one by one"
    )
    assert not file.withdrawn


def test_after_a_sync_a_step_goes_without_zeros(tmp_path: Path) -> None:
    file, blocks = watched(tmp_path)
    steps = []
    for step in range(8):
        if step in (3, 4):
            blocks.note_sync()
        before = len(file.wrote)
        blocks.prepare(step * ZEROS_BYTES, step * ZEROS_BYTES + 10)
        steps.append(len(file.wrote) - before)
    assert steps == [0, 1, 1, 0, 0, 1, 1, 1]
    assert not file.withdrawn, "one sync in a step is an interval's"


def test_syncs_one_after_the_other_withdraw_what_zeros_are_left(tmp_path: Path) -> None:
    """They came in as one folio, and each sync would write all of it."""
    file, blocks = watched(tmp_path)
    blocks.prepare(0, 10)
    ready = blocks.prepare(ZEROS_BYTES, ZEROS_BYTES + 10)
    assert file.wrote == [(ZEROS_BYTES + 10, 2 * ZEROS_BYTES)]
    for turn in range(1, 200):
        blocks.note_sync()
        position = ZEROS_BYTES + 1000 * turn
        ready = blocks.prepare(position, position + 10)
        left = [(ZEROS_BYTES + 4096, 2 * ZEROS_BYTES)] if turn > 1 else []
        assert file.withdrawn == left
    assert len(file.wrote) == 1
    assert ready == 3 * ZEROS_BYTES
    assert blocks.end == SIZE, "the blocks stay"


def test_batches_bring_their_own_pages(tmp_path: Path) -> None:
    """After a plain write of many bytes nothing goes ahead until single messages have filled a step."""
    file, blocks = watched(tmp_path)
    blocks.prepare(0, 10)
    for step in range(1, 20, 2):
        blocks.reserve(step * ZEROS_BYTES + 5000)
        blocks.prepare(step * ZEROS_BYTES + 5000, step * ZEROS_BYTES + 5010)
    assert not file.wrote


def test_pages_in_memory_get_no_zeros(tmp_path: Path) -> None:
    file = WatchedFile(made(tmp_path))
    file.allocated = SIZE
    file.prefault(SIZE)
    blocks = Blocks(file, SIZE, 0, mapped=True, zeroes=True)
    for step in range(4):
        assert blocks.prepare(step * ZEROS_BYTES, step * ZEROS_BYTES + 10) == SIZE
    assert not file.wrote


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_stays_whatever_syncs_beside_it(seed: int, tmp_path: Path) -> None:
    """Zeros ahead, withdrawn zeros, batches and syncs from another thread, all at once."""
    chance = Random(seed)
    print("seed", seed)
    file = made(tmp_path)
    file.allocate(SIZE)
    channel = MmapChannel(file, SIZE, Blocks(file, SIZE, 0, mapped=True, zeroes=True))
    over = threading.Event()

    def sync() -> None:
        while not over.is_set():
            channel.flush()

    thread = threading.Thread(target=sync)
    thread.start()
    expected = bytearray()
    try:
        while len(expected) < 3 << 20:
            if chance.random() < 0.01:
                sizes = [chance.randrange(1, 3000) for _ in range(chance.choice((3, 400)))]
                data = chance.randbytes(sum(sizes))
                channel.write(len(expected), data, sizes)
            else:
                data = chance.randbytes(chance.choice((1, 100, 1157, 9000)))
                channel.write(len(expected), data)
            expected += data
    finally:
        over.set()
        thread.join()
    assert channel.view[: len(expected)] == expected
    assert not any(channel.view[len(expected) :])
    channel.close()


def zeroing_store(tmp_path: Path, files: Files) -> Store:
    """A store whose next bytes but a few are the zeros that go ahead of them."""
    options: dict[str, Any] = {
        "alloc": "preallocate", "alloc.preallocate.prefault": False, "geometry.segment_bytes": 1 << 20,
    }  # fmt: skip
    store = open_store(
        tmp_path / "s", files=files, write="mmap", flush="none", retention=[],
        spawn=ManualWorkers(), **options,
    )  # fmt: skip
    while store.stats()["log_end_offset"] < 3 * ZEROS_BYTES - 3000:
        store.put("t", b"x" * 1000, queue=0)
    return store


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_zeros_that_cannot_be_written_refuse_the_put_by_name(number: int, tmp_path: Path) -> None:
    files = FaultyFiles()
    store = zeroing_store(tmp_path, files)
    kept = store.max_offset("t", 0)
    files.plan.fail("pwrite", number, path="commitlog")
    with pytest.raises((DiskFullError, StoreFailedError), match=f"{0:020d}") as caught:
        for _ in range(9):
            store.put("t", b"x" * 1000, queue=0)
            kept += 1
    assert isinstance(caught.value, StoreFailedError) == (number == errno.EIO)
    files.plan.heal()
    if number == errno.EIO:
        with pytest.raises(StoreFailedError):
            store.put("t", b"never", queue=0)
        with pytest.raises(penstock.errors.StorageError):
            store.close()
        files.abandon()
    else:
        store.put("t", b"x" * 1000, queue=0)
        kept += 1
        store.close()
    sizes: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}
    with open_store(tmp_path / "s", **sizes) as store:
        assert everything(store) == [b"x" * 1000] * kept
        assert not list(store.verify())


# --- no room


def everything(store: Store) -> list[bytes]:
    return [message.body for message in store.scan("t")]


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize(("write", "flush"), WRITERS)
@pytest.mark.parametrize("alloc", ["on-demand", "preallocate", "recycle"])
def test_a_full_disk_at_every_page_refuses_by_name_and_heals(
    write: str, flush: str, alloc: str, tmp_path: Path
) -> None:
    """The disk has so many pages left, for each number of them until everything fits; nothing that counts is lost."""
    sizes: dict[str, Any] = {"geometry.segment_bytes": 1 << 20, "geometry.index_entries": 40}
    batch = [
        Message("t", b"%d:" % n + b"b" * 60_000, queue=0, keys=[f"b{n}", f"c{n}"])
        for n in range(20)
    ]
    for left in [*range(12), *range(12, 800, 53)]:
        disk, clock = SimulatedDisk(seed=left), ManualClock()
        root = Path("/s")
        options: dict[str, Any] = {"write": write, "flush": flush, "alloc": alloc, "retention": []}
        options |= {"alloc.preallocate.prefault": False, "write.transient-pool.lock_memory": False}
        if flush == "sync":
            options["flush.sync.timeout_ms"] = 60_000
        store = open_store(root, files=disk, clock=clock, **options, **sizes)
        store.put("t", b"first", queue=0, keys=["first"])
        store.flush()
        kept = [b"first"]
        disk.capacity = disk.used + left * 4096
        for turn in range(6):
            try:
                if turn % 2:
                    store.put_many(batch)
                    kept += [message.body for message in batch]
                else:
                    store.put("t", b"%d" % turn * 9000, queue=0, keys=[f"s{turn}"])
                    kept.append(b"%d" % turn * 9000)
            except DiskFullError:
                pass
        disk.capacity = 1 << 50
        # Later than the pause before dispatchers that failed are tried again.
        clock.now_ms += 60_000
        store.put("t", b"again", queue=0, keys=["again"])
        kept.append(b"again")
        store.flush()
        assert everything(store) == kept, left
        assert len(store.find("again", "t")) == len(store.find("first", "t")) == 1
        assert len(store.find("c7", "t")) == kept.count(batch[7].body), left
        assert not list(store.verify()), left
        store.close()
        disk.image()
        with open_store(root, files=disk, **options, **sizes) as store:
            assert store.recovery is not None
            assert store.recovery.state == "clean", left
            assert everything(store) == kept
