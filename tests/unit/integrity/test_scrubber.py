"""Scrubbing: sealed segments are read again, gently, and what changed is told."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin
from tests.unit.integrity.test_segment_digests import SEGMENT, fill, flip, seal_all, segment_of

from penstock.errors import ConfigError
from penstock.files import Files
from penstock.integrity.scrubber import Scrubber
from penstock.integrity.segment_digests import Digests
from penstock.log.segmented_log import SegmentedLog
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, open_store


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
        assert figures["scrubbed_bytes"] == 3 * SEGMENT
        assert (figures["damage_found"], figures["last_damage"]) == (0, None)


def test_an_interval_of_zero_means_never(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with opened(tmp_path / "s", workers, **{"scrub.interval_hours": 0}):
        assert "penstock-scrub" not in workers.by_name


@pytest.mark.parametrize("key", ["mib_per_s", "seal_mib_per_s"])
def test_a_rate_of_nothing_is_refused(key: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {f"scrub.{key}": 0}
    with pytest.raises(ConfigError, match=key):
        open_store(tmp_path / "s", **settings)


def test_damage_is_logged_counted_and_told_once_a_pass(
    tmp_path: Path, install_plugin: InstallPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    install_plugin("watch-damage", """
        from penstock import hookimpl
        told = []

        @hookimpl
        def penstock_damage_found(path, position, log_offset, text):
            told.append((path, position, log_offset, text))
    """)  # fmt: skip
    workers = ManualWorkers()
    with opened(tmp_path / "s", workers) as store:
        flip(segment_of(store.path, 1).path, 20)  # a queue offset: no CRC of RocketMQ's covers it
        figures = one_pass(store, workers)
        assert figures["damage_found"] == 1
        assert f"{SEGMENT:020d}, byte 0" in figures["last_damage"]
        assert f"{SEGMENT:020d}, byte 0" in caplog.text
        one_pass(store, workers)
        store.put("t", b"writing goes on")
    import watch_damage  # type: ignore[import-not-found] # noqa: PLC0415 - it exists only now

    told = (str(store.path / "commitlog" / f"{SEGMENT:020d}"), 0, SEGMENT)
    assert [each[:3] for each in watch_damage.told] == [told, told]


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


def test_a_hostile_digest_is_passed_over(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with opened(tmp_path / "s", workers) as store:
        (store.path / "penstock" / "digests" / f"{SEGMENT:020d}").write_bytes(b"\xff" * 99)
        figures = one_pass(store, workers)
        assert (figures["damage_found"], figures["scrubbed_bytes"]) == (0, 2 * SEGMENT)


def test_a_log_without_digests_is_passed_over_once_an_interval(tmp_path: Path) -> None:
    log = SegmentedLog(Files(), tmp_path, 4096, mapped=False)
    scrubber = Scrubber(Files(), Digests(Files(), tmp_path), log, 1, 2.0)
    assert [scrubber.step() for _ in range(3)] == [7200.0] * 3
    assert (scrubber.passes, scrubber.bytes_read, scrubber.found) == (2, 0, 0)
