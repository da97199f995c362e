"""Marks that are read while another process, or another thread, writes them."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.torn import TornFiles
from tests.unit.integrity.test_segment_digests import seal_all

from penstock.durability.progress import Progress, State, decode_slot, encode_slot
from penstock.durability.side_folder import visible_offset
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, open_store
from penstock.testing.kit import messages


def both_slots(data: bytes) -> bytes:
    """The reader was held up between two pages while the writer wrote both slots."""
    return data[:300] + b"\xee" * 40 + data[340:800] + b"\xee" * 40 + data[840:]


def one_slot(data: bytes) -> bytes:
    younger = 0 if data[8:16] > data[520:528] else 512
    return data[: younger + 64] + b"\xee" * 8 + data[younger + 72 :]


def live(path: Path) -> tuple[Store, ManualWorkers]:
    """A store that is being written, some of its segments sealed."""
    workers = ManualWorkers()
    store = open_store(path, spawn=workers, retention=[])
    for first in range(0, 800, 100):
        store.put_many(messages(100, first=first))
    store.flush()
    workers.run("penstock-follow")
    workers.run("penstock-mark")
    seal_all(workers)
    return store, workers


@pytest.mark.parametrize("tear", [both_slots, one_slot])
def test_progress_that_was_caught_half_written_is_read_again(
    tear: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Nothing was known then: a reader took the store for another program's, and an older slot for the newest."""
    store, _ = live(tmp_path / "s")
    right = visible_offset(Files(), tmp_path / "s")
    assert right
    assert visible_offset(TornFiles("progress", tear), tmp_path / "s") == right
    assert visible_offset(TornFiles("progress", tear, times=2), tmp_path / "s") == right
    store.close()


def test_progress_that_stays_torn_is_not_waited_for(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    store.close()
    files = TornFiles("progress", both_slots, times=1000)
    assert Progress(files, tmp_path / "s").read() == State()
    assert files.times > 900


def test_what_is_replaced_whole_is_read_whole(tmp_path: Path) -> None:
    """Offsets, geometry, holder and clean mark change their names' owner, never their bytes."""
    store, _ = live(tmp_path / "s")
    store.commit_offset("g", "topic-0", offset=1)
    held = [
        tmp_path / "s" / name
        for name in ("config/consumerOffset.json", "penstock/geometry.json", "penstock/holder")
    ]
    open_files = [path.open("rb") for path in held]
    numbers = [os.fstat(file.fileno()).st_ino for file in open_files]
    before = [path.read_bytes() for path in held]
    store.commit_offset("g", "topic-0", offset=2)
    store.close()
    store = open_store(tmp_path / "s", retention=[])
    assert [file.read() for file in open_files] == before
    assert held[0].stat().st_ino != numbers[0]
    assert json.loads(held[0].read_text())["offsetTable"] == {"topic-0@g": {"0": 2}}
    store.close()
    for file in open_files:
        file.close()


def test_a_progress_slot_counts_only_when_its_crc_is_right(tmp_path: Path) -> None:
    state = State(
        flushed_offset=7,
        visible_offset=5,
        lock_mtime_ns=9,
        failed=True,
        dispatched={"a": 3, "b": 4},
    )
    slot = encode_slot(state, 12)
    assert decode_slot(slot, tmp_path) == (12, state)
    for position in range(0, len(slot), 7):
        broken = bytearray(slot)
        broken[position] ^= 1
        assert decode_slot(bytes(broken), tmp_path) is None


def test_slots_are_written_in_turn_and_the_newest_valid_one_is_read() -> None:
    disk, root = SimulatedDisk(), Path("/s")
    path = root / "penstock" / "progress"
    disk.make_folder_durably(path.parent)
    progress, data = Progress(disk, root), b""
    assert progress.descriptor is None, "of a simulated disk"
    assert disk.read_whole(path) == bytes(1024), "both slots, before one is written"
    for sequence in (1, 2, 3):
        progress.state.flushed_offset = 100 * sequence
        progress.write()
        data = disk.read_whole(path)
        assert len(data) == 1024
        place = sequence % 2 * 512
        assert decode_slot(data[place : place + 512], path) == (sequence, progress.state)
        again = Progress(disk, root)
        assert (again.read().flushed_offset, again.sequence) == (100 * sequence, sequence)
    progress.close()
    disk.write_whole(path, data[:512] + b"?" + data[513:])
    torn = Progress(disk, root)
    assert (torn.read().flushed_offset, torn.sequence) == (200, 2)


def test_what_could_not_be_published_is_not_taken_for_published() -> None:
    disk, root = SimulatedDisk(), Path("/s")
    disk.make_folder_durably(root / "penstock")
    progress = Progress(disk, root)
    progress.publish(5)
    disk.plan.fail("pwrite", errno.EIO, times=1)
    with pytest.raises(OSError, match="Errno 5"):
        progress.publish(9)
    assert progress.state.visible_offset == 5
    progress.publish(9)
    assert Progress(disk, root).read().visible_offset == 9


def test_a_file_that_is_replaced_goes_on_from_its_first_slot() -> None:
    disk, root = SimulatedDisk(), Path("/s")
    path = root / "penstock" / "progress"
    disk.make_folder_durably(path.parent)
    progress = Progress(disk, root)
    progress.write()
    progress.close()
    progress.close()
    progress.replace(State(flushed_offset=5))
    data = disk.read_whole(path)
    assert (data[:512], decode_slot(data[512:], path)) == (bytes(512), (1, progress.state))
    assert progress.sequence == 1
    progress.write()
    assert Progress(disk, root).read().flushed_offset == 5
    assert decode_slot(disk.read_whole(path)[:512], path) == (2, progress.state)


def test_of_a_store_without_a_file_nothing_is_known() -> None:
    files = TornFiles("progress", both_slots)
    assert Progress(files, Path("/none")).read() == State()
    state = State()
    assert (state.flushed_offset, state.visible_offset, state.lock_mtime_ns) == (0, 0, 0)
    assert (state.failed, state.dispatched) == (False, {})
