"""What entries and units say of each other: which are right, and where the units end."""

from pathlib import Path

import numpy as np
import pytest

from penstock.contracts import Trust
from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions
from penstock_index.queue_addresses import compare_run, end_of_units, first_needed
from penstock_index.queue_files import ENTRY
from penstock_index.queue_runs import Run, runs_of
from penstock_index.queue_state import Queue

KEY = ("topic-1", 1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 300)


@pytest.fixture
def queue(log: WrittenLog, tmp_path: Path) -> Queue:
    options = ConsumeQueueOptions(extended=True, extension_bytes=4096)
    made = ConsumeQueueDispatcher(options, make_context(tmp_path))
    made.load(Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False))
    for batch in log.batches():
        made.dispatch(batch)
    return made._queues[KEY]


def run_of(log: WrittenLog) -> Run:
    runs = [run for batch in log.batches() for run in runs_of(batch)]
    return next(run for run in runs if (run.topic, run.queue) == KEY)


@pytest.mark.slow
def test_units_end_after_that_of_the_last_address(queue: Queue) -> None:
    assert queue.max_offset == 50
    assert end_of_units(queue, found_only=True) == end_of_units(queue, found_only=False) == 50 * 20
    assert first_needed(queue) == 0
    queue.min_offset = 7
    assert first_needed(queue) == 140


def test_an_address_that_leads_to_no_unit_counts_only_so_that_none_comes_there(
    queue: Queue,
) -> None:
    queue.extension.cut(30 * 20)
    assert end_of_units(queue, found_only=True) == 30 * 20
    assert end_of_units(queue, found_only=False) == 50 * 20


def test_entries_that_are_there_keep_their_addresses(log: WrittenLog, queue: Queue) -> None:
    run = run_of(log)
    found = compare_run(queue, run)
    assert found.is_right.all()
    assert (found.entries["tag_code"].astype(np.int64) < -(1 << 31)).all()
    beyond = compare_run(queue, run._replace(ordinal=queue.max_offset))
    assert len(beyond.is_right) == 0
    moved = compare_run(queue, run._replace(ordinal=1))
    assert not moved.is_right.any()


@pytest.mark.parametrize("field", ["tag_code", "store_time_ms"])
def test_an_entry_is_right_only_if_its_unit_is_in_both_fields(
    log: WrittenLog, queue: Queue, field: str
) -> None:
    run = run_of(log)
    if field == "tag_code":
        data = np.frombuffer(run.data, ENTRY).copy()
        data["tag_code"][2] += 1
        run = run._replace(data=data.tobytes())
    else:
        times = run.store_times.copy()
        times[2] += 1
        run = run._replace(packed_times=times.tobytes())
    found = compare_run(queue, run)
    assert np.flatnonzero(~found.is_right).tolist() == [2]
