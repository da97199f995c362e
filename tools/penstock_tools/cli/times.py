"""Times on the command line: the types of every option that takes a time; `penstock.format.times` has their forms."""

from typing import Any

import click

from penstock.format.times import is_relative, parse_duration, parse_time
from penstock.runtime.clock import Clock


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
            return 2 * now_ms - found if self._ahead and is_relative(value) else found
        except ValueError as error:
            self.fail(str(error), param, ctx)


BEGIN, END = TimeParam(up=True), TimeParam(up=False)
since_option = click.option(
    "--since",
    type=BEGIN,
    default=None,
    help="Stored at or after this time, for example 1h (ago), '2026-11-23 10:00:00Z', 2026-11-23; without a zone in "
    "UTC.",
)
until_option = click.option(
    "--until", type=END, default=None, help="Stored at or before this time, in the same forms."
)


def check_order(since_ms: int | None, until_ms: int | None) -> None:
    """Raise `UsageError` if the range of `--since` and `--until` is empty."""
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise click.UsageError("--since is after --until, so no message can match")
