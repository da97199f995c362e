"""A file twice: as it is seen, and as it is on the medium."""

import os
from random import Random

import pytest

from penstock.testing.inode import PAGE_BYTES, Inode, with_pages


def written(*pieces: tuple[int, bytes]) -> Inode:
    inode = Inode(2, is_folder=False, mtime_ns=0)
    descriptor = inode.descriptor(os.O_RDWR)
    for position, data in pieces:
        os.pwrite(descriptor, data, position)
        inode.touch(position, position + len(data))
        inode.allocate(position, position + len(data))
    os.close(descriptor)
    return inode


def test_what_was_written_is_seen_at_once_and_durable_after_a_sync() -> None:
    inode = written((0, b"abc"))
    assert (inode.seen, inode.durable, inode.dirty()) == (b"abc", b"", [0])
    inode.sync()
    assert (inode.durable, inode.dirty()) == (b"abc", [])


def test_pages_of_a_failed_sync_count_as_written_and_are_not() -> None:
    inode = written((0, b"a" * PAGE_BYTES * 20))
    inode.fail_sync(Random(1))
    assert inode.dirty() == []
    lost = inode.durable.ljust(PAGE_BYTES * 20, b"\0").count(0)
    assert lost > 0
    inode.sync()
    assert inode.durable != inode.seen, "a second sync lies"


def test_room_is_counted_in_pages_and_given_back_in_whole_ones() -> None:
    inode = written((PAGE_BYTES - 1, b"ab"))
    assert inode.room == 2 * PAGE_BYTES
    assert inode.lacking(0, 3 * PAGE_BYTES) == PAGE_BYTES
    inode.punch(1, 2 * PAGE_BYTES)
    assert inode.room == PAGE_BYTES


def test_a_store_into_a_hole_is_found() -> None:
    inode = Inode(2, is_folder=False, mtime_ns=0)
    descriptor = inode.descriptor(os.O_RDWR)
    os.pwrite(descriptor, b"x", 0)
    os.close(descriptor)
    with pytest.raises(AssertionError, match="a store into a hole, at page 0"):
        inode.still()


def test_after_a_kill_what_waits_goes_on_waiting() -> None:
    again = Inode.after_kill(written((0, b"abc")).still())
    assert (again.seen, again.durable, again.dirty()) == (b"abc", b"", [0])
    cut = Inode.after_power_cut(written((0, b"abc")).still(), b"ab", 7)
    assert (cut.seen, cut.durable, cut.dirty(), cut.mtime_ns) == (b"ab", b"ab", [], 7)


def test_pages_are_put_into_a_base_of_any_length() -> None:
    one, other = b"a" * PAGE_BYTES * 2, b"b" * PAGE_BYTES * 2
    assert with_pages(one, other, [1], PAGE_BYTES * 2) == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES
    assert with_pages(b"", b"xy", [0], 5) == b"xy\0\0\0"
