"""Arguments of reads: ranges, columns and offsets are taken as they are meant, or refused by name."""

import pytest

from penstock.errors import ArgumentError, ArgumentTypeError, QueueError
from penstock.read.checked_ranges import (
    checked_columns,
    checked_offsets,
    checked_range,
    checked_spans,
)
from penstock.read.span_merge import QueueSpan


def test_what_is_meant_is_returned() -> None:
    assert checked_range("to_arrow", "t", 1, None, 5) == ("t", 1, None, 5)
    assert checked_columns("to_arrow", None) is None
    assert checked_columns("to_arrow", ["body", "tag"]) == ("body", "tag")
    assert checked_offsets("to_reader", "start", None) is None
    assert checked_offsets("to_reader", "start", 3) == 3
    assert checked_offsets("to_reader", "start", {("t", 0): 3}) == {("t", 0): 3}
    assert checked_spans("arrow_spans", [("t", 0, 1, 2)]) == [QueueSpan("t", 0, 1, 2)]


def test_what_is_not_is_refused_with_its_name() -> None:
    with pytest.raises(QueueError):
        checked_range("to_arrow", "t", -1, None, None)
    with pytest.raises(ArgumentTypeError, match="stop"):
        checked_range("to_arrow", "t", 0, None, "5")  # type: ignore[arg-type] # that is the test
    with pytest.raises(ArgumentTypeError, match="columns"):
        checked_columns("to_arrow", "body")
    with pytest.raises(ArgumentTypeError, match="start key"):
        checked_offsets("to_reader", "start", {"t": 3})
    with pytest.raises(ArgumentTypeError, match="spans"):
        checked_spans("arrow_spans", [("t", 0, 1)])
    with pytest.raises(ArgumentError, match="start"):
        checked_spans("arrow_spans", [("t", 0, -1, 2)])
