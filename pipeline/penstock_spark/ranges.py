"""Which queue offsets a query reads, and how they are cut into tasks. No pyspark in here."""

from typing import NamedTuple

import penstock
from penstock.errors import ConfigError, OffsetError
from penstock_spark.options import EARLIEST, LATEST, SourceOptions

# A task reads about so many messages, of one long queue or of many short ones: each task costs some
# 30 ms, and a few for each core are enough to share the work evenly.
ROWS_A_TASK_MIN = 10_000
ROWS_A_TASK_MAX = 250_000
TASKS_WANTED = 8


class QueueRange(NamedTuple):
    """Messages [start, stop) of one queue."""

    topic: str
    queue: int
    start: int
    stop: int


def plan(store: "penstock.Store", options: SourceOptions) -> list[list[QueueRange]]:
    """Return the tasks of a query, each a list of ranges; raises for topics that are not there and offsets out of range."""
    there = store.topics()
    missing = [topic for topic in options.topics if topic not in there]
    if missing:
        known = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"there is no topic {missing[0]!r} in {options.path}; there are: {known}")
    _check_named(options, there)
    return share_out(
        [
            _queue_range(store, options, topic, queue)
            for topic in options.topics or sorted(there)
            for queue in there[topic]
        ]
    )


def _check_named(options: SourceOptions, there: dict[str, list[int]]) -> None:
    """A queue that offsets name and the store has not is an error, not an empty read."""
    for bound in (options.starting, options.ending):
        for topic, queues in bound.items() if isinstance(bound, dict) else ():
            for queue in queues:
                if queue not in there.get(topic, ()):
                    raise ConfigError(
                        f"offsets name queue {queue} of topic {topic!r}, which is not there"
                    )


def _queue_range(
    store: "penstock.Store", options: SourceOptions, topic: str, queue: int
) -> QueueRange:
    low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
    start = low
    if isinstance(options.starting, dict):
        start = _resolve(options.starting.get(topic, {}).get(queue, EARLIEST), low, high)
    stop = high
    if isinstance(options.ending, dict):
        stop = _resolve(options.ending.get(topic, {}).get(queue, LATEST), low, high)
    for offset in (start, stop):
        if not low <= offset <= high:
            raise OffsetError(offset, low, high + 1, f"offset of queue {queue} of topic {topic!r},")
    return QueueRange(topic, queue, start, max(start, stop))


def _resolve(offset: int, low: int, high: int) -> int:
    return {EARLIEST: low, LATEST: high}.get(offset, offset)


def share_out(ranges: list[QueueRange]) -> list[list[QueueRange]]:
    """Cut long ranges and gather short ones, in order, into tasks of about equal size."""
    total = sum(each.stop - each.start for each in ranges)
    wanted = min(max(-(-total // TASKS_WANTED), ROWS_A_TASK_MIN), ROWS_A_TASK_MAX)
    tasks: list[list[QueueRange]] = []
    room = 0
    for each in ranges:
        at = each.start
        while at < each.stop:
            if room <= 0:
                tasks.append([])
                room = wanted
            stop = min(each.stop, at + room)
            tasks[-1].append(each._replace(start=at, stop=stop))
            room -= stop - at
            at = stop
    return tasks
