"""Checks the arguments of public calls; each function returns the checked value, or an error names the argument.

The functions take the name of the call, the name of the argument, and the value. A wrong type raises
`ArgumentTypeError`, a wrong value `ArgumentError`. They are called once per call, never once per message.
"""

import contextlib
import operator
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import ArgumentError, ArgumentTypeError

Kind = TypeVar("Kind")

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
# A thousand years.
_LONGEST_S = 1000 * 366 * 86_400.0
_TIME = "a datetime with a time zone, or Unix seconds"
_TIME_OR_AGO = "a datetime with a time zone, Unix seconds, or a timedelta: so long ago"
# More is beyond any `datetime`; milliseconds of 2001 and later are.
_MOMENT_MAX_S = 10**12


def whole(call: str, name: str, value: object, low: int = 0, high: int = INT64_MAX) -> int:
    """Return an integer of any type as an `int` if it is from `low` to `high`."""
    expected = f"a whole number from {low} to {high}"
    if high == INT64_MAX:
        expected = f"a whole number, {low} or more" if low > INT64_MIN else "a whole number"
    number = None if _is_truth(value) else _as_int(value)
    if number is None:
        raise ArgumentTypeError(call, name, value, expected)
    if not low <= number <= high:
        raise ArgumentError(call, name, value, expected)
    return number


def _is_truth(value: object) -> bool:
    """Return whether a value is a bool, Python's or numpy's, which is named so in each of its versions."""
    return type(value).__name__ in ("bool", "bool_")


def _as_int(value: Any) -> int | None:
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def number(call: str, name: str, value: object, low: float, high: float) -> float:
    """Return a number from `low` to `high`."""
    expected = f"a number from {low:.15g} to {high:.15g}"
    if _is_truth(value) or not isinstance(value, Real):
        raise ArgumentTypeError(call, name, value, expected)
    exact: Any = value
    # A float does not hold every integer.
    if not low <= exact <= high:
        raise ArgumentError(call, name, value, expected)
    return float(exact)


def seconds(call: str, name: str, value: object, low: float, high: float) -> float:
    """Return a duration, given as seconds or a `timedelta`, as seconds from `low` to `high`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    try:
        return number(call, name, value, low, high)
    except ArgumentError as error:
        raise type(error)(
            call,
            name,
            value,
            f"seconds or a timedelta, {error.expected.removeprefix('a number ')} s",
        ) from None


def duration_ms(call: str, name: str, value: object) -> int:
    """Return a duration, given as seconds or a `timedelta`, as whole milliseconds; fractions are rounded up."""
    try:
        micros = round(seconds(call, name, value, 0, _LONGEST_S) * 1e6)
    except ArgumentError as error:
        raise type(error)(call, name, value, "seconds or a timedelta, at least 0 s") from None
    return -(-micros // 1000)


def flag(call: str, name: str, value: object) -> bool:
    """Return a truth value; refuses anything else, since a text such as "false" would count as true."""
    if _is_truth(value):
        return bool(value)
    if _as_int(value) not in (0, 1):
        raise ArgumentTypeError(call, name, value, "True or False")
    return bool(value)


def text(call: str, name: str, value: object, expected: str = "a string") -> str:
    """Return a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise ArgumentTypeError(call, name, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(call, name, value, f"{expected} that can be written as UTF-8") from None
    return value


def texts(call: str, name: str, value: object, *, one_too: bool = False) -> tuple[str, ...]:
    """Return an iterable of strings as a tuple; a single string is one of them if `one_too`, otherwise refused."""
    expected = "a string, or several of them in a list" if one_too else "a list of strings"
    if isinstance(value, str) and one_too:
        return (text(call, name, value),)
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise ArgumentTypeError(call, name, value, expected)
    found = tuple(value)
    for at, each in enumerate(found):
        if not isinstance(each, str):
            raise ArgumentTypeError(call, f"{name}[{at}]", each, "a string")
        text(call, f"{name}[{at}]", each)
    return found


def function(call: str, name: str, value: Kind) -> Kind:
    """Return something that can be called."""
    if not callable(value):
        raise ArgumentTypeError(call, name, value, "a function")
    return value


def instance(call: str, name: str, value: object, kind: type[Kind], expected: str) -> Kind:
    """Return an instance of a class."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(call, name, value, expected)
    return value


def with_methods(call: str, name: str, value: Kind, methods: Iterable[str], expected: str) -> Kind:
    """Return an object that has these methods; it need not be of a given class, since tests pass their own."""
    if not all(hasattr(value, method) for method in methods):
        raise ArgumentTypeError(call, name, value, expected)
    return value


def mapping(call: str, name: str, value: Kind) -> Kind:
    """Return a mapping of strings to strings."""
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(call, name, value, "a mapping of strings to strings")
    for key, each in value.items():
        text(call, f"{name} key", key)
        text(call, f"{name}[{key!r}]", each)
    return value


def folder(call: str, name: str, value: object) -> Path:
    """Return a path; an empty one is refused, since it would mean the working directory."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ArgumentTypeError(call, name, value, "a path, as a string or a pathlib.Path")
    if not os.fspath(value):
        raise ArgumentError(call, name, value, "a path: for the working directory, write '.'")
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError:
        raise ArgumentError(
            call, name, value, "a path in the encoding of the file system"
        ) from None
    if b"\0" in raw:
        raise ArgumentError(call, name, value, "a path without zero bytes")
    return value if isinstance(value, Path) else Path(value)


def moment_ms(call: str, name: str, value: object, *, up: bool, ago: bool = True) -> int:
    """Return a `datetime`, Unix seconds, or with `ago` a `timedelta`, as whole Unix milliseconds, rounded up or down.

    A `datetime` must have a time zone: the zone of one without would be a guess. Numbers that only milliseconds can be,
    as all stored times are, are refused.
    """
    expected = _TIME_OR_AGO if ago else _TIME
    if isinstance(value, timedelta) and ago:
        try:
            value = datetime.now(UTC) - value
        except OverflowError:
            raise ArgumentError(call, name, value, expected) from None
    if isinstance(value, datetime):
        return _datetime_ms(call, name, value, up=up)
    found: int | float | None = None if _is_truth(value) else _as_int(value)
    if found is None and isinstance(value, Real) and not _is_truth(value):
        with contextlib.suppress(OverflowError, ValueError):
            found = float(value)
        if found is None:
            raise ArgumentError(call, name, value, expected)
    if found is None:
        raise ArgumentTypeError(call, name, value, expected)
    if not -_MOMENT_MAX_S < found < _MOMENT_MAX_S:
        raise ArgumentError(call, name, value, f"{expected}, not milliseconds")
    if isinstance(found, int):
        return found * 1000
    # A float of today holds microseconds.
    micros = round(found * 1e6)
    return -(-micros // 1000) if up else micros // 1000


def fixed(call: str, name: str, value: Kind) -> Kind | float:
    """Return a time that stays the same when it is looked at again: a `timedelta`, so long ago, as Unix seconds."""
    if isinstance(value, timedelta):
        return moment_ms(call, name, value, up=True) / 1000
    return value


def _datetime_ms(call: str, name: str, value: datetime, *, up: bool) -> int:
    if value.tzinfo is None or value.utcoffset() is None:
        raise ArgumentError(
            call, name, value,
            "a datetime with a time zone: datetime.now(UTC), or value.astimezone() if it is local time",
        )  # fmt: skip
    since = value - _EPOCH
    return -(-since // _MS) if up else since // _MS
