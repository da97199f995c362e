import pytest

from penstock_messaging.delays.levels import (
    LEVEL_MAX,
    SCHEDULE_TOPIC,
    clamped,
    delay_ms,
    level_of,
    queue_of,
)

# RocketMQ's messageDelayLevel.
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SECONDS = {"s": 1, "m": 60, "h": 3600}


def test_the_levels_are_those_of_a_broker() -> None:
    expected = [int(text[:-1]) * SECONDS[text[-1]] * 1000 for text in LEVELS.split(" ")]
    assert [delay_ms(level) for level in range(1, LEVEL_MAX + 1)] == expected
    assert SCHEDULE_TOPIC == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("level", [-1, 0, 19, 1000])
def test_a_level_that_is_none_waits_for_a_second_as_in_a_broker(level: int) -> None:
    assert delay_ms(level) == 1000


def test_a_level_above_the_last_is_the_last() -> None:
    assert [clamped(level) for level in (1, 18, 19, 1 << 40)] == [1, 18, 18, 18]


def test_level_one_waits_in_queue_zero() -> None:
    assert [queue_of(1), queue_of(18)] == [0, 17]
    assert all(level_of(queue_of(level)) == level for level in range(1, 40))
