"""What entries and units say of each other: which are right, and where the units end."""

from pathlib import Path

import pytest

from penstock.contracts import Trust
from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions
from penstock_index.queue_addresses import end_of_units, first_needed
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
