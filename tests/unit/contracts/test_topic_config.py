"""A topic's configuration as programs see it: how many queues it has, what its permissions allow."""

import pytest

from penstock.contracts.topic_config import PERM_MAX, READ, WRITE, TopicConfig


@pytest.mark.parametrize(
    ("perm", "readable", "writable"),
    [(0, False, False), (READ, True, False), (WRITE, False, True), (6, True, True), (PERM_MAX, True, True), (1, False, False)],
)  # fmt: skip
def test_permissions_are_bits(perm: int, readable: bool, writable: bool) -> None:
    config = TopicConfig("t", 4, 4, perm)
    assert (config.is_readable, config.is_writable) == (readable, writable)


def test_a_topic_that_is_drained_or_extended_has_the_greater_number_of_queues() -> None:
    assert TopicConfig("t", 8, 4).queues == 8
    assert TopicConfig("t", 4, 8).queues == 8


def test_attributes_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TopicConfig("t", 1, 1).attributes["a"] = "b"  # type: ignore[index] # that is the question
