"""The optional arguments of `Store.consumer`."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import ArgumentError, ArgumentTypeError
from penstock_messaging.consuming.consumer_options import checked_options


def test_defaults() -> None:
    options = checked_options({})
    assert (options.tag, options.start, options.ack_wait, options.max_in_flight) == ("*", "earliest", 30.0, 1000)  # fmt: skip
    assert (options.workers, options.ordered, options.broadcast, options.max_retries) == (1, False, False, None)  # fmt: skip
    assert checked_options({"broadcast": True}).start == "latest"


def test_a_time_to_start_at() -> None:
    assert checked_options({"start": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}).start == 1000
    assert checked_options({"start": 1000.2}).start == 1001


@pytest.mark.parametrize(
    "wrong",
    [
        {"tag": 1}, {"start": "now"}, {"start": None}, {"ack_wait": 0}, {"ack_wait": "1"}, {"max_in_flight": 0},
        {"workers": 0}, {"workers": 1.5}, {"ordered": "no"}, {"broadcast": 2}, {"max_retries": -1},
        {"broadcast": True, "ordered": True}, {"broadcast": True, "max_retries": 3},
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused(wrong: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        checked_options(wrong)


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    wrong: Any = {"ackwait": 3}
    with pytest.raises(ArgumentError, match="ack_wait, max_in_flight"):
        checked_options(wrong)
