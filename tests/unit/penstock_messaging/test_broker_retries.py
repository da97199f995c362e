"""The intake's retries: the group's settings, unless the consumer has its own."""

from typing import Any

import pytest

from penstock_messaging.groups.broker_retries import BrokerRetries


@pytest.mark.parametrize(("tries", "most"), [(None, 16), (3, 3), (0, 0)])
def test_a_consumers_own_limit_counts_before_the_groups(tries: int | None, most: int) -> None:
    asked: list[tuple[Any, ...]] = []

    def copy(message: Any, group: str, **given: Any) -> None:
        asked.append((message, group, given))

    woken: list[str] = []
    message: Any = "message"
    retries = BrokerRetries(
        copy, lambda found: (str(found), 2), lambda _group: (16, 5), lambda: woken.append("x")
    )
    assert retries.copy(message, "g", 4, tries) is None
    assert asked == [("message", "g", {"level": 4, "max_tries": most, "retry_queues": 5})]
    assert retries.origin(message) == ("message", 2)
    retries.were_put()
    assert woken == ["x"]
