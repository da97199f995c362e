"""Segments checked in processes of their own: who may, and that one finds what a single process finds."""

from pathlib import Path

import pytest

from penstock.dispatch.store_view import Recipe
from penstock.files import Files
from penstock.integrity.parallel import SegmentWorker, spread_over
from penstock.integrity.verification import Scope
from penstock.testing import SimulatedDisk, messages, open_store
from penstock.testing.kit import SMALL
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "s"
    with open_store(path, retention=[]) as store:
        store.put_many(messages(1000))
    return path


END = 1 << 62


def recipe(root: Path) -> Recipe:
    return Recipe(root, SMALL, ((ConsumeQueueDispatcher, ConsumeQueueOptions()),))


def test_a_worker_checks_one_segment_and_tells_what_it_saw(root: Path) -> None:
    worker = SegmentWorker(
        recipe(root), Scope(end=END, extent=END, claimed=0, is_ours=True, is_live=False)
    )
    assert worker.start() == []
    findings, tally, seen = worker.check(SMALL.segment_bytes)
    assert (findings, len(seen)) == ([], 1)
    assert 0 < tally.records < 1000
    assert worker.check(1 << 40)[:2] == ([], type(tally)()), "a segment that has gone"


def test_a_file_system_of_a_tests_own_is_no_other_processs(root: Path) -> None:
    assert spread_over(Files(), recipe(root)) is not None
    assert spread_over(SimulatedDisk(), recipe(root)) is None


def test_a_class_that_no_other_process_can_import_stays_here(root: Path) -> None:
    class Local(ConsumeQueueDispatcher):
        pass

    assert spread_over(Files(), Recipe(root, SMALL, ((Local, ConsumeQueueOptions()),))) is None
