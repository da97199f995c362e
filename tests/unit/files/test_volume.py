"""One sync of a whole file system in place of many: when it is used, and that its failures count."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.crash.test_strace import needs_strace

import penstock
from penstock.errors import StoreFailedError
from penstock.files import Files, volume
from penstock.files.file import File
from penstock.testing import FaultyFiles
from penstock.testing.disk import SimulatedDisk
from penstock_index.queue_files import OpenFiles
from penstock_index.queue_syncs import Syncs

TOGETHER: dict[str, Any] = {**SMALL, "index.consume-queue.sync_volume_from": 4}
SYNCS = ("sync", "sync_folder", "sync_volume")


@pytest.mark.parametrize(("release", "reports"), [
    ("4.19.0-26-amd64", False), ("5.7.19", False), ("5.8.0-rc1", True), ("5.10", True), ("5.8-custom", True),
    ("6.1.0-13-amd64", True), ("10.0", True), ("2.6.32", False), ("", False), ("six.one", False), ("6", False),
])  # fmt: skip
def test_older_kernels_are_not_asked(release: str, reports: bool) -> None:
    """Before 5.8 `syncfs` answered success whatever became of the write-back."""
    assert volume._reports_failures(release) == reports


def test_an_older_kernel_has_no_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = os.uname_result(("Linux", "host", "5.4.0", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: older)
    assert Files().volume(tmp_path) is None


def test_other_file_systems_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlayfs for one reports no failure of the file system below it; the system's own have nothing to sync."""
    assert Files().volume(Path("/proc")) is None
    monkeypatch.setattr(volume, "_REPORTING", frozenset())
    assert Files().volume(tmp_path) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        Files().volume(tmp_path / "link")


@pytest.mark.usefixtures("any_file_system")
def test_a_volume_holds_what_lies_on_it(tmp_path: Path) -> None:
    found = Files().volume(tmp_path)
    assert found is not None
    found.sync()
    assert found.holds(str(tmp_path))
    assert not found.holds("/proc/self")
    found.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        found.sync()


# --- what a dispatcher has written


class Written:
    """Some files in folders, and what syncs them."""

    def __init__(self, root: Path, volume_from: int) -> None:
        self.files = FaultyFiles()
        self.syncs = Syncs(self.files, OpenFiles(self.files, 8), volume_from)
        self.syncs.begin(root)
        self.folders = [root / str(number) for number in range(5)]
        for folder in self.folders:
            folder.mkdir()
            (folder / "0").write_bytes(b"entry")
        self.paths = [folder / "0" for folder in self.folders]

    def sync(self) -> tuple[int, ...]:
        """Sync all; returns how many calls of each kind that took."""
        before = [self.files.plan.counts.get(call, 0) for call in SYNCS]
        self.syncs.sync(self.paths, self.folders)
        now = (self.files.plan.counts.get(call, 0) for call in SYNCS)
        return tuple(b - a for a, b in zip(before, now, strict=True))


@pytest.fixture
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run on whatever file system there is; what it is called is not the question."""
    monkeypatch.setattr(volume, "_type_of", lambda _: 0xEF53)
    monkeypatch.setattr(volume, "_LINUX_MIN", (2, 6))


@pytest.mark.usefixtures("any_file_system")
def test_many_are_synced_together(tmp_path: Path) -> None:
    """And one file by itself, which flushes the disk's own cache on every file system."""
    assert Written(tmp_path, 10).sync() == (1, 0, 1)


@pytest.mark.usefixtures("any_file_system")
def test_few_are_synced_one_by_one(tmp_path: Path) -> None:
    assert Written(tmp_path, 11).sync() == (5, 5, 0)


@pytest.mark.usefixtures("any_file_system")
def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert Written(tmp_path, 0).sync() == (5, 5, 0)


def test_a_file_system_that_does_not_report_is_synced_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "_type_of", lambda _: 0x794C7630)
    assert Written(tmp_path, 1).sync() == (5, 5, 0)


@pytest.mark.usefixtures("any_file_system")
def test_what_is_mounted_below_is_synced_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path, 1)
    monkeypatch.setattr(volume.Volume, "holds", lambda _, path: "/2" not in path)
    assert written.sync() == (2, 1, 1)


@pytest.mark.usefixtures("any_file_system")
def test_a_file_that_is_gone_needs_no_sync(tmp_path: Path) -> None:
    written = Written(tmp_path, 1)
    shutil.rmtree(written.folders[0])
    written.paths[4].unlink()
    assert written.sync() == (0, 0, 1)


@pytest.mark.usefixtures("any_file_system")
def test_nothing_written_is_nothing_synced(tmp_path: Path) -> None:
    written = Written(tmp_path, 1)
    written.paths, written.folders = [], []
    assert written.sync() == (0, 0, 0)


# --- a store


def put_many(store: penstock.Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put("topic", b"%d" % number, queue=number % 8)
    store.max_offset("topic", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("any_file_system")
def test_its_failure_fails_the_store(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = penstock.open(tmp_path / "store", files=files, environ={}, **TOGETHER)
    put_many(store, 0, 40)
    files.plan.fail("sync_volume", errno.EIO)
    assert store._engine is not None
    with pytest.raises(StoreFailedError):
        store._engine.checkpoints.write()
    with pytest.raises(StoreFailedError):
        store.put("topic", b"after")
    files.plan.heal()
    with pytest.raises(StoreFailedError):
        store.close()
    assert (tmp_path / "store" / "abort").exists()
    with penstock.open(tmp_path / "store", environ={}, **TOGETHER) as store:
        assert store.recovery is not None
        assert store.recovery.state == "abnormal"
        assert not list(store.verify())
        assert sum(len(list(store.scan("topic", queue))) for queue in range(8)) == 40


@pytest.mark.usefixtures("any_file_system")
def test_its_failure_at_a_close_leaves_the_store_unclean(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = penstock.open(tmp_path / "store", files=files, environ={}, **TOGETHER)
    put_many(store, 0, 40)
    files.plan.fail("sync_volume", errno.EIO)
    with pytest.raises(StoreFailedError):
        store.close()
    assert not (tmp_path / "store" / "penstock" / "clean").exists()


@pytest.mark.slow
def test_a_few_descriptors_are_enough_for_many_queues(tmp_path: Path) -> None:
    root, few = tmp_path / "store", {"index.consume-queue.open_files_max": 4}
    with penstock.open(root, environ={}, **{**TOGETHER, **few}) as store:
        for number in range(300):
            store.put("topic", b"%d" % number, queue=number)
        store.max_offset("topic", 0)
        queue_files = [fd for fd in os.listdir("/proc/self/fd") if _is_below(root, fd)]
        assert 0 < len(queue_files) <= 5


def _is_below(root: Path, descriptor: str) -> bool:
    """Say whether an open descriptor is of a queue file; others come and go."""
    with contextlib.suppress(FileNotFoundError):
        return str(root / "consumequeue") in str(Path("/proc/self/fd", descriptor).readlink())
    return False


WRITER = """
import sys, penstock
from penstock.errors import PenstockError
store = penstock.open(sys.argv[1], environ={}, **{
    "index.consume-queue.sync_volume_from": 4, "index.flush_interval_ms": 3600000})
for number in range(40):
    store.put("topic", b"%d" % number, queue=number % 8)
try:
    store.close()
    print("closed as if nothing had been")
except PenstockError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_real_writer_heeds_a_failed_sync_of_the_file_system(tmp_path: Path) -> None:
    needs_strace()
    path = tmp_path / "store"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(tmp_path / "calls"), "-e", "trace=syncfs",
         "-e", "inject=syncfs:error=EIO", sys.executable, "-c", WRITER, str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if not (tmp_path / "calls").read_text().count("syncfs("):
        pytest.skip("this file system is synced file by file")
    assert done.stdout.split() == ["StoreFailedError"], done.stderr
    with penstock.open(path, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "abnormal"
        assert sum(len(list(store.scan("topic", queue))) for queue in range(8)) == 40


# --- the simulated disk


def simulated() -> tuple[SimulatedDisk, Path]:
    disk, path = SimulatedDisk(), Path("/folder/file")
    disk.make_folder(path.parent)
    file: File = disk.create(path)
    file.pwrite(b"written", 0)
    return disk, path
