"""The verb `retain`: deletes what the retention policies expire; with --dry-run says what would go, when and why."""

import click

import penstock
from penstock.cli.output import (
    Bar,
    chosen,
    json_option,
    note,
    out_json,
    settings_options,
    size_text,
    table,
    time_text,
)
from penstock.cli.root import examples
from penstock.read.topic_usage import TopicSpace
from penstock.retention.forecast import SegmentForecast
from penstock.store.store import Store


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
    help="Change nothing: say what would go, when, why, and what takes the space.",
)
@click.option("--days", default=14.0, show_default=True, help="How far --dry-run looks ahead.")
@settings_options
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
    """Let go now of the segments that the retention policies give up.

    With --dry-run nothing is changed and no lock is taken: it works on a live store, and on a
    broker's directory with --broker-conf.
    """
    given = chosen(settings, broker_conf)
    if dry_run:
        with penstock.open(path, config, read_only=True, **given) as store:
            _foretell(store, days, as_json=as_json)
        return 0
    with penstock.open(path, config, **given) as store:
        gone = store.retain()
        left = store.stats()["segments"]
    if as_json:
        out_json(segments_gone=gone, segments_left=left)
    else:
        note(f"{gone} segments went, {left} are left")
    return 0


def _foretell(store: Store, days: float, *, as_json: bool) -> None:
    departures = store.forecast(days)
    going = [departure for departure in departures if departure.is_now]
    later = [departure for departure in departures if departure.at_ms is not None]
    below = going[-1].segment.base_offset + going[-1].segment.size if going else 0
    queues = sum(len(numbers) for numbers in store.topics().values())
    with Bar("topics", queues, "queues", quiet=as_json) as bar:
        spaces = store.space(below, lambda done: bar.set(done, done))
    if as_json:
        _tell_json(departures, spaces)
        return
    _show_segments(departures)
    _show_topics(spaces)
    note(_sentence(departures, going, later, days))


def _tell_json(departures: list[SegmentForecast], spaces: list[TopicSpace]) -> None:
    for departure in departures:
        segment = departure.segment
        out_json(
            kind="segment", path=str(segment.path), base_offset=segment.base_offset,
            bytes=segment.size, last_write_ms=segment.last_write_ms, goes_at_ms=departure.at_ms,
            goes_now=departure.is_now, reason=departure.reason,
        )  # fmt: skip
    total = sum(space.size for space in spaces) or 1
    for space in spaces:
        out_json(
            kind="topic", topic=space.topic, messages=space.messages, bytes=space.size,
            share=round(space.size / total, 6), bytes_going_now=space.size_below,
        )  # fmt: skip


def _show_segments(departures: list[SegmentForecast]) -> None:
    rows = []
    for departure in departures:
        when = "stays" if departure.at_ms is None else time_text(departure.at_ms)
        rows.append((
            departure.segment.path.name.lstrip("0") or "0", size_text(departure.segment.size),
            time_text(departure.segment.last_write_ms), "now" if departure.is_now else when,
            departure.reason,
        ))  # fmt: skip
    table("Segments, oldest first", ("segment", "size", "last write", "goes", "why"), rows)


def _show_topics(spaces: list[TopicSpace]) -> None:
    total = sum(space.size for space in spaces) or 1
    rows = [
        (
            space.topic, space.messages, size_text(space.size), f"{space.size / total:.1%}",
            size_text(space.size_below),
        )
        for space in spaces
    ]  # fmt: skip
    table("What takes the space", ("topic", "messages", "size", "share", "goes now"), rows)


def _sentence(
    departures: list[SegmentForecast],
    going: list[SegmentForecast],
    later: list[SegmentForecast],
    days: float,
) -> str:
    if not departures:
        return "the log is empty: nothing can go"
    if going:
        size = sum(departure.segment.size for departure in going)
        more = len(later) - len(going)
        after = f", {more} more within {days:g} days" if more else ""
        what = f"1 segment ({size_text(size)}) goes"
        if len(going) > 1:
            what = f"{len(going)} segments ({size_text(size)}) go"
        return f"{what} now{after}; nothing was changed"
    if not later:
        return f"nothing goes within {days:g} days: {departures[0].reason}"
    first = later[0]
    assert first.at_ms is not None
    return (
        f"nothing goes now; the first segment goes {time_text(first.at_ms)} ({first.reason}), "
        f"{len(later)} within {days:g} days"
    )
