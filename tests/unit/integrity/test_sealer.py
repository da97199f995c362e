"""Sealing: when a full segment gets its digest, how fast, and what stops it."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.files import Files
from penstock.integrity.sealer import Sealer
from penstock.integrity.segment_digests import Digests
from penstock.log.segmented_log import SegmentedLog
from penstock.store.store import Store
from penstock.testing import FaultyFiles, InlineWorkers, ManualWorkers, open_store

SEGMENT = 64 * 1024


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while len(store._log.segments) < segments:
        store.put("t", b"x" * 1000, keys=["k"])


def sealed(path: Path) -> list[int]:
    return Digests(Files(), path).bases()


def seal_all(workers: ManualWorkers) -> None:
    while workers.run("penstock-seal") is not None:
        pass


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
        store.put("t", b"goes on")
    with open_store(tmp_path / "s", spawn=workers):
        seal_all(workers)
        assert sealed(tmp_path / "s") == [0, SEGMENT]


def test_sealing_keeps_out_of_the_way_of_inline_stories(tmp_path: Path) -> None:
    workers = InlineWorkers()
    with open_store(tmp_path / "s", spawn=workers) as store:
        fill(store, 3)
        workers.run_all()
        store.flush()
        workers.run_all()
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert not list(reader.verify())


def test_a_segment_that_is_forgotten_is_not_sealed_again(tmp_path: Path) -> None:
    for base in (0, 4096):
        (tmp_path / f"{base:020d}").write_bytes(bytes(4096))
    log = SegmentedLog(Files(), tmp_path, 4096, mapped=False)
    log.load(repair=False)
    sealer = Sealer(Files(), Digests(Files(), tmp_path), log, 1, [])
    sealer.durable = lambda: 1 << 40
    assert sealer.waiting == 1
    sealer.forget(0)
    assert sealer.step() is None
    assert sealer.sealed == set()
