"""Writing through a map: what is there at once, what a sync takes, and pages that leave the table."""

import mmap
from pathlib import Path

import pytest

from penstock.files import Files
from penstock.files.blocks import Blocks
from penstock.files.file import FOLIO_BYTES, File
from penstock_alloc.mmap_writer import MmapChannel

SIZE = 64 << 20


def made(tmp_path: Path, files: Files | None = None) -> File:
    if files is None:
        tmp_path.mkdir(exist_ok=True)
    file = (files or Files()).create(tmp_path / "f")
    file.resize(SIZE)
    return file


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


@pytest.mark.slow
def test_pages_that_were_stored_into_leave_the_page_table_in_steps(tmp_path: Path) -> None:
    """A sync costs an interrupt of every processor for each page that is mapped; what was stored stays where it is."""
    file = made(tmp_path)
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

    class Unprepared(Blocks):
        def prepare(self, position: int, stop: int) -> int:
            return position

    file = WatchedFile(made(tmp_path))
    channel = MmapChannel(file, SIZE, Unprepared(file, SIZE, 0, mapped=True, zeroes=True))
    channel.write_batch(0, bytes(80), [40, 40])
    assert file.wrote == [(0, 80)]
    channel.close()
