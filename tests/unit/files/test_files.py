"""Files, folders, locks and volumes of the system: what one call does, whom a lock keeps out, one sync for many."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.lanes import need_program

import penstock
from penstock.errors import StoreFailedError
from penstock.files import Files, lock_file, volume
from penstock.files.file import File
from penstock.files.lock_file import take
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock.testing.disk import SimulatedDisk
from penstock_index.queue_files import OpenFiles, Syncs


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = Files().create(tmp_path / "file")
    yield made
    made.close()


def test_a_descriptor_is_lent_by_a_file_that_is_the_systems_alone(file: File) -> None:
    class Own(File):
        def sync(self) -> None:
            pass

    assert file.descriptor is not None
    other = Own(file.path, file.detach())
    assert [each.descriptor for each in (file, other)] == [None, None]
    other.close()


def test_an_error_of_a_read_names_the_file(file: File) -> None:
    """The system's error of a read has no name in it, so no message said which of a store's files was meant."""
    file.close()
    for read in (lambda: file.pread(1, 0), lambda: file.read_into(memoryview(bytearray(1)), 0)):
        with pytest.raises(OSError, match="Bad file descriptor") as failed:
            read()
        assert failed.value.filename == str(file.path)


# --- folders


class Racing(Files):
    """Another process makes the folder, or something else, between the look and the making."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other

    def is_folder(self, path: Path) -> bool:
        was_there = super().is_folder(path)
        if not was_there and self.other == "folder":
            path.mkdir()
        elif not was_there and not path.exists():
            path.touch()
        return was_there


def test_a_folder_that_another_process_makes_meanwhile_is_taken_and_a_file_is_not(
    tmp_path: Path,
) -> None:
    """Tasks of a reindex made the folder of one shard's rows together, and one of them failed."""
    assert Racing("folder").make_folder(tmp_path / "a") == [tmp_path]
    assert (tmp_path / "a").is_dir()
    with pytest.raises(FileExistsError):
        Racing("file").make_folder(tmp_path / "b")


@pytest.mark.parametrize("make", [Files, SimulatedDisk])
def test_quick_lists_tell_what_entries_do(make: Callable[[], Files], tmp_path: Path) -> None:
    """Names that are digits in another script are none, nor are folders of such names files."""
    files = make()
    for name in ("12", "b", "a"):
        files.make_folder(tmp_path / name)
    for name, size in (("00000000000000000030", 7), ("4", 0), ("x5", 1), ("٣", 1), ("6.new", 1)):
        file = files.create(tmp_path / name)
        file.pwrite(bytes(size), 0)
        file.close()
    entries = files.entries(tmp_path)
    assert files.folders(str(tmp_path)) == [e.name for e in entries if e.is_folder]
    assert files.folders(str(tmp_path)) == ["12", "a", "b"]
    assert files.numbered(str(tmp_path)) == [(4, 0), (30, 7)]


# --- locks


def taken(path: Path) -> lock_file.Lock:
    held = take(path, 0o600)
    assert held is not None
    return held


def test_a_lock_has_one_holder_also_in_one_process_whatever_became_of_its_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    assert not lock_file.is_taken(path)
    held = taken(path)
    assert take(path, 0o600) is None
    assert lock_file.is_taken(path)
    path.unlink()
    assert take(path, 0o600) is None
    held.release()
    held.release()
    held = taken(path)
    del held
    assert not lock_file.is_taken(path), "forgotten it is free"


def test_a_lock_knows_whether_its_file_still_has_the_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file.take_file(path, 0o600)
    assert held is not None
    assert held.has_name(path)
    path.rename(tmp_path / "other")
    assert not held.has_name(path)
    assert held.has_name(tmp_path / "other")
    path.touch()
    assert not held.has_name(path)
    held.release()
    assert not held.has_name(tmp_path / "other")


# --- volumes


TOGETHER: dict[str, Any] = {**SMALL, "index.consume-queue.sync_volume_from": 4}


SYNCS = ("sync", "sync_folder", "sync_volume")


@pytest.fixture
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run on whatever file system there is; what it is called is not the question."""
    monkeypatch.setattr(volume, "_type_of", lambda _: 0xEF53)
    monkeypatch.setattr(volume, "_LINUX_MIN", (2, 6))


@pytest.mark.parametrize(
    ("release", "reports"),
    [("4.19.0-26-amd64", False), ("5.7.19", False), ("5.8.0-rc1", True), ("5.10", True),
     ("10.0", True), ("", False), ("six.one", False), ("6", False)],
)  # fmt: skip
@pytest.mark.usefixtures("any_file_system")
def test_an_older_kernel_has_no_volume(
    release: str, reports: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 5.8 `syncfs` answered success whatever became of the write-back."""
    monkeypatch.undo()
    system = os.uname_result(("Linux", "host", release, "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: system)
    monkeypatch.setattr(volume, "_type_of", lambda _: 0xEF53)
    assert (Files().volume(tmp_path) is not None) == reports


def test_other_file_systems_and_links_have_no_volume(tmp_path: Path) -> None:
    """Overlayfs for one reports no failure of the file system below it; the system's own have nothing to sync."""
    assert Files().volume(Path("/proc")) is None
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


@pytest.mark.usefixtures("any_file_system")
def test_many_are_synced_together(tmp_path: Path) -> None:
    """And one file by itself, which flushes the disk's own cache on every file system."""
    assert Written(tmp_path, 10).sync() == (1, 0, 1)


@pytest.mark.usefixtures("any_file_system")
@pytest.mark.parametrize("volume_from", [0, 11])
def test_few_are_synced_one_by_one_and_all_if_it_is_turned_off(
    volume_from: int, tmp_path: Path
) -> None:
    assert Written(tmp_path, volume_from).sync() == (5, 5, 0)


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


def put_many(store: penstock.Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put("topic", b"%d" % number, queue=number % 4)
    store.max_offset("topic", 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_closing", [False, True])
@pytest.mark.usefixtures("any_file_system")
def test_its_failure_fails_the_store(is_closing: bool, tmp_path: Path) -> None:
    files, workers = FaultyFiles(), ManualWorkers()
    store = open_store(tmp_path / "store", files=files, spawn=workers, **TOGETHER)
    put_many(store, 0, 40)
    store.flush()
    files.plan.fail("sync_volume", errno.EIO)
    if not is_closing:
        workers.run("penstock-mark")
        with pytest.raises(StoreFailedError):
            store.put("topic", b"after", queue=0)
        files.plan.heal()
    with pytest.raises(StoreFailedError):
        store.close()
    assert (tmp_path / "store" / "abort").exists()
    assert not (tmp_path / "store" / "penstock" / "clean").exists()
    with open_store(tmp_path / "store") as again:
        assert again.recovery is not None
        assert again.recovery.state == "abnormal"
        assert not list(again.verify())
        assert len(list(again.scan("topic"))) == 40


WRITER = """
import sys, penstock
from penstock.errors import PenstockError
store = penstock.open(sys.argv[1], environ={}, **{
    "index.consume-queue.sync_volume_from": 4, "index.flush_interval_ms": 3600000})
for number in range(40):
    store.put("topic", b"%d" % number, queue=number % 4)
try:
    store.close()
    print("closed as if nothing had been")
except PenstockError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_real_writer_heeds_a_failed_sync_of_the_file_system(tmp_path: Path) -> None:
    need_program("strace", "STRACE")
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
        assert len(list(store.scan("topic"))) == 40
