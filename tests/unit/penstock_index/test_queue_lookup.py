"""What a consume queue dispatcher answers, of its own queues and of those that another process writes."""

import shutil
from pathlib import Path

import pytest
from tests.unit.penstock_index.test_consume_queue import filled

from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions
from penstock_index.queue_lookup import QueueLookUp


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


def reader(root: Path) -> QueueLookUp:
    return ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(root, read_only=True))


def test_a_reader_elsewhere_answers_as_the_writer(log: WrittenLog, tmp_path: Path) -> None:
    writer = filled(log, tmp_path)
    other = reader(tmp_path)
    assert other.queues() == writer.queues()
    assert other.end_log_offset() == writer.end_log_offset()
    for key in writer.queues():
        assert other.bounds_of(*key, None) == writer.bounds_of(*key, None)
        ours, theirs = (each.entries(*key, 3, 20) for each in (writer, other))
        assert [column.tolist() for column in ours] == [column.tolist() for column in theirs]
    assert list(other.bounds(lambda _: True, 9999)) == list(writer.bounds(lambda _: True, 9999))


def test_a_queue_that_is_not_there_is_empty(log: WrittenLog, tmp_path: Path) -> None:
    for each in (filled(log, tmp_path), reader(tmp_path)):
        assert (each.min_offset("none", 0), each.max_offset("none", 0)) == (0, 0)
        assert len(each.entries("none", 0, 0, 10).sizes) == 0
        assert (each.place("none", 0, 0), each.resume_at("none", 0, 5)) == (None, 0)


def test_a_reader_sees_that_files_were_taken_away(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    other = reader(tmp_path)
    assert other.max_offset("topic-0", 0) > 0
    for path in (tmp_path / "consumequeue" / "topic-0" / "0").iterdir():
        path.unlink()
    assert other.max_offset("topic-0", 0) == 0


@pytest.mark.parametrize("has_read", [False, True])
def test_a_folder_that_goes_while_a_reader_looks_is_a_queue_that_is_not_there(
    log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    filled(log, tmp_path).flush()
    other = reader(tmp_path)
    if has_read:
        assert other.max_offset("topic-0", 0) > 0
    shutil.rmtree(tmp_path / "consumequeue" / "topic-0")
    # As if the folders had gone right after this.
    monkeypatch.setattr(other._files, "is_folder", lambda _: True)
    assert other.ends("topic-0", 0) == (0, 0)
    assert len(other.entries("topic-0", 0, 0, 10).sizes) == 0


def test_a_place_is_one_entry_and_none_beyond_the_end(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    end = made.max_offset("topic-0", 0)
    offsets, sizes, _ = made.entries("topic-0", 0, end - 1, end)
    assert made.place("topic-0", 0, end - 1) == (int(offsets[0]), int(sizes[0]))
    assert [made.place("topic-0", 0, at) for at in (end, -1)] == [None, None]
    assert made.reaches("topic-0", 0, end)
    assert not made.reaches("topic-0", 0, end + 1)


def test_a_summary_that_cannot_be_understood_is_said_to_be(log: WrittenLog, tmp_path: Path) -> None:  # fmt: skip
    filled(log, tmp_path).flush()
    assert list(reader(tmp_path).compare_summary(b"?")) == ["the part about queues cannot be decoded"]  # fmt: skip
