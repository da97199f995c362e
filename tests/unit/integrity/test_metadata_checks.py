"""What is neither log nor derived: marks, manifest, the files of digests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.torn import TornFiles
from tests.unit.integrity.test_segment_digests import seal_all

from penstock.contracts.findings import Finding
from penstock.durability.checkpoint import Checkpoint, Times
from penstock.files import Files
from penstock.integrity.metadata_checks import check_marks
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, open_store
from penstock.testing.kit import messages


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_data: bytes) -> bytes:
    return b""


def live(path: Path) -> tuple[Store, ManualWorkers]:
    """A store that is being written, some of its segments sealed."""
    workers = ManualWorkers()
    store = open_store(path, spawn=workers, retention=[])
    for first in range(0, 800, 100):
        store.put_many(messages(100, first=first))
    store.flush()
    workers.run("penstock-follow")
    workers.run("penstock-mark")
    seal_all(workers)
    return store, workers


def found(path: Path, files: Files | None = None, **how: Any) -> list[Finding]:
    with open_store(path, files=files, read_only=True) as store:
        return list(store.verify(deep=True, **how))


@pytest.mark.slow
@pytest.mark.parametrize("tear", [half, nothing])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_digest_of_a_living_store_that_is_being_written_is_no_finding(
    tear: Callable[[bytes], bytes], jobs: int, tmp_path: Path
) -> None:
    store, _ = live(tmp_path / "s")
    assert found(tmp_path / "s", jobs=jobs) == []
    for times in (1, 2, 3):
        assert found(tmp_path / "s", TornFiles("digests", tear, times=times)) == []
    store.close()
    assert "no valid content" in found(tmp_path / "s", TornFiles("digests", tear, 1000))[0].text


def test_a_damaged_digest_of_a_living_store_is_found(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    path = tmp_path / "s" / "penstock" / "digests" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert [f.text for f in found(tmp_path / "s")] == ["the digest of its segment has no valid content"]  # fmt: skip
    assert [f.part for f in store.verify(deep=True)] == ["marks"]
    store.close()


def test_a_checkpoint_that_is_ahead_of_the_log_is_told_of_a_store_of_ours() -> None:
    disk, root = SimulatedDisk(), Path("/store")
    disk.make_folder_durably(root)
    Checkpoint(disk, root).write(Times(100, 50, 0))
    assert list(check_marks(disk, root, 0, 100, is_ours=True)) == []
    (finding,) = check_marks(disk, root, 0, 99, is_ours=True)
    assert "physicMsgTimestamp is 100, but the latest record has the store time 99" in finding.text
    assert list(check_marks(disk, root, 0, 99, is_ours=False)) == []


def test_a_checkpoint_of_a_wrong_length_is_told() -> None:
    disk, root = SimulatedDisk(), Path("/store")
    disk.make_folder_durably(root)
    (finding,) = check_marks(disk, root, 0, 0, is_ours=True)
    assert "cannot be read" in finding.text
    disk.write_whole(root / "checkpoint", b"x" * 10)
    (finding,) = check_marks(disk, root, 0, 0, is_ours=True)
    assert "has 10 bytes, not 4096" in finding.text
