"""Consume queues as a dispatcher: entries at their places, holes filled, cuts and trims, none of it twice."""

from pathlib import Path

import pytest

from penstock.contracts import Trust
from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions

COUNT = 700


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", COUNT)


def opened(log: WrittenLog, root: Path, *, durable: int = 0, is_clean: bool = False) -> ConsumeQueueDispatcher:  # fmt: skip
    made = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(root))
    made.load(Trust(log=log.view, durable_offset=durable, is_clean=is_clean, was_abnormal=False))
    return made


def filled(log: WrittenLog, root: Path) -> ConsumeQueueDispatcher:
    made = opened(log, root)
    for batch in log.batches():
        made.dispatch(batch)
    return made


def test_each_record_is_at_the_place_that_it_states(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    assert (made.progress, len(made.queues())) == (log.end_offset, 6)
    for batch in log.batches():
        for row in range(0, len(batch), 37):
            message = batch.message(row)
            place = made.place(message.topic, message.queue, message.queue_offset)
            assert place == (message.log_offset, message.size)


def test_the_same_again_changes_nothing(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    made.flush()
    before = {p: p.read_bytes() for p in (tmp_path / "consumequeue").rglob("0*") if p.is_file()}
    for batch in log.batches():
        made.dispatch(batch)
    made.flush()
    assert {p: p.read_bytes() for p in before} == before


def test_what_was_durable_is_not_dispatched_again(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    durable = made.flush()
    made.close()
    assert durable == log.end_offset
    assert opened(log, tmp_path, durable=durable).progress == log.end_offset


def test_a_queue_that_was_lost_is_noticed_and_made_again(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    durable = made.flush()
    made.close()
    for path in (tmp_path / "consumequeue" / "topic-1" / "2").iterdir():
        path.unlink()
    again = opened(log, tmp_path, durable=durable)
    assert again.progress < log.end_offset
    for batch in log.batches(again.progress):
        again.dispatch(batch)
    assert again.max_offset("topic-1", 2) == filled(log, tmp_path / "other").max_offset("topic-1", 2)  # fmt: skip


def test_a_cut_forgets_what_was_after_it(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    cut = log.offsets()[300]
    for _ in range(2):
        made.truncate(cut)
        assert (made.progress, made.end_log_offset()) == (cut, cut)
        assert sum(made.max_offset(*key) for key in made.queues()) == 300


def test_a_trim_moves_the_bounds_and_no_end(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    ends = {key: made.max_offset(*key) for key in made.queues()}
    made.trim(log.offsets()[600])
    assert {key: made.max_offset(*key) for key in made.queues()} == ends
    assert sum(ends[key] - made.min_offset(*key) for key in ends) == 100
