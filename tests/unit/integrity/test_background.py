"""What is done in the background of a writing store, and what it says of itself."""

from pathlib import Path
from typing import Any

import pytest

from penstock.config.model import ScrubConfig
from penstock.files import Files
from penstock.integrity.background import Upkeep
from penstock.log.segmented_log import SegmentedLog
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store

Place = tuple[Path, ManualWorkers]


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while len(store._log.segments) < segments:
        store.put("t", b"x" * 1000, keys=["k"])


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


def test_no_digests_if_they_are_not_wanted(tmp_path: Path) -> None:
    workers = ManualWorkers()
    settings: dict[str, Any] = {"scrub.digests": False}
    with open_store(tmp_path / "s", spawn=workers, **settings):
        assert not {"penstock-seal", "penstock-scrub"} & set(workers.by_name)


def test_stats_have_no_upkeep_where_nothing_is_written(place: Place) -> None:
    path, _ = place
    with open_store(path, read_only=True) as reader:
        figures = reader.stats()
        assert "upkeep" not in figures


def test_what_is_not_asked_for_is_not_begun(tmp_path: Path) -> None:
    log = SegmentedLog(Files(), tmp_path, 4096, mapped=False)
    for config, names in (
        (ScrubConfig(digests=False), set()),
        (ScrubConfig(interval_hours=0), {"penstock-seal"}),
        (ScrubConfig(interval_hours=1), {"penstock-seal", "penstock-scrub"}),
    ):
        workers = ManualWorkers()
        upkeep = Upkeep.of(Files(), tmp_path, log, config, [0])
        upkeep.start(workers, lambda: 0, lambda _: None)
        assert set(workers.by_name) == names
        upkeep.wake()
        assert [name for name, each in workers.by_name.items() if each.is_awake] == sorted(names)[
            -1:
        ]
        assert upkeep.stats()["sealed_segments"] == 1
        upkeep.stop()
