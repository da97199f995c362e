"""One open file: zeros, pieces, maps, and a descriptor that is closed once."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

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


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = Files().create(tmp_path / "file")
    yield made
    made.close()


def test_what_is_written_is_read_and_no_more_than_there_is(file: File) -> None:
    file.pwrite(b"abcdef", 10)
    assert file.pread(4, 10) == b"abcd"
    assert file.pread(100, 12) == b"cdef"
    assert file.pread(4, 100) == b""
    memory = memoryview(bytearray(8))
    assert file.read_into(memory, 11) == 5
    assert bytes(memory[:5]) == b"bcdef"


def test_a_write_in_pieces_is_cut_at_their_borders(file: File) -> None:
    class Watched(File):
        pieces: ClassVar[list[tuple[int, int]]] = []

        def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
            self.pieces.append((position, len(data)))
            super().pwrite(data, position)

    watched = Watched(file.path, file.detach())
    data = bytes(range(256)) * 200
    watched.pwrite_pieces(data, 100)
    assert watched.pread(len(data), 100) == data
    ends = [at + size for at, size in watched.pieces]
    assert all(end % PIECE_BYTES == 0 for end in ends[:-1])
    assert max(size for _, size in watched.pieces) <= PIECE_BYTES
    watched.close()


def test_zeros_are_made_between_two_positions_and_nowhere_else(file: File) -> None:
    file.pwrite(b"x" * 20_000, 0)
    for how in (file.clear, file.erase):
        how(5000, 15_000)
        assert file.pread(20_000, 0) == b"x" * 5000 + bytes(10_000) + b"x" * 5000
        how(9, 9)
        file.pwrite(b"x" * 20_000, 0)
    assert file.size == 20_000


def test_data_ends_where_nothing_was_written(file: File) -> None:
    file.resize(1 << 20)
    assert file.data_end() == 0
    file.pwrite(b"x", 5000)
    assert 5001 <= file.data_end() < 1 << 20
    assert file.hole_from(1 << 19) == 1 << 19


def test_a_descriptor_is_lent_by_a_file_that_is_the_systems_alone(file: File) -> None:
    class Own(File):
        def sync(self) -> None:
            pass

    assert file.descriptor is not None
    other = Own(file.path, file.detach())
    assert [each.descriptor for each in (file, other)] == [None, None]
    other.close()


def test_a_file_is_closed_once_whatever_gets_its_number(tmp_path: Path, file: File) -> None:
    """Closed twice it would close the file that was opened in between."""
    number = file.descriptor
    file.close()
    other = Files().create(tmp_path / "other")
    assert other.descriptor == number
    file.close()
    other.pwrite(b"x", 0)
    other.close()


def test_an_error_of_a_read_names_the_file(file: File) -> None:
    """The system's error of a read has no name in it, so no message said which of a store's files was meant."""
    file.close()
    for read in (lambda: file.pread(1, 0), lambda: file.read_into(memoryview(bytearray(1)), 0)):
        with pytest.raises(OSError, match="Bad file descriptor") as failed:
            read()
        assert failed.value.filename == str(file.path)
