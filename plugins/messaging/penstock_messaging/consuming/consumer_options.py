"""The optional arguments of `Store.consumer`, checked."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import attrs

from penstock.contracts import ConsumerOptions
from penstock.errors import ArgumentError
from penstock.escape import near
from penstock.format import arguments

_CALL = "consumer"
_ENDS = "earliest", "latest"
_START = "'earliest', 'latest', or a time: a datetime with a time zone, Unix seconds, or a timedelta: so long ago"
# A day. Longer work belongs into multiple messages, and a consumer that died is noticed without this.
_ACK_WAIT_MAX_S = 86_400.0
_IN_FLIGHT_MAX, _WORKERS_MAX, _RETRIES_MAX = 1_000_000, 1024, 10_000


@attrs.frozen(kw_only=True)
class CheckedOptions:
    """See `contracts.ConsumerOptions`.

    Attributes:
        start: "earliest", "latest", or a time in Unix milliseconds.
        max_retries: None for the group's setting.
    """

    tag: str = "*"
    start: str | int = "earliest"
    ack_wait: float = 30.0
    max_in_flight: int = 1000
    workers: int = 1
    ordered: bool = False
    broadcast: bool = False
    max_retries: int | None = None


def _tag(name: str, value: object) -> str:
    return arguments.text(_CALL, name, value, "a string such as '*', 'a' or 'a || b'")


def _start(name: str, value: object) -> str | int:
    if isinstance(value, str):
        if value in _ENDS:
            return value
        raise ArgumentError(_CALL, name, value, _START + near(value, _ENDS))
    return arguments.moment_ms(_CALL, name, value, up=True)


def _whole(low: int, high: int) -> Callable[[str, object], int]:
    return lambda name, value: arguments.whole(_CALL, name, value, low, high)


def _flag(name: str, value: object) -> bool:
    return arguments.flag(_CALL, name, value)


def _ack_wait(name: str, value: object) -> float:
    return arguments.seconds(_CALL, name, value, 0.001, _ACK_WAIT_MAX_S)


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "tag": _tag,
    "start": _start,
    "ack_wait": _ack_wait,
    "max_in_flight": _whole(1, _IN_FLIGHT_MAX),
    "workers": _whole(1, _WORKERS_MAX),
    "ordered": _flag,
    "broadcast": _flag,
    "max_retries": _whole(0, _RETRIES_MAX),
}
assert _CHECKS.keys() == ConsumerOptions.__optional_keys__


def checked_options(options: ConsumerOptions) -> CheckedOptions:
    """Return the options of a consumer; raises `ArgumentError` for an unknown one, and for a value that cannot be."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _CHECKS:
            expected = (
                f"one of the options of a consumer: {', '.join(_CHECKS)}{near(name, _CHECKS)}"
            )
            raise ArgumentError(_CALL, name, value, expected)
        found[name] = _CHECKS[name](name, value)
    if found.get("broadcast"):
        found.setdefault("start", "latest")
        for name in ("max_retries", "ordered"):
            if found.get(name):
                expected = "left out with broadcast=True, where nothing is acknowledged or retried"
                raise ArgumentError(_CALL, name, found[name], expected)
    return CheckedOptions(**found)


def seek_time_ms(value: float | datetime | timedelta) -> int:
    """Return the time that `Consumer.seek` got, in Unix milliseconds."""
    return arguments.moment_ms("seek", "time", value, up=True)
