"""Answers; what becomes of messages is tested through `Consumer`."""

import pytest

from penstock import ArgumentError, ArgumentTypeError
from penstock_messaging.consuming.answers import BY_RULE, RetryRules, checked_level
from penstock_messaging.consuming.queue_rights import GROUP_TRIES


def test_levels() -> None:
    assert [checked_level(each) for each in (None, 1, 18)] == [BY_RULE, 1, 18]
    for wrong in (0, 19, -1):
        with pytest.raises(ArgumentError):
            checked_level(wrong)
    with pytest.raises(ArgumentTypeError):
        checked_level("3")


def test_the_last_attempt_is_the_one_after_all_retries() -> None:
    by_group = RetryRules(None, lambda: 2, lambda level: level)
    assert [by_group.is_last(attempt) for attempt in (1, 2, 3)] == [False, False, True]
    assert by_group.tries == GROUP_TRIES
    own = RetryRules(0, lambda: 2, lambda level: level)
    assert own.is_last(1)
    assert own.tries == 0


def test_an_ordered_queue_waits_a_second_or_the_level() -> None:
    rules = RetryRules(None, lambda: 2, lambda level: level * 7)
    assert (rules.pause_ns(BY_RULE), rules.pause_ns(3)) == (1_000_000_000, 21_000_000)
