"""Digests of full segments: when they are made, when they are believed, when they go."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.files import Files
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
from penstock.testing import FaultyFiles, InlineWorkers, ManualWorkers, open_store

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


def test_no_digests_if_they_are_not_wanted(tmp_path: Path) -> None:
    workers = ManualWorkers()
    settings: dict[str, Any] = {"scrub.digests": False}
    with open_store(tmp_path / "s", spawn=workers, **settings):
        assert not {"penstock-seal", "penstock-scrub"} & set(workers.by_name)


def test_what_a_crash_left_without_a_digest_gets_it_at_the_next_open(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path / "s", files=files, spawn=ManualWorkers())
    fill(store, 4)
    store.flush()
    shutil.copytree(tmp_path / "s", tmp_path / "crashed", copy_function=shutil.copy2)
    store.close()
    workers = ManualWorkers()
    with open_store(tmp_path / "crashed", spawn=workers):
        assert sealed(tmp_path / "crashed") == []
        seal_all(workers)
        assert sealed(tmp_path / "crashed") == [0, SEGMENT, 2 * SEGMENT]


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


def test_a_segment_that_goes_while_it_is_sealed_leaves_no_digest(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 4)
        store.flush()
        workers.run("penstock-seal")  # the first block of the first segment
        store.discard_before(log_offset=SEGMENT)
        seal_all(workers)
        assert sealed(store.path) == [SEGMENT, 2 * SEGMENT]


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
        store.put("t", b"goes on")
    with open_store(tmp_path / "s", spawn=workers):
        seal_all(workers)
        assert sealed(tmp_path / "s") == [0, SEGMENT]


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


def test_sealing_keeps_out_of_the_way_of_inline_stories(tmp_path: Path) -> None:
    workers = InlineWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 3)
        workers.run_all()
        store.flush()
        workers.run_all()
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert not list(reader.verify())


def test_stats_have_no_upkeep_where_nothing_is_written(place: Place) -> None:
    path, _ = place
    with open_store(path, read_only=True) as reader:
        figures: dict[str, Any] = reader.stats()
        assert "upkeep" not in figures
