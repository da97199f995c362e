"""What takes the space: messages and bytes of each topic, largest first."""

from pathlib import Path

from tests.unit.contracts.test_optional_methods import OneQueue

from penstock.read.topic_usage import TopicSpace, space_by_topic


class Several(OneQueue):
    """Two queues of one topic, one of another, all with the same entries."""

    def queues(self) -> list[tuple[str, int]]:
        return [("small", 0), ("large", 0), ("large", 1)]


ROWS = [(0, 100), (100, 150), (0, 0), (250, 200)]


def test_topics_come_largest_first_with_all_their_queues(tmp_path: Path) -> None:
    told = list[int]()
    found = space_by_topic(Several(tmp_path, ROWS), 250, told.append)
    assert found == [TopicSpace("large", 6, 900, 500), TopicSpace("small", 3, 450, 250)]
    assert told == [1, 2, 3]


def test_entries_without_a_record_take_no_space(tmp_path: Path) -> None:
    (space, _) = space_by_topic(Several(tmp_path, [(0, 0)] * 5), 0, lambda _: None)
    assert space[1:] == (0, 0, 0)


def test_an_empty_store_has_no_topics(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, [])
    assert space_by_topic(index, 0, lambda _: None) == [TopicSpace("t", 0, 0, 0)]
