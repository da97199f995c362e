"""The first changes of an opening: marks before anything else, and names made durable."""

from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.errors import PluginError, StorageError
from penstock.recovery import restore
from penstock.testing import ManualWorkers, SimulatedDisk, messages, open_store
from penstock_index.hash_index import HashIndexDispatcher

ROOT = Path("/a/store")


def test_a_store_is_marked_as_in_use_before_its_first_message() -> None:
    disk = SimulatedDisk()
    open_store(ROOT, files=disk, spawn=ManualWorkers())
    crashed = power_cut(disk)
    assert crashed.read_whole(ROOT / "abort") == str(disk.process_id()).encode()
    assert crashed.exists(ROOT / "penstock" / "geometry.json")
    assert not crashed.exists(ROOT / "penstock" / "clean")
    assert crashed.read_whole(ROOT / "penstock" / "holder").startswith(b"process")


def test_a_folder_that_may_not_be_opened_stops_nothing() -> None:
    class Forbidden(SimulatedDisk):
        def sync_folder(self, path: Path) -> None:
            if path == Path("/"):
                raise PermissionError
            super().sync_folder(path)

    disk = Forbidden()
    disk.make_folder(ROOT)
    restore.sync_names_up(disk, ROOT)


def test_many_folders_are_synced_together_or_one_by_one_where_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restore, "MANY_FOLDERS", 2)
    for fails in (False, True):
        disk = SimulatedDisk()
        disk.make_folder(ROOT / "x" / "y")
        restore.sync_names_up(disk, ROOT)
        if fails:
            disk.plan.fail("sync_volume")
        before = disk.plan.counts.get("sync_folder", 0)
        restore.sync_names_below(disk, ROOT)
        assert (disk.plan.counts["sync_folder"] > before) is fails
        assert power_cut(disk).is_folder(ROOT / "x" / "y")
    assert "could not be synced as a whole" in caplog.text


class Stubborn(HashIndexDispatcher):
    """Forgets nothing when the log was cut."""

    name = "hash-index"

    def truncate(self, log_offset: int) -> None:
        pass

    @property
    def progress(self) -> int:
        return 1 << 40


class Failing(HashIndexDispatcher):
    name = "hash-index"

    @property
    def progress(self) -> int:
        return 1 << 40

    def truncate(self, log_offset: int) -> None:
        raise ValueError("no")


@pytest.mark.parametrize(("cls", "error"), [(Stubborn, PluginError), (Failing, StorageError)])
def test_a_dispatcher_that_knows_of_more_than_the_log_has_keeps_the_store_closed(
    cls: type[HashIndexDispatcher], error: type[Exception]
) -> None:
    disk = SimulatedDisk()
    with open_store(ROOT, files=disk, spawn=ManualWorkers()) as store:
        store.put_many(messages(5))
    with pytest.raises(error, match="dispatcher hash-index"):
        open_store(ROOT, files=disk, spawn=ManualWorkers(), strategies=[cls])
