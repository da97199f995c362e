"""Checks of the arguments of reads: ranges of queues, columns, offsets. Each returns the checked value; see `format.arguments`."""

from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import ArgumentTypeError
from penstock.format import arguments
from penstock.format.names import check_queue, check_topic
from penstock.read.column_reader import Offsets
from penstock.read.span_merge import QueueSpan


def checked_range(
    call: str, topic: str, queue: int, start: int | None, stop: int | None
) -> tuple[str, int, int | None, int | None]:
    """Return the arguments that name a range of a queue, checked."""
    return (
        check_topic(topic),
        check_queue(queue),
        arguments.offset_or_none(call, "start", start),
        arguments.offset_or_none(call, "stop", stop),
    )


def checked_columns(call: str, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns; None for all of them."""
    return None if columns is None else arguments.texts(call, "columns", columns)


def checked_offsets(call: str, name: str, offsets: object) -> Offsets | None:
    """Return the offset of one queue, or a mapping of (topic, queue) to offset, checked."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        expected = "a queue offset, or a mapping of (topic, queue) to queue offset"
        if isinstance(offsets, str | bytes | list | tuple | float):
            raise ArgumentTypeError(call, name, offsets, expected)
        return arguments.whole(call, name, offsets, arguments.INT64_MIN)
    checked: dict[tuple[str, int], int] = {}
    for place, offset in offsets.items():
        if not isinstance(place, tuple) or len(place) != 2:  # noqa: PLR2004 - topic and queue
            raise ArgumentTypeError(call, f"{name} key", place, "a tuple of topic and queue")
        key = check_topic(place[0]), check_queue(place[1])
        checked[key] = arguments.whole(call, f"{name}[{place!r}]", offset, arguments.INT64_MIN)
    return checked


def checked_spans(call: str, spans: object) -> list[QueueSpan]:
    """Return the ranges of several queues; see `checked_span`."""
    if isinstance(spans, QueueSpan | str) or not isinstance(spans, Iterable):
        raise ArgumentTypeError(call, "spans", spans, "a list of penstock.QueueSpan")
    return [checked_span(call, span) for span in spans]


def checked_span(call: str, span: object) -> QueueSpan:
    """Return the range of a queue; any tuple of topic, queue, start and stop is one."""
    if not isinstance(span, tuple) or len(span) != len(QueueSpan._fields):
        raise ArgumentTypeError(call, "spans", span, "a list of penstock.QueueSpan")
    topic, queue, start, stop = span
    return QueueSpan(
        check_topic(topic),
        check_queue(queue),
        arguments.whole(call, "start", start),
        arguments.whole(call, "stop", stop),
    )
