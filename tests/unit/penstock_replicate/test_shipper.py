"""A log is shipped round by round; whatever happens in between, the archive's newest manifest is a beginning of the log."""

import json
import shutil
from pathlib import Path
from random import Random

import pytest
from tests.shipped import Shipped, bodies, log_bytes

from penstock.durability.replica_file import Epoch, Replica, ReplicaFile
from penstock.files import Files
from penstock.testing import SimulatedDisk
from penstock.testing.faults import KilledError
from penstock.testing.platter import Survival
from penstock_replicate.ship.archive import Archive, FolderArchive
from penstock_replicate.ship.manifest import Manifest, ManifestName
from penstock_replicate.ship.restore_point import survey
from penstock_replicate.ship.restoring import restore, unpacked
from penstock_replicate.ship.ship_errors import ArchiveError, OtherLogError
from penstock_replicate.ship.shipper import read_manifest

ARCHIVE = Path("/archive")


def check(archive: Archive, shipped: Shipped) -> Manifest:
    """Each object of the newest manifest is there, and is that part of the log; return the manifest."""
    manifest = survey(archive).manifest
    for piece in manifest.pieces:
        data = b"".join(unpacked(archive, piece))
        if piece.start >= shipped.log.min_offset:
            assert data == log_bytes(shipped.store.path, piece.start, piece.stop)
    return manifest


def test_each_round_ships_what_is_new(tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", tmp_path / "archive") as shipped:
        for number in range(10):
            shipped.put(20, number * 20)
            shipped.ship()
            manifest = check(shipped.archive, shipped)
            assert manifest.end == shipped.log.visible_offset
        manifest = check(shipped.archive, shipped)
        written = shipped.shipper.shipped_bytes
        assert shipped.ship() == manifest.number
        assert shipped.shipper.shipped_bytes == written
        whole = [piece for piece in manifest.pieces if piece.weight == 0]
        assert [(piece.stop - piece.start) for piece in whole] == [16 << 10] * len(whole)
        assert len(whole) == manifest.end // (16 << 10)


def test_pieces_of_an_open_segment_are_merged(tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", tmp_path / "archive", generations=1, **{"geometry.segment_bytes": 1 << 20}) as shipped:  # fmt: skip
        for number in range(600):
            shipped.put(1, number)
            shipped.ship()
        assert shipped.shipper.manifest is not None
        assert len(shipped.shipper.manifest.pieces) <= 40
        assert {piece.weight for piece in shipped.shipper.manifest.pieces} == {1, 16, 256}
        assert shipped.shipper.shipped_bytes < 4 * shipped.shipper.end + 600 * 400
    names = {path.name for path in (tmp_path / "archive" / "log").iterdir()}
    assert len(names) == len(shipped.shipper.manifest.pieces)
    restore(str(tmp_path / "archive"), tmp_path / "copy")
    assert bodies(tmp_path / "copy") == bodies(tmp_path / "store")


def test_old_manifests_are_thinned_and_newest_ones_stay_whole(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target, generations=3) as shipped:
        for number in range(60):
            shipped.offset_ms = number * 61_000
            shipped.put(5, number * 5)
            shipped.store.commit_offset("g", "t", 0, offset=number)
            shipped.ship()
        names = sorted(path.name for path in (target / "manifests").iterdir())
        # One of each ten minutes of an hour, and the newest.
        assert 8 <= len(names) <= 11
        for name in names[-3:]:
            found = survey(shipped.archive, int(name[:20]))
            for piece in found.manifest.pieces:
                assert list(unpacked(shipped.archive, piece))
        assert len(list((target / "side").iterdir())) <= len(names)
    middle = names[3].partition("-")[2].removesuffix(".json")
    report = restore(str(target), tmp_path / "copy", time=int(middle))
    assert report.side_generation == int(names[3][:20])


def test_what_retention_deletes_here_stays_there(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target, **{"retention.use": ["size"], "retention.size.bytes_max": 32 << 10}) as shipped:  # fmt: skip
        for number in range(10):
            shipped.put(60, number * 60)
            shipped.ship()
            shipped.store.retain()
        assert shipped.log.min_offset > 0
        shipped.put(1, 600)
        shipped.ship()
        manifest = check(shipped.archive, shipped)
        assert manifest.begin == 0
    report = restore(str(target), tmp_path / "copy")
    assert report.log_begin == 0
    assert [body[:6] for body in bodies(tmp_path / "copy")] == [b"%06d" % n for n in range(601)]


def test_segments_that_are_old_and_deleted_here_leave_the_archive(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    settings = {"retention.use": ["size"], "retention.size.bytes_max": 32 << 10}
    with Shipped(tmp_path / "store", target, retention_ms=1, generations=1, **settings) as shipped:
        for number in range(6):
            shipped.put(60, number * 60)
            shipped.ship()
            shipped.store.retain()
        shipped.put(1, 600)
        shipped.ship()
        manifest = check(shipped.archive, shipped)
        assert manifest.begin == shipped.log.min_offset
    names = sorted(path.name for path in (target / "log").iterdir())
    assert names == sorted(piece.name.removeprefix("log/") for piece in manifest.pieces)
    report = restore(str(target), tmp_path / "copy")
    assert report.log_begin == manifest.begin
    assert not report.findings


def test_bytes_that_were_deleted_before_they_were_shipped_are_a_gap(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target, **{"retention.use": ["size"], "retention.size.bytes_max": 32 << 10}) as shipped:  # fmt: skip
        shipped.put(100)
        shipped.ship()
        before = shipped.shipper.end
        shipped.put(300, 100)
        shipped.store.retain()
        assert shipped.log.min_offset > before
        shipped.ship()
        found = survey(shipped.archive)
        assert [span.begin for span in found.spans] == [0, shipped.log.min_offset]
    report = restore(str(target), tmp_path / "copy")
    assert report.log_begin > before
    assert any("gap" in text for text in report.notes)
    report = restore(str(target), tmp_path / "old", offset=before)
    assert (report.log_begin, report.log_end) == (0, before)
    assert len(bodies(tmp_path / "old")) == 100


def test_another_store_is_refused_with_both_histories(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "one", target) as one:
        one.put(10)
        one.ship()
        mine = one.shipper.manifest
        assert mine is not None
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    with Shipped(tmp_path / "two", target) as two:
        two.put(10)
        with pytest.raises(OtherLogError) as refused:
            two.ship()
        found = ReplicaFile(Files(), tmp_path / "two").read()
    assert found is not None
    assert mine.history in str(refused.value)
    assert found.history in str(refused.value)
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before


def test_a_log_that_was_set_back_or_differs_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(10)
        shipped.store.flush()
        shipped.ship()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(10, 10)
        shipped.ship()
    with Shipped(tmp_path / "copy", target) as copy:
        with pytest.raises(OtherLogError, match="already at"):
            copy.ship()
        copy.put(20, 50)
        with pytest.raises(OtherLogError, match="other bytes"):
            copy.ship()


def test_an_older_epoch_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(10)
        shipped.ship()
    file = ReplicaFile(Files(), tmp_path / "store")
    before = file.read()
    assert before is not None
    file.write(Replica(history=before.history, role="master", epochs=(Epoch(epoch=3, start_offset=0),)))  # fmt: skip
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(10, 10)
        shipped.ship()
    file.write(before)
    with (
        Shipped(tmp_path / "store", target) as shipped,
        pytest.raises(OtherLogError, match="epoch 3"),
    ):
        shipped.ship()


def test_the_process_that_began_last_ships(tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", tmp_path / "archive") as shipped:
        shipped.put(10)
        shipped.ship()
        later = shipped.make_shipper()
        shipped.put(10, 10)
        later.round()
        shipped.put(10, 20)
        for _ in range(2):
            with pytest.raises(OtherLogError, match="another process ships there"):
                shipped.shipper.round()
        later.round()
        assert check(shipped.archive, shipped).end == shipped.log.visible_offset


def test_an_archive_that_was_removed_is_begun_again(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(100)
        shipped.ship()
        shutil.rmtree(target)
        shipped.put(10, 100)
        with pytest.raises(ArchiveError, match="read again"):
            shipped.ship()
        shipped.shipper = shipped.make_shipper()
        shipped.ship()
        assert check(shipped.archive, shipped).end == shipped.log.visible_offset


def test_a_torn_newest_manifest_is_replaced_by_a_later_one(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target) as shipped:
        for number in range(3):
            shipped.put(100, number * 100)
            shipped.ship()
        newest = sorted((target / "manifests").iterdir())[-1]
        newest.write_bytes(newest.read_bytes()[:100])
        shipped.shipper = shipped.make_shipper()
        assert shipped.ship() == int(newest.name[:20]) + 1
        assert check(shipped.archive, shipped).end == shipped.log.visible_offset
        for path in (target / "manifests").iterdir():
            path.write_bytes(b"")
        shipped.shipper = shipped.make_shipper()
        with pytest.raises(ArchiveError, match="none of the newest"):
            shipped.ship()


def play(shipped: Shipped, first: int) -> None:
    """Ship in some rounds, with a full segment or two and a merge of many pieces."""
    for number in range(24):
        shipped.put(3 if number % 8 else 40, first + number)
        shipped.ship()


@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_at_any_call_leaves_a_beginning_of_the_log(
    tmp_path: Path, survival: Survival
) -> None:
    """The archive is on a simulated disk; the process dies there at each of some calls, or the machine loses its power."""
    chance = Random(str(survival))
    root = tmp_path / "store"
    disk = SimulatedDisk()
    disk.make_folder_durably(ARCHIVE)
    with Shipped(root, FolderArchive(disk, ARCHIVE), generations=2) as shipped:
        # Each crash is followed by the next one: the archive of a process that resumed is crashed as well.
        for _ in range(12):
            disk.plan.die_at(chance.randrange(1, 160))
            durable = shipped.shipper.end
            try:
                shipped.shipper = shipped.make_shipper()
                play(shipped, 0)
            except KilledError:
                durable = max(durable, shipped.shipper.end)
            disk.plan.heal()
            disk = SimulatedDisk.after(disk.image(), survival, chance)
            archive = FolderArchive(disk, ARCHIVE)
            shipped.archive = archive
            try:
                assert check(archive, shipped).end >= durable
            except ArchiveError:
                assert durable == 0
        disk.plan.heal()
        shipped.shipper = shipped.make_shipper()
        shipped.ship()
        manifest = check(shipped.archive, shipped)
        assert manifest.end == shipped.log.visible_offset
        # Nothing that a crash left is there for ever.
        for _ in range(3):
            shipped.put(1)
            shipped.ship()
        named = {piece.name for each in shipped.shipper._recent for piece in each.pieces}
        assert {f"log/{name}" for name in shipped.archive.names("log")} == named


def test_a_failing_disk_is_an_error_and_the_next_round_goes_on(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    disk.make_folder_durably(ARCHIVE)
    with Shipped(tmp_path / "store", FolderArchive(disk, ARCHIVE)) as shipped:
        shipped.put(50)
        shipped.ship()
        for call in ("create", "pwrite", "sync", "rename", "sync_folder"):
            shipped.put(50)
            disk.plan.fail(call, times=1)
            with pytest.raises(ArchiveError, match="cannot be written"):
                shipped.ship()
            disk.plan.heal()
            shipped.ship()
            assert check(shipped.archive, shipped).end == shipped.log.visible_offset


def test_an_owner_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Shipped(tmp_path / "store", target) as shipped:
        shipped.put(10)
        shipped.ship()
        for content in (b"", b"[]", b"{}", b"[" * 4000, json.dumps({"process": 1}).encode()):
            (target / "owner.json").write_bytes(content)
            shipped.put(1)
            with pytest.raises(ArchiveError, match="read again"):
                shipped.ship()
            shipped.ship()


def test_a_manifest_that_is_missing_is_named(tmp_path: Path) -> None:
    name = ManifestName(7, 1)
    with pytest.raises(ArchiveError, match="missing"):
        read_manifest(FolderArchive(Files(), tmp_path), name)
