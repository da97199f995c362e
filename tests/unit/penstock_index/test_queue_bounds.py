"""The quick look at a queue: the same answer as the long way round, or none."""

from pathlib import Path

import pytest
from tests.unit.penstock_index.test_consume_queue import filled

from penstock.contracts import QueueBounds
from penstock.testing import WrittenLog, make_context
from penstock_index.queue_bounds import QuickLook


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


def no_long_way(topic: str, queue: int, below: int | None) -> QueueBounds:
    raise AssertionError("every queue is as usual")


@pytest.mark.parametrize("below", [None, 1 << 40])
def test_it_says_what_the_long_way_says(log: WrittenLog, tmp_path: Path, below: int | None) -> None:
    writer = filled(log, tmp_path)
    writer.flush()
    look = QuickLook(make_context(tmp_path, read_only=True), below)
    found = list(look.all_bounds(tmp_path / "consumequeue", lambda _: True, no_long_way))
    expected = [writer.bounds_of(*key, None) for key in writer.queues()]
    assert [each[:6] for each in found] == [each[:6] for each in expected]


def test_only_wanted_topics_are_looked_at(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    look = QuickLook(make_context(tmp_path, read_only=True), None)
    found = look.all_bounds(tmp_path / "consumequeue", lambda topic: topic == "topic-1", no_long_way)  # fmt: skip
    assert {each.topic for each in found} == {"topic-1"}
    assert not list(look.all_bounds(tmp_path / "none", lambda _: True, no_long_way))


def test_what_is_not_as_usual_is_left_to_the_long_way(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    root = tmp_path / "consumequeue"
    (path,) = (root / "topic-0" / "0").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    moved = make_context(tmp_path, read_only=True, log_min_offset=lambda: 5)
    assert QuickLook(moved, None).bounds("topic-0", 0, str(root / "topic-0" / "0")) is None
    assert QuickLook(moved, None).bounds("topic-0", 1, str(root / "topic-0" / "1")) is not None
    (root / "topic-2" / "0").mkdir(parents=True)
    assert QuickLook(moved, None).bounds("topic-2", 0, str(root / "topic-2" / "0")) == QueueBounds("topic-2", 0, 0, 0)  # fmt: skip
