"""Readers of a store whose writer was killed within an atomic batch, until a writer opens it again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock import Message
from penstock.errors import OffsetError
from penstock.recovery.hidden_batch import ShownQueues
from penstock.store.store import Store
from penstock.testing import SimulatedDisk, open_store
from penstock.testing.control import InlineWorkers
from penstock.testing.platter import Survival

ROOT = Path("/s")
SEGMENT = ROOT / "commitlog" / f"{0:020d}"


def opened(disk: SimulatedDisk, *, read_only: bool = False) -> Store:
    if read_only:
        return open_store(ROOT, files=disk, read_only=True)
    return open_store(ROOT, files=disk, spawn=InlineWorkers(), flush="none")


def killed(*, missing: str) -> tuple[SimulatedDisk, int]:
    """Return the disk of a killed writer, with a batch whose last record, or queue entry, is missing, and where it begins."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.put("a", b"before", keys=["k"])
    first, *_, last = store.put_many(
        [Message("a", b"1", keys=["k"]), Message("b", b"2", keys=["k"])], atomic=True
    )
    store.max_offset("a")
    assert [m.body for m in store.find("a", "k")] == [b"before", b"1"]
    after = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(1))
    at = last.log_offset if missing == "record" else 0
    path = SEGMENT if missing == "record" else ROOT / "consumequeue" / "b" / "0" / f"{0:020d}"
    file = after.open(path, writable=True)
    file.pwrite(bytes(20 if missing == "entry" else last.size), at)
    file.close()
    return after, first.log_offset


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["record", "entry"])
def test_nothing_of_a_batch_in_part_is_shown(missing: str) -> None:
    disk, begin = killed(missing=missing)
    with opened(disk, read_only=True) as reader:
        assert isinstance(reader._queue_index, ShownQueues)
        assert [m.body for m in reader.scan("a", 0)] == [b"before"]
        assert [m.body for m in reader.scan("b", 0)] == []
        assert (reader.max_offset("a"), reader.max_offset("b")) == (1, 0)
        assert reader.read("a", offset=1).messages == []
        assert reader.to_arrow("a").num_rows == 1
        assert [m.body for m in reader.find("a", "k")] == [b"before"]
        assert [(b.topic, b.max_offset) for b in reader.bounds() if b.max_offset] == [("a", 1)]
        with pytest.raises(OffsetError):
            reader.at(begin)
        with opened(disk) as store:
            kept = missing == "entry"
            assert store.recovery is not None
            assert store.recovery.log_end >= begin
            assert store.max_offset("a") == 1 + kept
            store.put("a", b"after")
            store.max_offset("a")
            # Another writer has opened it: nothing is hidden any more.
            assert reader.max_offset("a") == 2 + kept
            assert [m.body for m in reader.scan("a", 0)][-1] == b"after"


@pytest.mark.parametrize("copy_file", [shutil.copyfile, shutil.copy2])
def test_a_copy_of_a_store_in_use_shows_nothing_of_a_batch_in_part(
    copy_file: Callable[[str, str], object], tmp_path: Path
) -> None:
    """The log is copied before the queues. A copy without the times of files looked like a broker's, and showed a part."""
    with open_store(tmp_path / "store", flush="none") as store:
        store.put("a", b"before")
        receipts = store.put_many([Message("a", b"1"), Message("a", b"2")], atomic=True)
        store.max_offset("a")
        copy = shutil.copytree(tmp_path / "store", tmp_path / "copy", copy_function=copy_file)
    last = receipts[-1]
    with (copy / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(last.log_offset)
        file.write(bytes(last.size))
    with open_store(copy, read_only=True) as reader:
        assert [m.body for m in reader.scan("a")] == [b"before"]
    with open_store(copy) as again:
        assert [m.body for m in again.scan("a")] == [b"before"]
