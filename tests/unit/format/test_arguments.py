"""The checks of arguments: what each accepts, and in which words it refuses the rest."""

import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from penstock.errors import ArgumentError, ArgumentTypeError, PenstockError
from penstock.format import arguments
from penstock.format.arguments import INT64_MIN


def test_a_refusal_has_its_facts_and_is_what_python_raises_for_such_mistakes() -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        arguments.whole("read", "limit", "3", 1)
    error = refused.value
    assert isinstance(error, PenstockError | TypeError | ValueError)
    assert (error.call, error.argument, error.value) == ("read", "limit", "3")
    assert str(error) == (
        "read(limit='3') is refused: limit has type str, and must be a whole number, 1 or more; nothing was done"
    )
    with pytest.raises(
        ArgumentError,
        match=r"^read\(limit=0\) is refused: limit must be a whole number, 1 or more;",
    ):
        arguments.whole("read", "limit", 0, 1)


@pytest.mark.parametrize("value", [0, 7, np.int64(7), np.uint8(7)])
def test_a_whole_number_of_any_integer_type_becomes_an_int(value: Any) -> None:
    found = arguments.whole("c", "a", value)
    assert type(found) is int
    assert found == value


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, b"1", [1], np.array([1, 2])])
def test_what_is_no_integer_is_no_whole_number(value: object) -> None:
    with pytest.raises(ArgumentTypeError):
        arguments.whole("c", "a", value)


def test_a_number_has_limits() -> None:
    assert arguments.whole("c", "a", 5, 5, 5) == 5
    assert arguments.whole("c", "a", INT64_MIN, INT64_MIN) == INT64_MIN
    for value in (4, 6):
        with pytest.raises(ArgumentError, match="a whole number from 5 to 5"):
            arguments.whole("c", "a", value, 5, 5)
    assert arguments.number("c", "a", np.float32(1.5), 0, 2) == 1.5
    for wrong in (-0.1, 2.1, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="a number from 0 to 2"):
            arguments.number("c", "a", wrong, 0, 2)
    for kind in (True, "1", None):
        with pytest.raises(ArgumentTypeError):
            arguments.number("c", "a", kind, 0, 2)
    with pytest.raises(ArgumentError, match=r"a number from 0\.001 to 31536000;"):
        arguments.number("c", "a", 0, 0.001, 31_536_000.0)


def test_a_truth_value_is_no_text() -> None:
    assert [arguments.flag("c", "a", value) for value in (True, False, 1, 0, np.True_)] == [True, False, True, False, True]  # fmt: skip
    others: list[object] = ["false", "", None, 2, 1.0, []]
    for value in others:
        with pytest.raises(ArgumentTypeError, match="must be True or False"):
            arguments.flag("c", "a", value)


def test_texts_are_strings_in_an_iterable_or_one_where_that_is_meant() -> None:
    assert arguments.text("c", "a", "x") == "x"
    assert arguments.texts("c", "a", iter(["x", "y"])) == ("x", "y")
    assert arguments.texts("c", "a", "xy", one_too=True) == ("xy",)
    with pytest.raises(
        ArgumentTypeError, match=r"a\[1\]=5\) .* has type int, and must be a string"
    ):
        arguments.texts("c", "a", ["x", 5])
    for value in ("xy", b"xy", 5, None):
        with pytest.raises(ArgumentTypeError, match="must be a list of strings"):
            arguments.texts("c", "a", value)
    with pytest.raises(ArgumentError, match="UTF-8"):
        arguments.text("c", "a", "\ud800")


def test_a_path_is_no_empty_text() -> None:
    assert arguments.folder("c", "a", "x") == Path("x")
    assert arguments.folder("c", "a", PurePosixPath("x")) == Path("x")
    given = Path("x")
    assert arguments.folder("c", "a", given) is given
    for value in ("", "\0", "\ud800"):
        with pytest.raises(ArgumentError):
            arguments.folder("c", "a", value)
    for kind in (5, None, b"x"):
        with pytest.raises(ArgumentTypeError, match=r"a path, as a string or a pathlib\.Path"):
            arguments.folder("c", "a", kind)


BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (5, 5000, 5000), (np.int64(5), 5000, 5000), (0.00525, 5, 6), (-0.00525, -6, -5), (np.float64(0.005), 5, 5),
        (1_764_000_000.123, 1_764_000_000_123, 1_764_000_000_123),
        (datetime(1970, 1, 1, 1, tzinfo=BERLIN), 0, 0), (datetime(1970, 1, 1, 0, 0, 0, 1500, tzinfo=UTC), 1, 2),
    ],
)  # fmt: skip
def test_a_time_is_rounded_the_way_that_its_range_needs(value: Any, low: int, high: int) -> None:
    assert arguments.moment_ms("c", "a", value, up=False) == low
    assert arguments.moment_ms("c", "a", value, up=True) == high


def test_the_zone_of_a_datetime_is_not_guessed() -> None:
    with pytest.raises(ArgumentError, match=r"with a time zone: datetime\.now\(UTC\)"):
        arguments.moment_ms("c", "a", datetime(2026, 11, 23), up=True)
    for value in ("2026-11-23", None, True, timedelta(1)):
        with pytest.raises(ArgumentTypeError, match="or Unix seconds"):
            arguments.moment_ms("c", "a", value, up=True, ago=False)
    for number in (math.nan, math.inf, 1e300, -(1 << 70), 1_764_000_000_123):
        with pytest.raises(ArgumentError, match="Unix seconds"):
            arguments.moment_ms("c", "a", number, up=True)


def test_functions_mappings_and_objects_are_what_they_have_to_be() -> None:
    assert arguments.function("c", "a", len) is len
    assert arguments.mapping("c", "a", {"x": "y"}) == {"x": "y"}
    assert arguments.instance("c", "a", "x", str, "a string") == "x"
    assert arguments.with_methods("c", "a", "x", ("upper",), "a text") == "x"
    for check in (
        lambda: arguments.function("c", "a", 5), lambda: arguments.mapping("c", "a", {"x": 5}),
        lambda: arguments.mapping("c", "a", 5), lambda: arguments.instance("c", "a", 5, str, "a string"),
        lambda: arguments.with_methods("c", "a", 5, ("upper",), "a text"),
    ):  # fmt: skip
        with pytest.raises(ArgumentTypeError):
            check()
