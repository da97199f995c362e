"""A store is restored from an archive, whole, to a time, to a log offset; a corrupt archive is an error."""

import hashlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.shipped import SMALL, Shipped, bodies, log_bytes, tree

import penstock
import penstock_replicate
from penstock_replicate.ship.manifest import manifest_names
from penstock_replicate.ship.restoring import RestoreReport, restore
from penstock_replicate.ship.ship_errors import ArchiveError, OtherLogError, RestoreError


def made(tmp_path: Path, count: int = 300, rounds: int = 6, **settings: Any) -> tuple[Path, Path]:
    """Make a store of `count` messages that was shipped in some rounds; return its folder and that of the archive."""
    root, target = tmp_path / "store", tmp_path / "archive"
    with Shipped(root, target, **settings) as shipped:
        for number in range(rounds):
            shipped.put(count // rounds, number * (count // rounds))
            shipped.ship()
    return root, target


def check_same(root: Path, report: RestoreReport) -> None:
    """The restored log is that of the store, byte for byte, and nothing is after it."""
    copy = Path(report.path)
    wanted = log_bytes(root, report.log_begin, report.log_end)
    assert log_bytes(copy, report.log_begin, report.log_end) == wanted
    last = sorted((copy / "commitlog").iterdir())[-1]
    assert last.stat().st_size == SMALL["geometry.segment_bytes"]
    assert not any(last.read_bytes()[report.log_end - int(last.name) :])
    assert not report.findings


@pytest.mark.parametrize("compress", ["none", "zlib"])
def test_a_store_is_restored_byte_for_byte(tmp_path: Path, compress: str) -> None:
    root, target = made(tmp_path, compress=compress)
    report = restore(str(target), tmp_path / "copy")
    check_same(root, report)
    assert report.log_end == report.archive_end
    assert bodies(tmp_path / "copy") == bodies(root)
    with penstock.open(tmp_path / "copy", environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert [m.body[:6] for m in store.find("t", "k77")] == [b"000077"]
        store.put("t", b"more")
    about = json.loads((tmp_path / "copy" / "penstock" / "replica").read_text())["about"]
    assert about["role"] == "master"
    assert about["epochs"] == [[1, report.log_end]]
    assert about["history"] == report.history


def test_each_time_is_a_point(tmp_path: Path) -> None:
    root, target = made(tmp_path)
    with penstock.open(root, read_only=True, environ={}) as store:
        found = sorted(store.scan("t"), key=lambda m: m.log_offset)
    for at in (0, 1, 77, 150, 299):
        last_ms = found[at].store_time_ms
        wanted = [m.body for m in found if m.store_time_ms <= last_ms]
        copy = tmp_path / f"copy-{at}"
        report = restore(str(target), copy, time=last_ms)
        check_same(root, report)
        assert bodies(copy) == wanted
        assert report.last_time_ms == last_ms
    with pytest.raises(ArchiveError, match="nothing from that time"):
        restore(str(target), tmp_path / "none", time=found[0].store_time_ms - 1)
    assert not (tmp_path / "none").exists()


def test_each_offset_is_a_point(tmp_path: Path) -> None:
    root, target = made(tmp_path)
    with penstock.open(root, read_only=True, environ={}) as store:
        found = sorted(store.scan("t"), key=lambda m: m.log_offset)
    for at in (1, 40, 133, 299):
        for more in (0, 1):
            copy = tmp_path / f"copy-{at}-{more}"
            report = restore(str(target), copy, offset=found[at].log_offset + more)
            # A blank record may be the last one before it.
            assert found[at - 1].log_offset < report.log_end <= found[at].log_offset
            check_same(root, report)
            assert bodies(copy) == [m.body for m in found[:at]]
    with pytest.raises(ArchiveError, match="is not in it"):
        restore(str(target), tmp_path / "none", offset=1 << 40)


def test_files_beside_the_log_are_those_of_that_time(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "archive"
    with Shipped(root, target) as shipped:
        ends = []
        for number in range(5):
            shipped.put(10, number * 10)
            shipped.store.commit_offset("g", "t", 0, offset=number)
            shipped.ship()
            ends.append(shipped.log.visible_offset)
    for number, end in enumerate(ends):
        report = restore(str(target), tmp_path / f"copy-{number}", offset=end)
        assert report.side_generation is not None
        with penstock.open(tmp_path / f"copy-{number}", read_only=True, environ={}) as store:
            assert store.committed_offset("g", "t", 0) == number
    report = restore(str(target), tmp_path / "early", offset=ends[0] - 1)
    assert report.side_generation is None
    assert any("no version of the files" in text for text in report.notes)


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    _, target = made(tmp_path, 10, 1)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "file").write_text("mine")
    with pytest.raises(RestoreError, match="not empty"):
        restore(str(target), copy)
    assert tree(copy) != {}
    (copy / "file").unlink()
    restore(str(target), copy)
    with pytest.raises(RestoreError, match="not empty"):
        restore(str(target), copy)
    with pytest.raises(RestoreError, match="a file or a link"):
        restore(str(target), copy / "lock")


def test_an_interrupted_restore_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = made(tmp_path)
    copy = tmp_path / "copy"

    def stop(done: int, total: int) -> None:
        assert (copy / "restore-unfinished" / "commitlog").is_dir()
        if done > total // 2:
            shutil.copytree(copy, tmp_path / "left")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(str(target), copy, on_progress=stop)
    assert not copy.exists()
    with pytest.raises(penstock.NotAStoreError):
        penstock.open(tmp_path / "left", environ={})
    with pytest.raises(RestoreError, match="a restore was interrupted"):
        restore(str(target), tmp_path / "left")


def objects(target: Path) -> list[Path]:
    newest = manifest_names([path.name for path in (target / "manifests").iterdir()])[-1]
    about = json.loads((target / newest.text).read_bytes().partition(b"\n")[0])
    named = [f"{start:020d}-{stop:020d}" for start, stop, *_ in about["pieces"]]
    paths = [path for path in (target / "log").iterdir() if path.name.split(".")[0] in named]
    return [*sorted(paths), target / "side" / f"{about['side']['number']:020d}.zlib"]


@pytest.mark.parametrize("compress", ["none", "zlib"])
@pytest.mark.parametrize("harm", ["flip", "missing", "short", "empty", "long"])
def test_a_corrupt_object_is_an_error_that_names_it(
    tmp_path: Path, harm: str, compress: str
) -> None:
    _, target = made(tmp_path, 120, 3, compress=compress)
    before = tree(tmp_path / "store")
    for path in objects(target):
        data = path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
            path.write_bytes({"flip": flipped, "short": data[:-1], "empty": b"", "long": data}[harm])  # fmt: skip
            if harm == "long":
                path.write_bytes(b"more" + data)
        with pytest.raises(ArchiveError, match=path.name):
            restore(str(target), tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        path.write_bytes(data)
    assert tree(tmp_path / "store") == before
    restore(str(target), tmp_path / "copy")


def test_a_torn_manifest_is_passed_over_and_named(tmp_path: Path) -> None:
    root, target = made(tmp_path)
    newest = sorted((target / "manifests").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    report = restore(str(target), tmp_path / "copy")
    check_same(root, report)
    assert report.log_end < log_end_of(root)
    assert any(newest.name in text for text in report.notes)
    with pytest.raises(ArchiveError, match=newest.name):
        restore(str(target), tmp_path / "other", generation=int(newest.name[:20]))
    for path in (target / "manifests").iterdir():
        path.write_bytes(b"{}")
    with pytest.raises(ArchiveError, match="none of the newest"):
        restore(str(target), tmp_path / "other")


def log_end_of(root: Path) -> int:
    with penstock.open(root, environ={}) as store:
        assert store.recovery is not None
        return store.recovery.log_end


def test_a_folder_that_is_no_archive_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArchiveError, match="no archive of penstock ship"):
            restore(str(folder), tmp_path / "copy")


def test_what_can_be_restored_is_listed(tmp_path: Path) -> None:
    _, target = made(tmp_path)
    found = penstock_replicate.list_archive(str(target))
    (span,) = found.spans
    assert span.begin == 0
    assert span.end == found.manifest.end
    assert 0 < span.first_ms <= span.last_ms
    assert len(found.names) == 6


def test_a_restored_store_ships_on_and_the_old_one_is_refused(tmp_path: Path) -> None:
    root, target = made(tmp_path, 60, 2)
    restore(str(target), tmp_path / "copy")
    with Shipped(tmp_path / "copy", target) as copy:
        copy.put(10, 60)
        copy.ship()
    with Shipped(root, target) as old:
        old.put(30, 60)
        with pytest.raises(OtherLogError, match="promoted or restored later, to epoch 1"):
            old.ship()
    restore(str(target), tmp_path / "again")
    assert bodies(tmp_path / "again") == bodies(tmp_path / "copy")


def test_a_manifest_of_more_than_the_disk_holds_writes_nothing(tmp_path: Path) -> None:
    _, target = made(tmp_path, 10, 1)
    (path,) = (target / "manifests").iterdir()
    about = json.loads(path.read_bytes().partition(b"\n")[0])
    size = 1 << 30
    about["segment_bytes"] = size
    about["pieces"] = [[n * size, n * size + size, 5, "0" * 64, "zlib", 1, 1, 0] for n in range(50_000)]  # fmt: skip
    line = json.dumps(about).encode()
    path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
    with pytest.raises(RestoreError, match="the disk has"):
        restore(str(target), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """An object that unpacks to more than its range is refused as soon as it does, though its digest is right."""
    _, target = made(tmp_path, 10, 1, compress="zlib")
    (path,) = (target / "log").iterdir()
    bomb = zlib.compress(bytes(64 << 20))[:100_000]
    start, stop = (int(text) for text in path.name.partition(".")[0].split("-"))
    short = zlib.compress(bytes(stop - start + 1))
    for data in (bomb[: stop - start], short):
        path.write_bytes(data)
        (name,) = (target / "manifests").iterdir()
        about = json.loads(name.read_bytes().partition(b"\n")[0])
        about["pieces"][0][2:4] = [len(data), hashlib.sha256(data).hexdigest()]
        line = json.dumps(about).encode()
        name.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
        with pytest.raises(ArchiveError, match=f"{path.name}: it has more than"):
            restore(str(target), tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
