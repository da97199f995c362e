"""Times on the command line: one parser for every option that takes a time.

A time is written as Penstock prints it (`2026-11-23 10:00:00.250Z`), with the offset of another time zone
(`2026-11-23 11:00+01:00`), as a date, as Unix milliseconds as in JSON, or relative to now (`90s`, `15min`, `1h`, `1h30min`,
`7d`, `2w`: so long ago). A time without a zone is in UTC, as the times that Penstock prints.
"""

import re
from datetime import UTC, datetime
from typing import Any

import click

from penstock.format.arguments import moment_ms
from penstock.runtime.clock import Clock

_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 24 * 3_600_000,
    "w": 7 * 24 * 3_600_000,
}
_PART = re.compile(r"(\d{1,12})(ms|s|min|m|h|d|w)")
_RELATIVE = re.compile(rf"(?:{_PART.pattern})+")
# Unix milliseconds from 1973 on; a shorter number is more likely a year, or seconds.
_MS_DIGITS = range(12, 19)
_FORMS = (
    "a time is written like '2026-11-23 10:00:00.250Z', '2026-11-23 11:00+01:00', '2026-11-23' (without a zone: UTC), as "
    "Unix milliseconds, or as a time ago: 90s, 15min, 1h, 7d"
)


def parse_time(text: str, now_ms: int, *, up: bool) -> int:
    """Return a time as Unix milliseconds; fractions of one are rounded up, or down. Raises `ValueError`."""
    word = text.strip()
    if word.isascii() and word.isdigit() and len(word) in _MS_DIGITS:
        return int(word)
    if word == "now":
        return now_ms
    if _RELATIVE.fullmatch(word):
        return now_ms - parse_duration(word)
    if not word.isdigit():
        try:
            found = datetime.fromisoformat(word)
            aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            return moment_ms("time", "time", aware, up=up)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{text!r} is not a time: {_FORMS}")


def parse_duration(text: str) -> int:
    """Return a duration such as `90s` or `1h30min` in milliseconds. Raises `ValueError`."""
    word = text.strip()
    if not _RELATIVE.fullmatch(word):
        raise ValueError(
            f"{text!r} is not a duration, which is written like 500ms, 90s, 15min, 1h30min, 2d"
        )
    return sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(word))


class DurationParam(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic since click 8.4 only
    """The type of an option that takes a duration; its value is milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds; fails with the forms that a duration can have."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeParam(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic since click 8.4 only
    """The type of an option that takes a time; its value is Unix milliseconds.

    Args:
        up: round fractions of a millisecond up, for the begin of a range; otherwise down, for its end.
        ahead: a relative time such as `1h` is in an hour, not an hour ago.
        clock: what `1h` is relative to.
    """

    name = "time"

    def __init__(self, *, up: bool, ahead: bool = False, clock: Clock | None = None) -> None:
        self._up = up
        self._ahead = ahead
        self._clock = clock or Clock()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return Unix milliseconds; fails with the forms that a time can have."""
        if isinstance(value, int):
            return value
        try:
            now_ms = self._clock.time_ms()
            found = parse_time(value, now_ms, up=self._up)
            is_relative = self._ahead and _RELATIVE.fullmatch(value.strip())
            return 2 * now_ms - found if is_relative else found
        except ValueError as error:
            self.fail(str(error), param, ctx)


BEGIN, END = TimeParam(up=True), TimeParam(up=False)
since_option = click.option(
    "--since",
    type=BEGIN,
    default=None,
    help="Stored at or after this time, for example 1h (ago), '2026-11-23 10:00:00Z', 2026-11-23; without a zone in UTC.",
)
until_option = click.option(
    "--until", type=END, default=None, help="Stored at or before this time, in the same forms."
)


def check_order(since_ms: int | None, until_ms: int | None) -> None:
    """Raise `UsageError` if the range of `--since` and `--until` is empty."""
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise click.UsageError("--since is after --until, so no message can match")
