"""What a channel, a writer or an allocator may leave out, and what then holds."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.contracts.base import NoOptions
from penstock.contracts.segment_writer import Allocator, SegmentChannel, SegmentWriter
from penstock.files import File
from penstock.format.columns import Buffer
from penstock.testing import make_context


class Plain(SegmentChannel):
    """A channel with no more than it must have, onto memory."""

    def __init__(self) -> None:
        self.memory_of_file = bytearray(100)

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory_of_file).toreadonly()

    def write(self, position: int, data: Buffer) -> None:
        self.memory_of_file[position : position + len(data)] = data

    def commit(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainWriter(SegmentWriter):
    name = "plain"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return Plain()


class PlainAllocator(Allocator):
    name = "plain"

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        raise NotImplementedError

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        raise NotImplementedError


def test_a_batch_goes_by_plain_writes_where_nothing_else_is_said() -> None:
    channel = Plain()
    channel.write_batch(3, b"abcdef", (3, 3))
    assert bytes(channel.view[:10]) == b"\0\0\0abcdef\0"


def test_a_channel_lends_nothing_unless_it_says_so() -> None:
    """Neither memory nor a descriptor: whoever stores or syncs past its methods would miss what they do."""
    channel = Plain()
    assert (channel.memory, channel.memory_end, channel.gathered, channel.descriptor) == (
        None,
        0,
        None,
        None,
    )
    for told in (channel.reserve, channel.give_back):
        told(50)
    channel.end()
    channel.synced()
    assert bytes(channel.view) == bytes(100)


def test_a_writer_is_given_whole_files_and_commits_at_once_unless_it_says_otherwise(
    tmp_path: Path,
) -> None:
    writer = PlainWriter(NoOptions(), make_context(tmp_path))
    assert (writer.needs_allocated_file, writer.commits_at_once) == (True, True)
    writer.close()


def test_an_allocator_may_pass_over_what_it_is_told(tmp_path: Path) -> None:
    paths: Sequence[Path] = [tmp_path / "a"]
    allocator = PlainAllocator(NoOptions(), make_context(tmp_path))
    allocator.expect(paths, 4096, allocated=True)
    allocator.sealed(paths[0])
    allocator.close()
    with pytest.raises(TypeError, match="abstract"):
        Allocator(NoOptions(), make_context(tmp_path))  # type: ignore[abstract] # that is the question
