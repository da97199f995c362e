"""Batches that are refused: wholly, with the same error whatever their size, and nothing of them comes back."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import DiskFullError, MessageError, StoreFailedError
from penstock.files import File
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock.write.validation import host_bytes


class _HalfFull(FaultyFiles):
    """Takes a part of the next batch, and has no room for the rest; `heals` says whether it takes zeros then."""

    def __init__(self, *, heals: bool) -> None:
        super().__init__()
        self.heals = heals
        self.is_armed = self.is_full = False

    def _wrap(self, file: File) -> File:
        return _HalfFullFile(file.path, file.detach(), self)


class _HalfFullFile(File):
    def __init__(self, path: Path, fd: int, files: _HalfFull) -> None:
        super().__init__(path, fd)
        self._files = files

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        files = self._files
        if files.is_armed and self.path.parent.name == "commitlog":
            if not files.is_full:
                super().pwrite(memoryview(data)[: len(data) * 2 // 3], position)
            if not (files.is_full and files.heals):
                files.is_full = True
                raise OSError(errno.ENOSPC, "no room")
        super().pwrite(data, position)


@pytest.mark.parametrize(("write", "count"), [("mmap", 300), ("file", 3), ("file", 100)])
def test_nothing_of_a_batch_comes_back_that_a_full_disk_took_in_part(
    write: str, count: int, tmp_path: Path
) -> None:
    files = _HalfFull(heals=True)
    batch = [Message("t", b"refused-%d" % number) for number in range(count)]
    # No background thread makes or renames a file while the store is copied.
    workers = ManualWorkers()
    with open_store(tmp_path / "s", files=files, write=write, spawn=workers) as store:
        store.put("t", b"first")
        files.is_armed = True
        with pytest.raises(DiskFullError):
            store.put_many(batch)
        files.is_armed = False
        store.put("t", b"later---0")
        store.topics()
        shutil.copytree(tmp_path / "s", tmp_path / "crashed")
    with open_store(tmp_path / "crashed") as store:
        assert [m.body for m in store.scan("t")] == [b"first", b"later---0"]
        assert not list(store.verify())


def test_a_store_that_cannot_take_back_a_part_of_a_batch_stops(tmp_path: Path) -> None:
    files = _HalfFull(heals=False)
    store = open_store(tmp_path / "s", files=files, write="file")
    store.put("t", b"first")
    files.is_armed = True
    with pytest.raises(StoreFailedError, match="could not be erased"):
        store.put_many([Message("t", b"refused-%d" % number) for number in range(3)])
    with pytest.raises(StoreFailedError):
        store.put("t", b"later")
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"flag": None}, {"flag": 0.0}, {"flag": ""}, {"born_time_ms": 0.0}]
)
@pytest.mark.parametrize("count", [1, 60])
def test_numbers_that_are_none_are_refused_whatever_the_batch(
    given: dict[str, Any], count: int, open_small: OpenStore
) -> None:
    with open_small() as store:
        # The first finds no segment, the second does.
        for _ in range(2):
            with pytest.raises(MessageError, match="message 0: a number does not fit"):
                store.put_many([Message("t", b"x", **given)] * count)
            store.put("t", b"y")


def test_a_message_that_is_refused_is_named_by_its_place_in_the_batch(
    open_small: OpenStore,
) -> None:
    with open_small() as store:
        for place in (0, 1, 3000):
            batch = [Message("t", b"x")] * place + [Message("a/b", b"x"), Message("t", b"x")]
            with pytest.raises(MessageError, match="a/b") as raised:
                store.put_many(batch)
            said = [f"it is message {place} of the batch; nothing was stored"]
            assert raised.value.__notes__ == said
        assert store.topics() == {}


def test_no_tag_may_be_none_in_every_way_in(open_small: OpenStore) -> None:
    none: Any = None
    with open_small() as store:
        for count in (1, 60, 1):
            store.put_many([Message("t", b"x", tag=none)] * count)
        store.put("t", b"x", tag=none)
        assert {m.tag for m in store.scan("t")} == {""}
        assert not list(store.verify())


@pytest.mark.parametrize("name", ["queue", "flag"])
@pytest.mark.parametrize("column", [
    ["1", "2"], ["1", None], [True, False], [True, None], [b"1", b"2"],
])  # fmt: skip
def test_numbers_given_as_text_or_truth_are_refused_with_nulls_or_without(
    name: str, column: list[Any], open_small: OpenStore
) -> None:
    table = pa.table({"topic": ["t", "t"], "body": [b"a", b"b"], name: column})
    with open_small() as store:
        with pytest.raises(MessageError, match=f"column '{name}' is .* must contain integers"):
            store.put_arrow(table)
        store.put_arrow(
            pa.table({"topic": ["t"], "body": [b"a"], name: pa.array([None], pa.int8())})
        )


def test_a_host_is_address_and_port_in_bytes() -> None:
    assert host_bytes("127.0.0.1:10911") == b"\x7f\0\0\1\0\0\x2a\x9f"
    assert len(host_bytes("[::1]:1")) == 20
