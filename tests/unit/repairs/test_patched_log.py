"""The log as a repair will leave it: patches over the files, nothing after the cut, no file changed."""

from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.format.names import segment_name
from penstock.testing import SimulatedDisk
from penstock_tools.repairs.planner import Patch, PatchedLog

SIZE = 4096
FOLDER = Path("/log")


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(FOLDER)
    for number, size in enumerate((SIZE, 100, SIZE)):
        made.write_whole(FOLDER / segment_name(number * SIZE), b"%d" % number * size)
    return made


def test_a_patch_stands_over_the_bytes_of_the_file(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    log.patches = [Patch(10, b"abc", ""), Patch(SIZE - 2, b"yz", "")]
    assert bytes(log.read(8, 8)) == b"00abc000"
    assert bytes(log.read(11, 1)) == b"b"
    assert bytes(log.read(SIZE - 3, 3)) == b"0yz"
    assert disk.read_whole(FOLDER / segment_name(0)) == b"0" * SIZE


def test_a_file_that_was_cut_short_reads_as_zeros_and_is_named(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    assert log.lengths == {SIZE: 100}
    assert bytes(log.read(SIZE + 98, 4)) == b"11\0\0"


def test_nothing_lies_after_the_cut(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    log.cut = SIZE + 50
    assert [s.base_offset for s in log.segments] == [0, SIZE]
    assert [s.base_offset for s in log.after_cut] == [2 * SIZE]
    assert bytes(log.read(SIZE + 48, 4)) == b"11\0\0"
    assert bytes(log.read(2 * SIZE, 1)) == b"\0"
    log.cut = 0
    assert [s.base_offset for s in log.segments] == [0], "a log keeps a segment"


def test_what_is_no_segment_is_a_stray(disk: SimulatedDisk) -> None:
    for name, size in (("notes", 5), (segment_name(7), SIZE)):
        disk.write_whole(FOLDER / name, bytes(size))
    log = PatchedLog(disk, FOLDER, SIZE)
    assert {path.name for path in log.strays} == {"notes", segment_name(7)}
    log.refresh()
    assert len(log.segments) == 3


def test_a_read_has_the_parts_of_patches_and_of_the_cut_that_lie_in_it(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    log.patches = [Patch(10, b"abc", "")]
    for start in range(6, 16):
        for size in range(8):
            wanted = b"000000000abc00000000000000"[start - 1 :][:size]
            assert bytes(log.read(start, size)) == wanted
    log.cut = 12
    assert bytes(log.read(9, 6)) == b"0ab\0\0\0"
    assert (bytes(log.read(9, 3)), bytes(log.read(13, 2))) == (b"0ab", bytes(2))


def test_a_read_must_lie_in_its_segment(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    last = log.segments[2]
    assert len(log.read_from(last, 2 * SIZE, SIZE)) == SIZE
    for at, size in ((2 * SIZE - 1, 2), (2 * SIZE, -1), (3 * SIZE - 1, 2), (2 * SIZE, SIZE + 1)):
        with pytest.raises(OffsetError):
            log.read_from(last, at, size)


def test_a_cut_at_the_beginning_of_a_segment_takes_all_of_it(disk: SimulatedDisk) -> None:
    log = PatchedLog(disk, FOLDER, SIZE)
    assert (len(log.segments), log.after_cut) == (3, ())
    log.cut = 2 * SIZE
    assert [s.base_offset for s in log.segments] == [0, SIZE]
    log.cut = 2 * SIZE + 1
    assert [s.base_offset for s in log.segments] == [0, SIZE, 2 * SIZE]
