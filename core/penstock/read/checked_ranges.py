"""Checks of the arguments of reads: ranges of queues, columns, offsets. Each returns the checked value; see `format.arguments`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from penstock.errors import ArgumentError, ArgumentTypeError, UnknownTopicError, near
from penstock.format import arguments
from penstock.format.names import check_queue, check_topic
from penstock.read.filters import TagFilter
from penstock.read.span_merge import QueueSpan

# The offset of the only queue, or a mapping by topic and queue.
Offsets = int | Mapping[tuple[str, int], int]
Place = tuple[str, int]


def checked_topics(call: str, topics: object) -> list[str]:
    """Return the names of topics, each once; a single one may be given as it is."""
    if isinstance(topics, str):
        return [check_topic(topics)]
    if isinstance(topics, bytes | bytearray) or not isinstance(topics, Iterable):
        raise ArgumentTypeError(call, "topics", topics, "a topic, or several of them in a list")
    return list(dict.fromkeys(map(check_topic, topics)))


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopicError:
    """Return the error for a topic that a store does not have, with the nearest one that it has."""
    return UnknownTopicError(
        topic,
        near(topic, known) or "; Store.topics() names those that the store has",
    )


def checked_tags(call: str, tag: object) -> TagFilter:
    """Return the filter of a tag expression."""
    return TagFilter(arguments.text(call, "tag", tag, "a string such as '*', 'a' or 'a || b'"))


def checked_columns(call: str, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns; None for all of them."""
    return None if columns is None else arguments.texts(call, "columns", columns)


def checked_offsets(call: str, name: str, offsets: object) -> Offsets | None:
    """Return the offset of one queue, or a mapping of (topic, queue) to offset, checked."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        expected = "a queue offset, or a mapping of (topic, queue) to queue offset"
        if isinstance(offsets, datetime):
            raise ArgumentTypeError(
                call, name, offsets, f"{expected}; a time is given as since or until"
            )
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


def by_queue(
    call: str, name: str, offsets: Offsets | None, topics: Sequence[str], places: Sequence[Place]
) -> Mapping[Place, int]:
    """Return queue offsets by topic and queue; raises `ArgumentError` if one is ambiguous or of a topic that is not read."""
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        if len(places) > 1:
            expected = f"a mapping of (topic, queue) to offset, since it could mean any of {len(places)} queues"
            raise ArgumentError(call, name, offsets, expected)
        return dict.fromkeys(places, offsets)
    for topic, queue in offsets:
        if topic not in topics:
            expected = f"of the topics that are read, and {topic!r} is not one of them"
            raise ArgumentError(call, f"{name} key", (topic, queue), expected)
    return offsets


def begins_of(
    topics: Sequence[str], queue: int | None, start: Offsets | None, spans: Iterable[QueueSpan]
) -> dict[Place, int]:
    """Return the offset at which each queue begins to be read, also for queues that have no message yet."""
    given = dict(start) if isinstance(start, Mapping) else {}
    if queue is not None and isinstance(start, int):
        given[topics[0], queue] = start
    return {**given, **{span[:2]: span.start for span in spans}}


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
