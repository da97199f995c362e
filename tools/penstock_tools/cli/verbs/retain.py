"""The verb `retain`: deletes what the retention policies expire; with --dry-run, forecasts which, when and why."""

from pathlib import Path

import click

import penstock
from penstock.read.queues import TopicSpace
from penstock.retention.runner import DAYS_MAX, SegmentForecast
from penstock.store.store import Store
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.output import (
    Bar,
    chosen,
    counted,
    json_option,
    note,
    out_json,
    settings_options,
    size_text,
    table,
    time_text,
)
from penstock_tools.cli.root import examples


@click.command(
    "retain",
    epilog=examples(
        "penstock retain data --set retention.use=age --set retention.age.delete_when='\"*\"'",
        "penstock retain data --dry-run --days 7",
    ),
)
@click.argument("path", type=click.Path(exists=True))
@click.option(
    "--dry-run",
    is_flag=True,
    help="Change nothing: show which segments would be deleted, when and why, and which topics use the space.",
)
@click.option(
    "--days",
    type=click.FloatRange(0, DAYS_MAX),
    default=14.0,
    show_default=True,
    help="How many days --dry-run forecasts.",
)
@settings_options
@timeout_option
@json_option
def command(
    path: str,
    dry_run: bool,
    days: float,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Delete the segments that the retention policies expire.

    With --dry-run nothing is changed and no lock is taken, so it works on a store in use, and on a
    broker's directory with --broker-conf.
    """
    given = chosen(settings, broker_conf)
    if dry_run:
        with penstock.open(path, config, read_only=True, **given) as store:
            _show_forecast(store, days, as_json=as_json)
        return 0
    before = _log_files(path)
    with open_to_change(path, config, given) as store:
        store.retain()
    # The round that comes with an opening has deleted some, too.
    left = _log_files(path)
    first = min((each.name for each in left), default="")
    gone = sum(each.name < first for each in before)
    if as_json:
        out_json(segments_gone=gone, segments_left=len(left))
    else:
        note(f"deleted {gone} segments, {len(left)} remain")
    return 0


def _log_files(path: str) -> set[Path]:
    folder = Path(path) / "commitlog"
    return set(folder.iterdir()) if folder.is_dir() else set()


def _show_forecast(store: Store, days: float, *, as_json: bool) -> None:
    """Print the forecast of segments and the space by topic."""
    forecasts = store.lowlevel.forecast(days)
    going = [forecast for forecast in forecasts if forecast.is_now]
    later = [forecast for forecast in forecasts if forecast.at_ms is not None]
    below = going[-1].segment.base_offset + going[-1].segment.size if going else 0
    queues = sum(len(numbers) for numbers in store.topics(system=True).values())
    with Bar("topics", queues, "queues", quiet=as_json) as bar:
        spaces = store.space(below, lambda done: bar.set(done, done))
    if as_json:
        _print_json(forecasts, spaces)
        return
    _show_segments(forecasts)
    _show_topics(spaces)
    note(_summarize(forecasts, going, later, days))


def _print_json(forecasts: list[SegmentForecast], spaces: list[TopicSpace]) -> None:
    """Print segments and topics as lines of JSON."""
    for forecast in forecasts:
        segment = forecast.segment
        out_json(
            kind="segment", path=str(segment.path), base_offset=segment.base_offset,
            bytes=segment.size, last_write_ms=segment.last_write_ms, goes_at_ms=forecast.at_ms,
            goes_now=forecast.is_now, reason=forecast.reason,
        )  # fmt: skip
    total = sum(space.size for space in spaces) or 1
    for space in spaces:
        out_json(
            kind="topic", topic=space.topic, messages=space.messages, bytes=space.size,
            share=round(space.size / total, 6), bytes_going_now=space.size_below,
        )  # fmt: skip


def _show_segments(forecasts: list[SegmentForecast]) -> None:
    rows = []
    for forecast in forecasts:
        when = "kept" if forecast.at_ms is None else time_text(forecast.at_ms)
        rows.append((
            forecast.segment.path.name.lstrip("0") or "0", size_text(forecast.segment.size),
            time_text(forecast.segment.last_write_ms), "now" if forecast.is_now else when,
            forecast.reason,
        ))  # fmt: skip
    table("Segments, oldest first", ("segment", "size", "last write", "deleted", "why"), rows)


def _show_topics(spaces: list[TopicSpace]) -> None:
    total = sum(space.size for space in spaces) or 1
    rows = [
        (
            space.topic, space.messages, size_text(space.size), f"{space.size / total:.1%}",
            size_text(space.size_below),
        )
        for space in spaces
    ]  # fmt: skip
    table("Space by topic", ("topic", "messages", "size", "share", "deleted now"), rows)


def _summarize(
    forecasts: list[SegmentForecast],
    going: list[SegmentForecast],
    later: list[SegmentForecast],
    days: float,
) -> str:
    """Return one sentence about the segments that would be deleted."""
    if not forecasts:
        return "the log is empty: there is nothing to delete"
    if going:
        size = sum(forecast.segment.size for forecast in going)
        more = len(later) - len(going)
        after = f", {more} more within {days:g} days" if more else ""
        what = f"{counted(len(going), 'segment')} ({size_text(size)})"
        return f"{what} would be deleted now{after}; nothing was changed"
    if not later:
        return f"no segment would be deleted within {days:g} days: {forecasts[0].reason}"
    first = later[0]
    assert first.at_ms is not None
    return (
        f"no segment would be deleted now; the first at {time_text(first.at_ms)} ({first.reason}), "
        f"{len(later)} within {days:g} days"
    )
