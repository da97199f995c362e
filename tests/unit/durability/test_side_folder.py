"""The marks of the side folder: the clean mark, who wrote last, copies, and pieces that are kept."""

from pathlib import Path

import attrs
import pytest
from tests.conftest import power_cut

from penstock.durability import side_folder
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import CleanClose, SideFolder, fingerprint, is_copy
from penstock.testing import ManualClock, SimulatedDisk

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


def test_a_clean_mark_is_read_and_goes_with_its_manifest(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    assert side.read_clean() is None
    side.write_clean(CLEAN)
    disk.write_whole(side.path / "manifest", b"x")
    assert side.read_clean() == CLEAN
    side.remove_clean()
    assert not power_cut(disk).exists(side.path / "clean")
    assert not disk.exists(side.path / "manifest")
    side.remove_clean()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b'{"log_end": 1}', b'{"log_end": "x", "last_time_ms": 1, "digest": ""}', b"[" * 9999, b"\xff"]
)  # fmt: skip
def test_a_clean_mark_that_cannot_be_understood_is_none(disk: SimulatedDisk, data: bytes) -> None:
    disk.write_whole(ROOT / "penstock" / "clean", data)
    assert SideFolder(disk, ROOT).read_clean() is None


def test_what_an_interrupted_run_left_half_made_is_removed(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    for name in ("new-000", "clean.new", "geometry.json", "renewed"):
        disk.write_whole(side.path / name, b"x")
    side.make()
    assert [entry.name for entry in disk.entries(side.path)] == ["geometry.json", "renewed"]


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


def test_another_program_is_known_by_the_time_of_the_lock_file(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    state = State()
    assert not side_folder.penstock_wrote_last(disk, ROOT, 0), "there is no lock file"
    disk.write_whole(ROOT / "lock", b"lock")
    side_folder.note_lock(state, disk, ROOT)
    assert side_folder.penstock_wrote_last(disk, ROOT, state.lock_mtime_ns)
    clock.now_ms += 1
    disk.write_whole(ROOT / "lock", b"java")
    assert not side_folder.penstock_wrote_last(disk, ROOT, state.lock_mtime_ns)


def test_a_store_whose_lock_file_is_another_one_is_a_copy(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    disk.write_whole(ROOT / "lock", b"lock")
    state = State()
    assert not is_copy(disk, ROOT, state), "nothing was noted"
    side_folder.note_lock(state, disk, ROOT)
    assert not is_copy(disk, ROOT, state)
    clock.now_ms += 1
    disk.write_whole(ROOT / "lock", b"lock")
    assert is_copy(disk, ROOT, state)
    assert side_folder.is_unfinished_copy(disk, ROOT, state)
    SideFolder(disk, ROOT).write_clean(CLEAN)
    assert not side_folder.is_unfinished_copy(disk, ROOT, state)


def test_pieces_of_one_name_are_all_kept(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    paths = [side.save("cut-7", data) for data in (b"a", b"b")]
    crashed = power_cut(disk)
    assert [crashed.read_whole(path) for path in paths] == [b"a", b"b"]


def test_a_holder_is_named_or_guessed(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    assert "another program" in side.read_holder()
    side.write_holder(1234)
    assert side.read_holder().startswith("process 1234, since ")
    disk.write_whole(side.path / "holder", b"x" * 5000)
    assert "another program" in side.read_holder()


def test_files_are_read_up_to_their_greatest_size_and_no_further(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    side.write_clean(CLEAN)
    clean = disk.read_whole(side.path / "clean", 1 << 20)
    for size, found in ((64 << 20, CLEAN), ((64 << 20) + 1, None)):
        disk.write_whole(side.path / "clean", clean.ljust(size))
        assert side.read_clean() == found
    disk.write_whole(side.path / "holder", b"x" * 4096)
    assert side.read_holder() == "x" * 4096
    disk.write_whole(side.path / "holder", b"x" * 4097)
    assert "another program" in side.read_holder()


def test_what_was_not_noted_of_a_lock_file_makes_no_copy(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    """An older Penstock noted neither the change time nor the inode."""
    disk.write_whole(ROOT / "lock", b"lock")
    state = State()
    side_folder.note_lock(state, disk, ROOT)
    assert is_copy(disk, ROOT, attrs.evolve(state, lock_ctime_ns=state.lock_ctime_ns + 1))
    assert not is_copy(disk, ROOT, attrs.evolve(state, lock_ctime_ns=0))
    older = attrs.evolve(state, lock_mtime_ns=state.lock_mtime_ns - 1)
    assert not is_copy(disk, ROOT, older), "another program opened the store itself"
    assert is_copy(disk, ROOT, attrs.evolve(older, lock_inode=state.lock_inode + 1))
    assert not is_copy(disk, ROOT, attrs.evolve(older, lock_inode=0))


def test_a_copy_is_unfinished_without_a_clean_mark_or_with_the_mark_of_an_open_store(
    disk: SimulatedDisk,
) -> None:
    disk.write_whole(ROOT / "lock", b"lock")
    state = State()
    side_folder.note_lock(state, disk, ROOT)
    assert not side_folder.is_unfinished_copy(disk, ROOT, state)
    copied = attrs.evolve(state, lock_ctime_ns=state.lock_ctime_ns + 1)
    assert side_folder.is_unfinished_copy(disk, ROOT, copied)
    SideFolder(disk, ROOT).write_clean(CLEAN)
    assert not side_folder.is_unfinished_copy(disk, ROOT, copied)
    disk.write_whole(ROOT / "abort", b"")
    assert side_folder.is_unfinished_copy(disk, ROOT, copied)


def test_the_clean_mark_is_gone_for_good_before_the_first_change(disk: SimulatedDisk) -> None:
    side = SideFolder(disk, ROOT)
    disk.write_whole(side.path / "manifest", b"x")
    side.remove_clean()
    assert not power_cut(disk).exists(side.path / "manifest")
    seen: list[str] = []
    disk.plan.watch = lambda call, path: seen.append(call)
    side.remove_clean()
    assert seen == [], "nothing is there to be removed"


def test_a_visible_offset_is_told_only_while_penstock_wrote_last(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    disk.write_whole(ROOT / "lock", b"lock")
    progress = Progress(disk, ROOT)
    progress.read()
    side_folder.note_lock(progress.state, disk, ROOT)
    progress.state.visible_offset = 77
    progress.write()
    progress.close()
    assert side_folder.visible_offset(disk, ROOT) == 77
    clock.now_ms += 1
    disk.write_whole(ROOT / "lock", b"java")
    assert side_folder.visible_offset(disk, ROOT) is None


def test_a_fingerprint_covers_the_folders_of_log_queues_and_index() -> None:
    names = [path.name for path in side_folder.vouched_for(ROOT)]
    assert names == ["commitlog", "consumequeue", "consumequeue_ext", "index"]
