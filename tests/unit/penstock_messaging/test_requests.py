"""What a caller may request as the time of a message."""

from typing import Any

import pytest

from penstock import Message, MessageError
from penstock_messaging.timers.requests import due_ms_of

NOW, DAY = 1_700_000_000_000, 86_400_000


def due(*, is_refused: bool = False, **given: Any) -> int:
    message = Message("orders", b"", **given)
    return due_ms_of(message, NOW, delay_max_ms=3 * DAY, is_refused=is_refused)


def test_a_delay_counts_from_now_and_a_time_is_taken_as_it_is() -> None:
    assert due(delay_ms=1) == NOW + 1
    assert due(deliver_at=NOW + 7) == NOW + 7
    assert due(delay_ms=3 * DAY) == NOW + 3 * DAY


def test_a_time_that_is_over_means_at_once_also_where_delays_are_refused() -> None:
    for over in (0, NOW - 1, NOW):
        assert due(deliver_at=over, is_refused=True) == NOW


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"delay_ms": -1}, "delay_ms -1 is refused"),
        ({"delay_ms": 3 * DAY + 1}, "259200001 ms is refused: the longest is 259200000 ms"),
        ({"deliver_at": NOW + 4 * DAY}, "345600000 ms is refused: the longest is 259200000 ms"),
        ({"delay_ms": 1, "deliver_at": NOW}, "delay_ms and deliver_at is refused"),
        ({"delay_ms": 1, "delay_level": 3}, "delay_level and delay_ms is refused"),
        ({"deliver_at": 0, "delay_level": -3}, "delay_level and deliver_at is refused"),
    ],
)
def test_other_requests_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason) as caught:
        due(**given)
    assert "nothing was stored" in str(caught.value)


def test_a_store_for_a_broker_of_4_refuses_all_that_would_wait() -> None:
    with pytest.raises(MessageError, match="delay_level"):
        due(delay_ms=1, is_refused=True)
