"""Digests of full segments: when they are made, when they are believed, when they go."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from penstock.files import File, Files
from penstock.integrity.segment_digests import (
    BLOCK_BYTES,
    Digest,
    Digests,
    check_digest,
    decode,
    sum_up,
)
from penstock.log.segment import Segment
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store

SEGMENT = 64 * 1024
Place = tuple[Path, ManualWorkers]


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while len(store._log.segments) < segments:
        store.put("t", b"x" * 1000, keys=["k"])


def sealed(path: Path) -> list[int]:
    return Digests(Files(), path).bases()


def seal_all(workers: ManualWorkers) -> None:
    while workers.run("penstock-seal") is not None:
        pass


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A closed store of five segments, the first four of them sealed."""
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 5)
        store.flush()
        seal_all(workers)
    return tmp_path / "s", workers


def segment_of(path: Path, number: int) -> Segment:
    file = path / "commitlog" / f"{number * SEGMENT:020d}"
    return Segment(Files(), file, number * SEGMENT, SEGMENT)


def differing(path: Path, number: int, *, is_ours: bool = True) -> list[tuple[int, int]]:
    digests = Digests(Files(), path)
    return list(check_digest(Files(), digests, segment_of(path, number), is_ours=is_ours))


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def test_every_byte_of_a_sealed_segment_is_covered(place: Place) -> None:
    path, _ = place
    for position in (0, 5, 30, SEGMENT // 2, SEGMENT - 1):
        assert differing(path, 1) == []
        flip(segment_of(path, 1).path, position)
        assert differing(path, 1) == [(0, SEGMENT)]
        flip(segment_of(path, 1).path, position)


def test_blocks_tell_where(tmp_path: Path) -> None:
    file = tmp_path / "0"
    file.write_bytes(os.urandom(3 * BLOCK_BYTES + 100))
    segment = Segment(Files(), file, 0, 3 * BLOCK_BYTES + 100)
    before = sum_up(Files(), segment)
    flip(file, BLOCK_BYTES + 7)
    flip(file, 3 * BLOCK_BYTES + 99)
    after = sum_up(Files(), segment)
    stretches = [(BLOCK_BYTES, 2 * BLOCK_BYTES), (3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 100)]
    assert before.differing(after) == stretches
    assert decode(before.encode()) == before


def test_a_digest_goes_with_its_segment(place: Place) -> None:
    path, _ = place
    for alloc in ("on-demand", "recycle"):
        with open_store(path, spawn=ManualWorkers(), alloc=alloc) as store:
            low = store.stats()["log_min_offset"]
            assert store.discard_before(log_offset=low + SEGMENT) == 1
            assert min(sealed(path)) == low + SEGMENT
    assert sealed(path) == [2 * SEGMENT, 3 * SEGMENT]


def test_digests_of_segments_that_are_gone_go_at_the_next_open(place: Place) -> None:
    path, _ = place
    segment_of(path, 0).path.unlink()
    stray = path / "penstock" / "digests" / "read me"
    stray.write_text("not ours")
    with open_store(path, spawn=ManualWorkers()):
        assert sealed(path) == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT]
        assert stray.exists()


@pytest.mark.parametrize("wrote_last", ["penstock", "another"])
def test_a_changed_segment_is_damage_or_another_programs_work(
    wrote_last: str, place: Place
) -> None:
    """The Java store may cut the log and fill a segment anew; nobody but it may."""
    path, _ = place
    flip(segment_of(path, 1).path, 100)
    if wrote_last == "another":
        (path / "lock").write_bytes(b"lock")
    with open_store(path, spawn=ManualWorkers()):
        assert (SEGMENT in sealed(path)) == (wrote_last == "penstock")
        assert 2 * SEGMENT in sealed(path), "not written since: still believed"


HOSTILE = [b"", b"\0" * 60, b"PSTKDIG1" * 20, os.urandom(5000), b"PSTKDIG1" + b"\xff" * 52]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_digest_counts_as_none(data: bytes, place: Place) -> None:
    path, _ = place
    digests = Digests(Files(), path)
    digests.path(SEGMENT).write_bytes(data)
    assert digests.read(segment_of(path, 1)) is None
    assert decode(data) is None
    if len(data) == 60:
        (path / "lock").write_bytes(b"lock")  # or nobody looks into it
    workers = ManualWorkers()
    with open_store(path, spawn=workers):
        seal_all(workers)
    assert digests.read(segment_of(path, 1)) is not None


def test_a_digest_of_another_segment_or_a_link_counts_as_none(place: Place, tmp_path: Path) -> None:
    path, _ = place
    digests = Digests(Files(), path)
    shutil.copy(digests.path(0), digests.path(SEGMENT))
    assert digests.read(segment_of(path, 1)) is None
    digests.path(0).rename(tmp_path / "elsewhere")
    digests.path(0).symlink_to(tmp_path / "elsewhere")
    assert digests.read(segment_of(path, 0)) is None
    huge = Digest(base_offset=0, size=1 << 62, mtime_ns=0, whole=0, blocks=())
    assert decode(huge.encode()) is None


def test_a_torn_tail_cut_into_a_sealed_segment_forgets_its_digest(tmp_path: Path) -> None:
    workers = ManualWorkers()
    store = open_store(tmp_path / "s", spawn=workers)
    fill(store, 3)
    store.flush()
    seal_all(workers)
    shutil.copytree(tmp_path / "s", tmp_path / "torn", copy_function=shutil.copy2)
    store.close()
    path = tmp_path / "torn"
    (path / "penstock" / "progress").unlink()
    (path / "checkpoint").unlink()
    for number in (1, 2):
        os.truncate(segment_of(path, number).path, 0)
        os.truncate(segment_of(path, number).path, SEGMENT)
    with open_store(path, spawn=ManualWorkers()) as again:
        assert again.recovery is not None
        assert sealed(path) == [0]


def test_a_digest_appears_whole_under_its_name(tmp_path: Path) -> None:
    """It was written in place: a verification in the same process met it empty, once in 3,273 tests."""
    seen: list[bytes] = []

    class Watching(Files):
        def create(self, path: Path) -> File:
            self.look()
            file = super().create(path)
            self.look()
            return file

        def rename(self, source: Path, target: Path) -> None:
            self.look()
            super().rename(source, target)
            self.look()

        def sync_folder(self, path: Path) -> None:
            self.look()
            super().sync_folder(path)

        def look(self) -> None:
            folder = tmp_path / "penstock" / "digests"
            seen.extend(path.read_bytes() for path in folder.glob("*"))

    digests = Digests(Watching(), tmp_path)
    digest = Digest(base_offset=0, size=SEGMENT, mtime_ns=1, whole=2, blocks=((3, 4),))
    for _ in range(2):
        digests.write(digest)
    assert seen
    assert set(seen) == {digest.encode()}
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == ["digests"]


def test_a_digest_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    class Full(Files):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "full")

    digest = Digest(base_offset=0, size=SEGMENT, mtime_ns=1, whole=2, blocks=((3, 4),))
    with pytest.raises(OSError, match="full"):
        Digests(Full(), tmp_path).write(digest)
    assert list((tmp_path / "penstock" / "digests").iterdir()) == []
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == ["digests"]
