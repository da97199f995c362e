"""The hash index: files of keys, which are full, lost, trimmed or made again."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import penstock
from penstock.contracts import NoOptions, Trust
from penstock.contracts.index_entries import key_hash
from penstock.format.record import MAGIC_V1, SIZE_AND_MAGIC
from penstock.message import Message
from penstock.testing import WrittenLog, make_context
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import open_store
from penstock_index.hash_index import HashIndexDispatcher


def test_keys_are_indexed_once_where_the_disk_was_full_between_two_index_files(
    tmp_path: Path,
) -> None:
    """In version 0.1 the keys that had fitted into the full file were added again with the next try."""
    files = FaultyFiles()
    sizes: dict[str, Any] = {"geometry.index_entries": 11}
    with open_store(tmp_path / "s", files=files, **sizes) as store:
        files.plan.fail("create", errno.ENOSPC, path="new-index", after=1)
        store.put_many([Message("t", b"%d" % n, keys=[f"k{n}"]) for n in range(25)])
        with pytest.raises(penstock.errors.StorageError):
            store.find("t", "k3")
        files.plan.heal()
        store._engine.follower.finish()  # type: ignore[union-attr] # it writes; the retry is now, not in a second
        assert [len(store.find("t", f"k{n}")) for n in range(25)] == [1] * 25
        assert not list(store.verify())
        keys = store.stats()["dispatchers"]["hash-index"]
        assert keys["files"] * 10 - 10 + keys["keys_in_newest"] == 25


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


def opened(log: WrittenLog, root: Path, durable: int = 0) -> HashIndexDispatcher:
    made = HashIndexDispatcher(NoOptions(), make_context(root))
    made.load(Trust(log=log.view, durable_offset=durable, is_clean=False, was_abnormal=False))
    for batch in log.batches(made.progress):
        made.dispatch(batch)
    return made


def found(index: HashIndexDispatcher, key: str) -> list[int]:
    return list(index.candidates("topic-1", key, 0, 1 << 60))


def test_a_key_leads_to_its_record_over_many_files(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    assert len(list((tmp_path / "index").iterdir())) > 1
    for row in (1, 333, 699):
        assert log.offsets()[row] in found(index, f"only-{row}")
    assert key_hash("topic-1", "x") >= 0


def test_no_key_is_in_it_twice(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    for batch in log.batches():
        index.dispatch(batch)
    at = log.offsets()[333]
    assert found(index, "only-333").count(at) == 1


def test_a_cut_forgets_the_keys_after_it(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    cut = log.offsets()[333]
    index.truncate(cut)
    assert index.progress == cut
    assert all(at < cut for row in (331, 333, 699) for at in found(index, f"only-{row}"))
    assert log.offsets()[331] in found(index, "only-331")


def test_files_of_an_unknown_writer_are_kept_as_far_as_they_go(
    log: WrittenLog, tmp_path: Path
) -> None:
    """No offset is known to be durable then; the last record that has keys is dispatched again."""
    index = opened(log, tmp_path)
    index.flush()
    index.close()
    again = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    trust = Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False)
    assert again.load(trust) == []
    keyed = [row for row in range(700) if row % 4]
    assert again.progress == log.offsets()[keyed[-1]]
    assert log.offsets()[333] in found(again, "only-333")
    again.close()
    ours = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    (text,) = ours.load(attrs.evolve(trust, durable_offset=1))
    assert (ours.progress, text) == (1, "cut index entries after log offset 1; rebuilt")
    ours.close()


@pytest.mark.parametrize(("size", "end"), [(80, 1080), (0, 1000), (-5, 1000)])
def test_a_record_with_a_corrupt_size_ends_where_it_begins(size: int, end: int) -> None:
    """The records after it are looked at then: none may lack its keys because the one before it is corrupt."""
    log: Any = SimpleNamespace(read=lambda _at, _size: SIZE_AND_MAGIC.pack(size, MAGIC_V1))
    assert HashIndexDispatcher._end_of_record(log, 1000) == end
