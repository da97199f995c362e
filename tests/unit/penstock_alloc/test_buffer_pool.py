"""A few buffers in turn: how many there are, which is lent next, and memory that cannot be locked."""

import errno
import mmap
import os

import pytest

from penstock.files import Files
from penstock.testing import SimulatedDisk
from penstock_alloc.buffer_pool import BufferPool

SIZE = 8192


class Unlockable(Files):
    """Memory of it cannot be locked."""

    calls = 0

    def lock_memory(self, memory: mmap.mmap) -> None:
        self.calls += 1
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_there_are_so_many_and_no_more() -> None:
    pool = BufferPool(SimulatedDisk(), 2, SIZE, lock_memory=False)
    assert pool.available == 2
    lent = [pool.borrow() for _ in range(3)]
    assert [None if each is None else len(each) for each in lent] == [SIZE, SIZE, None]
    assert pool.available == 0


def test_the_one_that_came_back_last_is_lent_first() -> None:
    pool = BufferPool(SimulatedDisk(), 2, SIZE, lock_memory=False)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    pool.give_back(first)
    pool.give_back(second)
    assert pool.available == 2
    assert pool.borrow() is second


def test_after_the_close_none_is_lent() -> None:
    pool = BufferPool(SimulatedDisk(), 2, SIZE, lock_memory=False)
    lent, returned = pool.borrow(), pool.borrow()
    assert lent is not None
    assert returned is not None
    pool.give_back(returned)
    pool.close()
    assert pool.available == 0
    assert pool.borrow() is None


def test_memory_that_cannot_be_locked_is_lent_all_the_same_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = Unlockable()
    pool = BufferPool(files, 2, SIZE, lock_memory=True)
    assert pool.borrow() is not None
    assert pool.borrow() is not None
    assert files.calls == 1
    assert caplog.text.count("cannot be locked into memory") == 1
    assert "to 16 KiB" in caplog.text
