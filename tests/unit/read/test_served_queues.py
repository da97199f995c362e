"""Queues of a directory that is only partly understood: never shown as empty, the rest as ever."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.contracts.test_optional_methods import ROWS, OneQueue

from penstock.contracts.foreign import BATCH_QUEUES, POP_STATE, ROCKSDB_QUEUES, Foreign
from penstock.errors import ForeignContentError
from penstock.read.served_queues import ServedQueues, has_queues, served


class TwoTopics(OneQueue):
    """Topics `t` and `batch`."""

    def queues(self) -> list[tuple[str, int]]:
        return [("batch", 0), ("t", 0)]


@pytest.fixture
def index(tmp_path: Path) -> TwoTopics:
    return TwoTopics(tmp_path, ROWS[:10])


def asked(index: Any, topic: str) -> list[Any]:
    return [
        lambda: index.min_offset(topic, 0), lambda: index.max_offset(topic, 0),
        lambda: index.entries(topic, 0, 0, 5), lambda: index.resume_at(topic, 0, 3),
        lambda: list(index.bounds(lambda name: name == topic, None)),
    ]  # fmt: skip


def test_where_all_is_understood_the_index_itself_is_asked(index: TwoTopics) -> None:
    assert served(index, Path("/s"), []) is index
    assert served(index, Path("/s"), [Foreign(POP_STATE, Path("/s/kvStore"))]) is index
    assert has_queues(index)


def test_a_topic_of_batch_queues_raises_by_its_name_and_others_are_served(
    index: TwoTopics,
) -> None:
    made = served(index, Path("/s"), [Foreign(BATCH_QUEUES, Path("/s/x"), ("batch",))])
    assert isinstance(made, ServedQueues)
    assert made.queues() == [("t", 0)]
    for ask in asked(made, "batch"):
        with pytest.raises(ForeignContentError, match="batch"):
            ask()
    assert made.max_offset("t", 0) == 10
    assert [bounds.topic for bounds in made.bounds(lambda _: True, None)] == ["t"]
    assert has_queues(made)


def test_queues_in_a_database_raise_whatever_is_asked(index: TwoTopics) -> None:
    found = [Foreign(ROCKSDB_QUEUES, Path("/s/consumequeue"))]
    made = served(index, Path("/s"), found)
    for ask in (made.queues, made.end_log_offset, *asked(made, "t")):
        with pytest.raises(ForeignContentError, match="queues cannot be read"):
            ask()
    assert not has_queues(made)


def test_a_database_beside_the_files_hides_none_of_them(tmp_path: Path) -> None:
    found = [Foreign(ROCKSDB_QUEUES, Path("/s/consumequeue_rocksdb"))]
    full, empty = OneQueue(tmp_path / "a", ROWS), OneQueue(tmp_path / "b", [])
    assert served(full, Path("/s"), found) is full
    empty.queues = list  # type: ignore[method-assign] # it has none
    assert not has_queues(served(empty, Path("/s"), found))


def test_what_only_a_writer_does_is_a_mistake(index: TwoTopics) -> None:
    made: Any = served(index, Path("/s"), [Foreign(ROCKSDB_QUEUES, Path("/s/consumequeue"))])
    for call in (lambda: made.load(None), lambda: made.dispatch(None), made.flush, lambda: made.truncate(0), lambda: made.trim(0)):  # fmt: skip
        with pytest.raises(AssertionError, match="read-only"):
            call()
