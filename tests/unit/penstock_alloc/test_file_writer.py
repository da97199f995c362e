"""Writing by plain writes: at once, or gathered where puts wait for the disk anyway."""

import errno
from pathlib import Path

import pytest

from penstock._kernel import GatherBuffer
from penstock.contracts import NoOptions, SegmentChannel
from penstock.files import Files
from penstock.testing import SimulatedDisk, make_context
from penstock_alloc.file_writer import FileChannel, FileWriter, GatheringChannel

CAPACITY = 64 * 1024
ROOT = Path("/store")


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
    assert (channel.gathered, channel.memory) == (None, None)


def test_with_waiting_puts_bytes_gather_until_they_are_committed(tmp_path: Path) -> None:
    for files, root in ((Files(), tmp_path), (SimulatedDisk(), ROOT)):
        channel = opened(files, root, waits=True)
        assert type(channel) is GatheringChannel
        channel.write(0, b"abc")
        channel.write(3, b"def")
        assert bytes(channel.view[:6]) == bytes(6)
        channel.commit()
        assert bytes(channel.view[:6]) == b"abcdef"
        channel.commit()
        channel.close()


def test_what_was_committed_is_not_written_again() -> None:
    disk = SimulatedDisk()
    channel = opened(disk, ROOT, waits=True)
    channel.write(0, b"abc")
    channel.commit()
    written = disk.plan.counts["pwrite"]
    channel.commit()
    assert disk.plan.counts["pwrite"] == written


def test_what_is_too_much_to_gather_is_written_after_what_waits() -> None:
    room = GatherBuffer().room
    channel = opened(SimulatedDisk(), ROOT, waits=True, capacity=room + 3)
    channel.write(0, b"abc")
    large = b"x" * room
    channel.write(3, large)
    assert bytes(channel.view) == b"abc" + large, "no byte is in the file before those ahead of it"
    channel.commit()
    assert bytes(channel.view) == b"abc" + large


@pytest.mark.parametrize("waits", [True, False])
def test_blocks_are_there_before_a_byte_is_written(waits: bool) -> None:
    disk = SimulatedDisk()
    channel = opened(disk, ROOT, waits=waits)
    disk.plan.fail("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        channel.reserve(100)
    disk.plan.heal()
    channel.reserve(100)
    channel.write(0, b"abc")
    channel.give_back(3)
    channel.flush()


def test_a_file_that_does_more_than_the_system_lends_no_descriptor(tmp_path: Path) -> None:
    assert opened(Files(), tmp_path, waits=True).descriptor is not None
    assert opened(SimulatedDisk(), ROOT, waits=True).descriptor is None


def test_a_file_that_was_never_written_has_no_blocks_yet() -> None:
    disk, calls = SimulatedDisk(), list[str]()
    disk.make_folder_durably(ROOT)
    file = disk.create(ROOT / "file")
    file.resize(CAPACITY)
    channel = FileChannel(file, CAPACITY)
    disk.plan.watch = lambda call, path: calls.append(call)
    channel.write(0, b"abc")
    assert calls == ["allocate", "pwrite"]


@pytest.mark.parametrize("waits", [True, False])
def test_blocks_that_go_back_are_synced_and_a_flush_syncs(waits: bool) -> None:
    disk, calls = SimulatedDisk(), list[str]()
    channel = opened(disk, ROOT, waits=waits)
    channel.write(0, b"abc")
    channel.commit()
    disk.plan.watch = lambda call, path: calls.append(call)
    channel.give_back(3)
    assert calls[-1:] == ["sync"]
    calls.clear()
    channel.give_back(3)
    assert "sync" not in calls
    channel.flush()
    assert calls[-1:] == ["sync"]
