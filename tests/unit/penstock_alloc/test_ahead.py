"""Orders for files: nearest first, made once, waited for, and forgotten when they fail."""

import errno
import threading
from pathlib import Path

import pytest

from penstock.errors import BusyError
from penstock.files import File, Files
from penstock_alloc.ahead import Ahead


class Maker:
    """Makes files in a folder, in the order asked; fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[str] = []
        self.failures = 0

    def __call__(self, path: Path, size: int, allocated: bool) -> File:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, "full")
        self.made.append(path.name)
        file = Files().create(self.folder / path.name)
        file.resize(size)
        return file


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def ahead(maker: Maker) -> Ahead:
    return Ahead(maker, 1)


def paths(*names: str) -> list[Path]:
    return [Path(name) for name in names]


def test_the_nearest_is_made_first_and_each_once(ahead: Ahead, maker: Maker) -> None:
    assert ahead.order(paths("2", "1"), 10, allocated=True)
    assert ahead.order(paths("1", "3"), 10, allocated=True)
    ahead.work()
    ahead.work()
    assert maker.made == ["1", "2", "3"]
    assert not ahead.order(paths("1"), 10, allocated=True), "there is nothing to do"
    assert ahead.ready == 3


def test_a_file_that_is_ready_is_handed_out_once(ahead: Ahead, maker: Maker) -> None:
    ahead.order(paths("1"), 10, allocated=True)
    ahead.work()
    assert ahead.obtain(Path("1"), 10, allocated=True).size == 10
    assert (ahead.ready, maker.made) == (0, ["1"])


def test_what_nobody_has_begun_is_made_on_the_spot(ahead: Ahead, maker: Maker) -> None:
    ahead.order(paths("1"), 10, allocated=True)
    assert ahead.obtain(Path("1"), 10, allocated=True).size == 10
    assert ahead.obtain(Path("2"), 20, allocated=True).size == 20
    ahead.work()
    assert maker.made == ["1", "2"]


def test_an_order_that_failed_is_tried_again_by_who_needs_it(ahead: Ahead, maker: Maker) -> None:
    ahead.order(paths("1", "2"), 10, allocated=True)
    maker.failures = 2
    ahead.work()
    assert ahead.ready == 0
    with pytest.raises(OSError, match="full"):
        ahead.obtain(Path("1"), 10, allocated=True)
    assert ahead.obtain(Path("1"), 10, allocated=True).size == 10


def test_one_in_the_making_is_waited_for_up_to_the_limit(tmp_path: Path, maker: Maker) -> None:
    began, may_end = threading.Semaphore(0), threading.Semaphore(0)

    def slowly(path: Path, size: int, allocated: bool) -> File:
        began.release()
        may_end.acquire()
        return maker(path, size, allocated)

    ahead = Ahead(slowly, 1)
    ahead.order(paths("1"), 10, allocated=True)
    thread = threading.Thread(target=ahead.work)
    thread.start()
    began.acquire()
    with pytest.raises(BusyError, match="segment 1 has not been ready"):
        ahead.obtain(Path("1"), 10, allocated=True)
    may_end.release()
    thread.join()
    assert ahead.obtain(Path("1"), 10, allocated=True).size == 10


def test_at_the_close_what_is_left_comes_back_last_one_first(ahead: Ahead, maker: Maker) -> None:
    ahead.order(paths("1", "2"), 10, allocated=True)
    ahead.work()
    assert [file.path.name for file in ahead.close()] == ["2", "1"]
    assert not ahead.order(paths("3"), 10, allocated=True)
    ahead.work()
    assert maker.made == ["1", "2"]
