"""Times and durations as text: on the command line, and in Spark's options.

A time is written as Penstock prints it (`2026-11-23 10:00:00.250Z`), with the offset of another time zone
(`2026-11-23 11:00+01:00`), as a date, as Unix seconds as in Python, as Unix milliseconds as in JSON, or relative to now
(`90s`, `15min`, `1h`, `1h30min`, `7d`, `2w`: so long ago). A time without a zone is in UTC, as in what Penstock prints.
"""

import math
import re
from datetime import UTC, datetime

from penstock.format.arguments import moment_ms

_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 24 * 3_600_000,
    "w": 7 * 24 * 3_600_000,
}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?(ms|s|min|m|h|d|w)")
_RELATIVE = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")
# Of 1973 to 5138. A shorter number is more likely a year.
_SECONDS = re.compile(r"[0-9]{9,11}(\.[0-9]{1,9})?")
# From 1973 on.
_MILLISECONDS = re.compile(r"[0-9]{12,15}")
_FORMS = (
    "a time is written like '2026-11-23 10:00:00.250Z', '2026-11-23 11:00+01:00', '2026-11-23' (without a zone: UTC), "
    "as Unix seconds or milliseconds, or as a time ago: 90s, 15min, 1h, 7d"
)


def is_relative(text: str) -> bool:
    """Return whether a text is a duration such as `90s` or `1h30min`."""
    return _RELATIVE.fullmatch(text.strip()) is not None


def parse_time(text: str, now_ms: int, *, up: bool) -> int:
    """Return a time as Unix milliseconds; fractions of one are rounded up, or down. Raises `ValueError`."""
    word = text.strip()
    if _MILLISECONDS.fullmatch(word):
        return int(word)
    if word == "now":
        return now_ms
    if is_relative(word):
        return now_ms - parse_duration(word)
    try:
        if _SECONDS.fullmatch(word):
            return moment_ms("time", "time", float(word), up=up)
        if not word.isdigit():
            found = datetime.fromisoformat(word)
            aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            return moment_ms("time", "time", aware, up=up)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not a time: {_FORMS}")


def parse_duration(text: str) -> int:
    """Return a duration such as `90s` or `1h30min`, or a number of seconds, in milliseconds. Raises `ValueError`."""
    if _NUMBER.fullmatch(text.strip()):
        return math.ceil(float(text) * 1000)
    if not is_relative(text):
        raise ValueError(
            f"{text!r} is not a duration, which is written like 500ms, 90s, 15min, 1h30min, 2d, or a number of seconds"
        )
    return math.ceil(sum(float(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text)))
