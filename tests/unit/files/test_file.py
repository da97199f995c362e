"""One open file: zeros, pieces, maps, and a descriptor that is closed once."""

import os
from pathlib import Path

import pytest

from penstock.files import Files
from penstock.files.file import PIECE_BYTES, File

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


def test_a_used_file_becomes_zero_wherever_zeros_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without a file system that does it by itself; as large folios would come, so in small pieces."""
    for can in (True, False):
        file = WatchedFile(made(tmp_path / str(can)))
        os.pwrite(file._fd, b"x" * (3 << 20), 100)
        if not can:
            monkeypatch.setattr(WatchedFile, "zero_range", lambda *_: False)
        file.renew()
        assert file.is_populated
        assert not any(file.pread(SIZE, 0))
        assert os.fstat(file._fd).st_blocks * 512 >= SIZE
        assert can or all(stop - start <= PIECE_BYTES for start, stop in file.wrote)
