"""Digests of full segments: when they are made and how fast, when they are believed, when they go, and the scrubbing by them."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Listen
from tests.unit.integrity.live import seal_all

from penstock.errors import ConfigError
from penstock.files import File, Files
from penstock.integrity.segment_digests import (
    Digest,
    Digests,
    check_digest,
    decode,
)
from penstock.log.segment import Segment
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, open_store

SEGMENT = 64 * 1024
Place = tuple[Path, ManualWorkers]


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while store.stats()["segments"] < segments:
        store.put("t", b"x" * 1000, queue=0, keys=["k"])


def sealed(path: Path) -> list[int]:
    return Digests(Files(), path).bases()


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


def test_a_digest_goes_with_its_segment(place: Place) -> None:
    path, _ = place
    for alloc in ("on-demand", "recycle"):
        with open_store(path, spawn=ManualWorkers(), alloc=alloc) as store:
            low = store.stats()["log_min_offset"]
            assert store.discard_before(log_offset=low + SEGMENT) == 1
            assert min(sealed(path)) == low + SEGMENT
    assert sealed(path) == [2 * SEGMENT, 3 * SEGMENT]


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


HUGE = Digest(base_offset=0, size=1 << 62, mtime_ns=0, whole=0, blocks=())
HOSTILE = [
    b"", b"\0" * 60, b"PSTKDIG1" * 20, os.urandom(5000), b"PSTKDIG1" + b"\xff" * 52, HUGE.encode(),
]  # fmt: skip


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


def test_full_durable_segments_get_a_digest_and_no_others(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 4)
        assert workers.run("penstock-seal") == 1.0, "full, but not durable yet: asked again soon"
        assert sealed(store.path) == []
        assert store.stats()["upkeep"]["not_sealed_yet"] == 3
        store.flush()
        seal_all(workers)
        assert sealed(store.path) == [0, SEGMENT, 2 * SEGMENT]
        figures = store.stats()["upkeep"]
        assert (figures["sealed_segments"], figures["not_sealed_yet"]) == (3, 0)


def test_sealing_pauses_as_long_as_its_rate_asks(tmp_path: Path) -> None:
    workers = ManualWorkers()
    settings: dict[str, Any] = {"scrub.seal_mib_per_s": 2}
    with open_store(tmp_path / "s", spawn=workers, **settings) as store:
        fill(store, 2)
        store.flush()
        assert workers.run("penstock-seal") == SEGMENT / (2 << 20)


def test_a_segment_that_goes_while_it_is_sealed_leaves_no_digest(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 4)
        store.flush()
        workers.run("penstock-seal")  # the first block of the first segment
        store.discard_before(log_offset=SEGMENT)
        seal_all(workers)
        assert sealed(store.path) == [SEGMENT, 2 * SEGMENT]


@pytest.mark.parametrize(("call", "number"), [("pread", errno.EIO), ("create", errno.ENOSPC)])
def test_a_disk_that_fails_while_sealing_stops_nothing(
    call: str, number: int, tmp_path: Path
) -> None:
    files, workers = FaultyFiles(), ManualWorkers()
    with open_store(tmp_path / "s", files=files, spawn=workers) as store:
        fill(store, 3)
        store.flush()
        files.plan.fail(call, number, path="commitlog" if call == "pread" else "digests")
        seal_all(workers)
        files.plan.heal()
        assert sealed(store.path) == []
        store.put("t", b"goes on", queue=0)
    with open_store(tmp_path / "s", spawn=workers):
        seal_all(workers)
        assert sealed(tmp_path / "s") == [0, SEGMENT]


def opened(path: Path, workers: ManualWorkers, **given: Any) -> Store:
    """Open a store of four segments, three of them sealed."""
    store = open_store(path, spawn=workers, **given)
    fill(store, 4)
    store.flush()
    seal_all(workers)
    return store


def one_pass(store: Store, workers: ManualWorkers) -> dict[str, Any]:
    before = store.stats()["upkeep"]["scrub_passes"]
    while store.stats()["upkeep"]["scrub_passes"] == before:
        workers.run("penstock-scrub")
    figures: dict[str, Any] = store.stats()["upkeep"]
    return figures


def test_a_whole_store_is_read_once_an_interval_at_the_rate(tmp_path: Path) -> None:
    workers = ManualWorkers()
    rates = {"scrub.mib_per_s": 4, "scrub.interval_hours": 2.0}
    with opened(tmp_path / "s", workers, **rates) as store:
        assert workers.run("penstock-scrub") == 7200, "the first pass begins an interval later"
        assert workers.run("penstock-scrub") == SEGMENT / (4 << 20)
        figures = one_pass(store, workers)
        assert (figures["scrub_passes"], figures["scrubbed_bytes"]) == (1, 3 * SEGMENT)
        assert (figures["damage_found"], figures["last_damage"]) == (0, None)


@pytest.mark.parametrize("key", ["mib_per_s", "seal_mib_per_s"])
def test_a_rate_of_nothing_is_refused(key: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {f"scrub.{key}": 0}
    with pytest.raises(ConfigError, match=key):
        open_store(tmp_path / "s", **settings)


def test_damage_is_logged_counted_and_told_once_a_pass(
    tmp_path: Path, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    listen("penstock_damage_found", "path", told.append)
    workers = ManualWorkers()
    with opened(tmp_path / "s", workers) as store:
        flip(segment_of(store.path, 1).path, 20)  # a queue offset: no CRC of RocketMQ's covers it
        figures = one_pass(store, workers)
        assert figures["damage_found"] == 1
        assert f"{SEGMENT:020d}, byte 0" in figures["last_damage"]
        assert f"{SEGMENT:020d}, byte 0" in caplog.text
        one_pass(store, workers)
        store.put("t", b"writing goes on", queue=0)
    assert told == [str(store.path / "commitlog" / f"{SEGMENT:020d}")] * 2


def test_a_segment_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    files, workers = FaultyFiles(), ManualWorkers()
    with opened(tmp_path / "s", workers, files=files) as store:
        store.topics()  # the follower has read all segments by now
        for call in ("open", "pread"):
            files.plan.fail(call, errno.EIO, path=f"commitlog/{SEGMENT:020d}")
            before = store.stats()["upkeep"]["damage_found"]
            figures = one_pass(store, workers)
            assert figures["damage_found"] == before + 1
            assert "cannot be read" in figures["last_damage"]
            files.plan.heal()


@pytest.mark.slow
def test_a_segment_that_goes_while_it_is_scrubbed_is_no_damage(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with opened(tmp_path / "s", workers, alloc="recycle") as store:
        workers.run("penstock-scrub")
        workers.run("penstock-scrub")  # a block of the first segment
        store.discard_before(log_offset=2 * SEGMENT)
        workers.run("penstock-allocate")  # which zeroes it
        assert one_pass(store, workers)["damage_found"] == 0
