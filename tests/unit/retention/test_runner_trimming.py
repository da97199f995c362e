"""Where retention has cut the log's head: which files go, to the entry."""

import struct
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.contracts import Dispatcher, Trust
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher

FILE = SMALL.queue_entries
LANE = ("topic-0", 0)
D = TypeVar("D", bound=Dispatcher)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    """Return a log with 450 records a queue: three files each."""
    return WrittenLog(tmp_path_factory.mktemp("log") / "log", 2700)


def filled(cls: type[D], path: Path, log: WrittenLog) -> D:
    made = cls(cls.Options(), make_context(path))
    made.load(Trust(log=log.view, durable_offset=0, is_clean=True, was_abnormal=False))
    for batch in log.batches():
        made.dispatch(batch)
    return made


@pytest.mark.parametrize(
    ("ordinal", "files"),
    [(1, 3), (FILE - 1, 3), (FILE, 2), (FILE + 1, 2), (2 * FILE - 1, 2), (2 * FILE, 1), (449, 1)],
)
def test_a_queue_file_goes_when_its_last_record_has_gone_and_not_before(
    ordinal: int, files: int, log: WrittenLog, tmp_path: Path
) -> None:
    queues = filled(ConsumeQueueDispatcher, tmp_path / "s", log)
    entries = queues.entries(*LANE, 0, 450)
    folder = tmp_path / "s" / "consumequeue" / LANE[0] / str(LANE[1])
    assert len(list(folder.iterdir())) == 3
    queues.trim(int(entries.log_offsets[ordinal]))
    assert (queues.min_offset(*LANE), queues.max_offset(*LANE)) == (ordinal, 450)
    left = sorted(int(path.name) for path in folder.iterdir())
    assert left == [base * FILE * 20 for base in range(3 - files, 3)]
    assert queues.entries(*LANE, ordinal, 450).log_offsets.tolist() == (
        entries.log_offsets[ordinal:].tolist()
    )
    queues.close()


def test_the_last_queue_file_stays_when_every_record_has_gone(
    log: WrittenLog, tmp_path: Path
) -> None:
    """It knows where the queue goes on."""
    queues = filled(ConsumeQueueDispatcher, tmp_path / "s", log)
    queues.trim(log.end_offset)
    for topic, queue in queues.queues():
        assert (queues.min_offset(topic, queue), queues.max_offset(topic, queue)) == (450, 450)
        folder = tmp_path / "s" / "consumequeue" / topic / str(queue)
        assert [int(path.name) for path in folder.iterdir()] == [2 * FILE * 20]
    queues.close()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_index_file_goes_when_its_last_record_has_gone_and_not_before(
    number: int, log: WrittenLog, tmp_path: Path
) -> None:
    index = filled(HashIndexDispatcher, tmp_path / "s", log)
    folder = tmp_path / "s" / "index"
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) > 4
    index.flush()
    last = struct.unpack_from(">q", (folder / names[number]).read_bytes(), 24)[0]
    index.trim(last)
    assert sorted(path.name for path in folder.iterdir()) == names[number:]
    index.trim(last + 1)
    assert sorted(path.name for path in folder.iterdir()) == names[number + 1 :]
    index.trim(log.end_offset)
    assert sorted(path.name for path in folder.iterdir()) == names[-1:], "the newest is written to"
    index.close()


def test_a_queue_file_that_is_lost_hides_no_later_one(log: WrittenLog, tmp_path: Path) -> None:
    """The log has been cut to within it; the first message that can be read is the first of the next file."""
    queues = filled(ConsumeQueueDispatcher, tmp_path / "s", log)
    low = int(queues.entries(*LANE, FILE + 50, FILE + 51).log_offsets[0])
    queues.flush()
    queues.close()
    folder = tmp_path / "s" / "consumequeue" / LANE[0] / str(LANE[1])
    (folder / f"{FILE * 20:020d}").unlink()
    queues = ConsumeQueueDispatcher(ConsumeQueueDispatcher.Options(), make_context(tmp_path / "s"))
    queues.load(Trust(
        log=log.view, durable_offset=log.end_offset, is_clean=True, was_abnormal=False
    ))  # fmt: skip
    queues.trim(low)
    assert (queues.min_offset(*LANE), queues.max_offset(*LANE)) == (2 * FILE, 450)
    queues.close()


def test_a_queue_whose_records_are_all_cut_goes_on_where_they_began(tmp_path: Path) -> None:
    """Before them it has only entries of records that retention took; it must not begin at 0 again."""
    log = WrittenLog(tmp_path / "log", 2700)
    log.lose_head(2)
    queues = filled(ConsumeQueueDispatcher, tmp_path / "s", log)
    firsts = {cursor: queues.min_offset(*cursor) for cursor in queues.queues()}
    assert all(first % FILE for first in firsts.values())
    second = log.batches()[0].log_offsets.tolist()[12]
    queues.truncate(second)
    for cursor, first in firsts.items():
        assert queues.max_offset(*cursor) == first + 2
    queues.truncate(log.view.min_offset)
    assert {cursor: queues.max_offset(*cursor) for cursor in firsts} == firsts
    queues.close()
