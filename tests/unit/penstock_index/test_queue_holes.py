"""Entries that are missing are found without a walk over the log; entries of damage are kept."""

from pathlib import Path

import pytest
from tests.unit.contracts.test_dispatcher import OneQueue

from penstock.testing import WrittenLog
from penstock_index.queue_files import ENTRY
from penstock_index.queue_holes import entries_within


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 300)


def test_entries_within_damage_are_kept_and_the_last_of_an_empty_queue(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, [(0, 100), (100, 100), (200, 100)])
    kept = list(entries_within(index, [(100, 250)]))
    assert [(topic, queue, at) for topic, queue, at, _ in kept] == [("t", 0, 1)]
    assert len(kept[0][3]) == ENTRY.itemsize
    index.low = 3
    assert [at for _, _, at, _ in entries_within(index, [])] == [2]
