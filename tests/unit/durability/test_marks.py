"""What a store notes beside its log: checkpoint, progress, clean mark, holder, removed topics; and when it is believed."""

import errno
import json
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from tests.conftest import power_cut
from tests.torn import TornFiles
from tests.unit.integrity.live import live

import penstock
from penstock.durability import side_folder
from penstock.durability.progress import (
    CHECKPOINT_BYTES,
    Checkpoint,
    Progress,
    State,
    Times,
)
from penstock.durability.side_folder import (
    CleanClose,
    RemovedTopics,
    RemovedTopicsFile,
    SideFolder,
    fingerprint,
    is_copy,
    is_unfinished_copy,
    penstock_wrote_last,
    visible_offset,
)
from penstock.files import Files
from penstock.testing import ManualClock, SimulatedDisk, open_store

ROOT = Path("/store")
CLEAN = CleanClose(log_end=7, last_time_ms=9, digest="abc")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> SimulatedDisk:
    made = SimulatedDisk(clock=clock)
    made.make_folder_durably(ROOT)
    SideFolder(made, ROOT).make()
    return made


# --- the checkpoint, whose form is RocketMQ's


CHECKPOINT = ROOT / "checkpoint"


def test_a_checkpoint_has_its_times_at_javas_places_and_survives_a_power_cut(
    disk: SimulatedDisk,
) -> None:
    assert Checkpoint(disk, ROOT).read() == Times()
    Checkpoint(disk, ROOT).write(Times(1, 1, 1))
    Checkpoint(disk, ROOT).write(Times(3, 2, 1))
    assert Checkpoint(power_cut(disk), ROOT).read() == Times(3, 2, 1)
    data = disk.read_whole(CHECKPOINT)
    assert data == struct.pack(">qqqqq", 3, 2, 1, 0, 0) + bytes(CHECKPOINT_BYTES - 40)


@pytest.mark.parametrize(
    ("data", "times"),
    [
        (struct.pack(">qqqq", 1, 2, 3, 4), Times()),
        (struct.pack(">qqqqq", -5, 7, -1, 0, 0), Times(0, 7, 0)),
    ],
)
def test_half_a_checkpoint_and_a_negative_time_say_nothing(
    data: bytes, times: Times, disk: SimulatedDisk
) -> None:
    disk.write_whole(CHECKPOINT, data)
    assert Checkpoint(disk, ROOT).read() == times
    Checkpoint(disk, ROOT).write(Times(1, 2, 3))
    assert Checkpoint(disk, ROOT).read() == Times(1, 2, 3)
    assert len(disk.read_whole(CHECKPOINT)) == CHECKPOINT_BYTES


def test_a_checkpoint_that_is_there_is_written_in_place(disk: SimulatedDisk) -> None:
    """What follows the times stays, and no crash leaves a file without any."""
    disk.write_whole(CHECKPOINT, bytes(CHECKPOINT_BYTES - 1) + b"x")
    seen: list[str] = []
    disk.plan.watch = lambda call, path: seen.append(call)
    Checkpoint(disk, ROOT).write(Times(1, 2, 3))
    assert seen == ["pwrite", "sync"]
    assert disk.read_whole(CHECKPOINT)[-1:] == b"x"


# --- progress


def both_slots(data: bytes) -> bytes:
    """The reader was held up between two pages while the writer wrote both slots."""
    return data[:300] + b"\xee" * 40 + data[340:800] + b"\xee" * 40 + data[840:]


def one_slot(data: bytes) -> bytes:
    younger = 0 if data[8:16] > data[520:528] else 512
    return data[: younger + 64] + b"\xee" * 8 + data[younger + 72 :]


@pytest.mark.parametrize("tear", [both_slots, one_slot])
def test_progress_that_was_caught_half_written_is_read_again(
    tear: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Nothing was known then: a reader took the store for another program's, and an older slot for the newest."""
    store, _ = live(tmp_path / "s")
    right = visible_offset(Files(), tmp_path / "s")()
    assert right
    assert visible_offset(TornFiles("progress", tear), tmp_path / "s")() == right
    assert visible_offset(TornFiles("progress", tear, times=2), tmp_path / "s")() == right
    store.close()


def test_a_closed_store_has_all_published_if_the_newer_slot_is_lost(tmp_path: Path) -> None:
    """A flipped bit there hid every message from readers; nothing was found wrong."""
    store, _ = live(tmp_path / "s")
    store.close()
    right = visible_offset(Files(), tmp_path / "s")()
    path = tmp_path / "s" / "penstock" / "progress"
    path.write_bytes(one_slot(path.read_bytes()))
    assert visible_offset(Files(), tmp_path / "s")() == right


def test_where_a_store_was_closed_counts_until_a_repair_for_readers_too(tmp_path: Path) -> None:
    """It does not change the lock file, so a reader from before showed what the next writer had not published."""
    root = tmp_path / "s"
    store, _ = live(root)
    store.close()
    published = visible_offset(Files(), root)
    end = published()
    assert end
    first, *_ = segments = sorted((root / "commitlog").iterdir())
    number, position = divmod(end, first.stat().st_size)
    with segments[number].open("r+b") as file:
        file.seek(position - 8)
        file.write(b"\xa5" * 8)
    penstock.repair(root, cut=True, apply=True, environ={})
    cut = visible_offset(Files(), root)()
    assert cut is not None
    assert published() == cut < end


def test_progress_that_stays_torn_is_not_waited_for(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    store.close()
    files = TornFiles("progress", both_slots, times=1000)
    assert Progress(files, tmp_path / "s").read() == State()
    assert files.times > 900
    assert Progress(files, Path("/none")).read() == State()


def test_what_is_replaced_whole_is_read_whole(tmp_path: Path) -> None:
    """Offsets, geometry, holder and clean mark change their names' owner, never their bytes."""
    store, _ = live(tmp_path / "s")
    store.commit_offset("g", "topic-0", 0, offset=1)
    held = [
        tmp_path / "s" / name
        for name in ("config/consumerOffset.json", "penstock/geometry.json", "penstock/holder")
    ]
    open_files = [path.open("rb") for path in held]
    numbers = [os.fstat(file.fileno()).st_ino for file in open_files]
    before = [path.read_bytes() for path in held]
    store.commit_offset("g", "topic-0", 0, offset=2)
    store.close()
    store = open_store(tmp_path / "s", retention=[])
    assert [file.read() for file in open_files] == before
    assert held[0].stat().st_ino != numbers[0]
    assert json.loads(held[0].read_text())["offsetTable"] == {"topic-0@g": {"0": 2}}
    store.close()
    for file in open_files:
        file.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_write_that_failed_is_repeated_in_its_slot(clock: ManualClock, seed: int) -> None:
    disk = SimulatedDisk(clock=clock, seed=seed)
    SideFolder(disk, ROOT).make()
    progress = Progress(disk, ROOT)
    progress.publish(5)
    disk.plan.fail("pwrite", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Errno 28"):
            progress.publish(9)
    assert Progress(disk, ROOT).read().visible_offset == 5


# --- the side folder


def test_a_clean_mark_goes_for_good_with_its_manifest(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    assert side.read_clean() is None
    side.write_clean(CLEAN)
    disk.write_whole(side.path / "manifest", b"x")
    assert side.read_clean() == CLEAN
    side.remove_clean()
    crashed = power_cut(disk)
    assert not [name for name in ("clean", "manifest") if crashed.exists(side.path / name)]
    seen: list[str] = []
    disk.plan.watch = lambda call, path: seen.append(call)
    side.remove_clean()
    assert seen == [], "nothing is there to be removed"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b'{"log_end": 1}', b'{"log_end": "x", "last_time_ms": 1, "digest": ""}', b"[" * 9999, b"\xff"]
)  # fmt: skip
def test_a_clean_mark_that_cannot_be_understood_is_none(disk: SimulatedDisk, data: bytes) -> None:
    disk.write_whole(ROOT / "penstock" / "clean", data)
    assert SideFolder(disk, ROOT).read_clean() is None


def test_a_fingerprint_is_of_names_sizes_and_times_below_the_folders(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    folder = ROOT / "commitlog"
    found = [fingerprint(disk, [folder])]
    disk.make_folder_durably(folder / "below")
    disk.write_whole(folder / "below" / "a", b"x")
    found.append(fingerprint(disk, [folder]))
    disk.rename(folder / "below" / "a", folder / "below" / "b")
    found.append(fingerprint(disk, [folder]))
    clock.now_ms += 1
    disk.write_whole(folder / "below" / "b", b"y")
    found.append(fingerprint(disk, [folder]))
    assert len(set(found)) == 4
    assert fingerprint(disk, [folder]) == found[-1]
    assert fingerprint(disk, [ROOT / "none"]) == found[0]
    names = [path.name for path in side_folder.vouched_for(ROOT)]
    assert names == ["commitlog", "consumequeue", "consumequeue_ext", "index"]


def test_who_wrote_last_is_known_by_the_time_of_the_lock_file(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    """Without a lock file, and of a time that was never noted, nothing is known; a visible offset counts only then."""
    progress = Progress(disk, ROOT)
    state = progress.read()
    assert not penstock_wrote_last(disk, ROOT, 0)
    disk.write_whole(ROOT / "lock", b"lock")
    assert not penstock_wrote_last(disk, ROOT)
    side_folder.note_lock(state, disk, ROOT)
    assert penstock_wrote_last(disk, ROOT, state.lock_mtime_ns)
    assert penstock_wrote_last(disk, ROOT, 0, state.lock_mtime_ns)
    assert not penstock_wrote_last(disk, ROOT, 0, state.lock_mtime_ns - 1)
    state.visible_offset = 77
    progress.write()
    progress.close()
    assert visible_offset(disk, ROOT)() == 77
    SideFolder(disk, ROOT).write_clean(CleanClose(log_end=99, last_time_ms=0, digest=""))
    published = visible_offset(disk, ROOT)
    assert published() == 99
    clock.now_ms += 1
    disk.write_whole(ROOT / "lock", b"java")
    assert not penstock_wrote_last(disk, ROOT, state.lock_mtime_ns)
    assert visible_offset(disk, ROOT)() is None


def test_a_store_whose_lock_file_is_another_one_is_a_copy(disk: SimulatedDisk) -> None:
    disk.write_whole(ROOT / "lock", b"lock")
    state = State()
    assert not is_copy(disk, ROOT, state), "nothing was noted"
    side_folder.note_lock(state, disk, ROOT)
    assert not is_copy(disk, ROOT, state)
    copied = attrs.evolve(state, lock_ctime_ns=state.lock_ctime_ns + 1)
    assert is_copy(disk, ROOT, copied)
    older = attrs.evolve(state, lock_mtime_ns=state.lock_mtime_ns - 1)
    assert not is_copy(disk, ROOT, older), "another program opened the store itself"
    assert is_copy(disk, ROOT, attrs.evolve(older, lock_inode=state.lock_inode + 1))
    assert not is_unfinished_copy(disk, ROOT, state)
    assert is_unfinished_copy(disk, ROOT, copied)
    SideFolder(disk, ROOT).write_clean(CLEAN)
    assert not is_unfinished_copy(disk, ROOT, copied)
    disk.write_whole(ROOT / "abort", b"")
    assert is_unfinished_copy(disk, ROOT, copied)


def test_a_holder_is_named_or_guessed_and_no_mark_is_read_beyond_its_greatest_size(
    disk: SimulatedDisk,
) -> None:
    side = SideFolder(disk, ROOT)
    assert "another program" in side.read_holder()
    side.write_holder(1234)
    assert side.read_holder().startswith("process 1234, since ")
    disk.write_whole(side.path / "holder", b"x" * 4096)
    assert side.read_holder() == "x" * 4096
    disk.write_whole(side.path / "holder", b"x" * 4097)
    assert "another program" in side.read_holder()
    side.write_clean(CLEAN)
    clean = disk.read_whole(side.path / "clean")
    for size, found in ((64 << 20, CLEAN), ((64 << 20) + 1, None)):
        disk.write_whole(side.path / "clean", clean.ljust(size))
        assert side.read_clean() == found


# --- removed topics


def file_in(root: Path) -> RemovedTopicsFile:
    (root / "penstock").mkdir(exist_ok=True)
    return RemovedTopicsFile(Files(), root)


class SameVersions(Files):
    """Each write has the same time, and a file gets the inode number of the one that it replaces."""

    def version(self, path: Path) -> tuple[int, int, int]:
        size = super().version(path)[2]
        return (1, 1, size) if size else (0, 0, 0)


def test_removed_topics_are_read_and_another_reader_sees_every_change(tmp_path: Path) -> None:
    """Two removals within a tick of the clock could look like one: the reader missed the second."""
    here, there = file_in(tmp_path), RemovedTopicsFile(SameVersions(), tmp_path)
    assert here.read() == there.read() == RemovedTopics()
    assert here.repair(0) == []
    removed = RemovedTopics()
    for number in range(100):
        # Also those with as many digits.
        removed = removed.with_removed("a" if number % 3 else "b", 1000 + number)
        here.write(removed)
        assert there.read() == here.read() == removed
    assert [removed.before_of(topic) for topic in "abc"] == [1098, 1099, 0]
    assert [removed.count(topic) for topic in "abc"] == [66, 34, 0]


@pytest.mark.parametrize("content", [
    b"", b"\xff", b"[]", b"{", json.dumps({"a": 1}).encode(), json.dumps({"a": {"before": 1}}).encode(),
    json.dumps({"a": {"before": "1", "count": 1}}).encode(), json.dumps({"a": {"before": -1, "count": 1}}).encode(),
    json.dumps({"a": {"before": 1, "count": 0}}).encode(), json.dumps({"../x": {"before": 1, "count": 1}}).encode(),
    json.dumps({"a": {"before": True, "count": 1}}).encode(), b"[" * 100_000,
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_and_set_aside(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, path = file_in(tmp_path), tmp_path / "penstock" / "removed-topics"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.read() == RemovedTopics()
    assert str(path) in caplog.text
    (said,) = file.repair(100)
    assert "could not be read" in said
    assert not path.exists()
    assert path.with_name("removed-topics.unreadable-1").read_bytes() == content
    assert file.repair(100) == []
