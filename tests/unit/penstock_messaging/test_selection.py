"""Which topics a consumer reads."""

import pytest

from penstock import ArgumentError, TopicError
from penstock_messaging.consuming.selection import (
    TopicSelection,
    checked_group,
    checked_topics,
)


def test_names_and_patterns_match() -> None:
    selection = TopicSelection(["orders", "eu-*-paid", "%RETRY%billing"])
    assert selection.names == ("orders", "%RETRY%billing")
    matched = ["orders", "eu-1-paid", "eu--paid", "%RETRY%billing"]
    assert all(map(selection.matches, matched))
    assert not any(map(selection.matches, ["order", "orders2", "eu-1-paid2", "%RETRY%other"]))


@pytest.mark.parametrize(
    "topic",
    ["%RETRY%billing", "%DLQ%x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"],
)
def test_a_pattern_does_not_match_what_a_broker_keeps_for_itself(topic: str) -> None:
    assert not TopicSelection(["*"]).matches(topic)
    assert TopicSelection([topic]).matches(topic)


def test_a_selection_is_the_same_after_a_round_trip() -> None:
    selection = TopicSelection(["b", "a-*", "b"])
    again = TopicSelection.parse(selection.text)
    assert again.texts == ("b", "a-*")
    assert again.matches("a-1")


def test_a_pattern_is_no_regular_expression() -> None:
    assert not TopicSelection(["a|b*"]).matches("a")


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "ä"])
def test_an_invalid_group_is_refused(group: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 120"):
        checked_group(group)


def test_a_name_of_a_group_is_kept() -> None:
    assert checked_group("billing_1-%|") == "billing_1-%|"


def test_topics_are_checked() -> None:
    assert checked_topics("orders") == ("orders",)
    assert checked_topics(["orders", "eu-*"]) == ("orders", "eu-*")
    for wrong in ([], 7, [7]):
        with pytest.raises(ArgumentError):
            checked_topics(wrong)
    with pytest.raises(TopicError):
        checked_topics(["a/b"])
