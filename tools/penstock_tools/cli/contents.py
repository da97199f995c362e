"""Lists the content of a store for a command that found nothing: topics, queues, ranges of offsets, groups."""

import difflib
from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import ConfigError, CorruptionError
from penstock.format.names import is_hidden
from penstock.store.store import Store

# Names or ranges that one line lists.
_LISTED_MAX = 20


def why_nothing(
    store: Store, topic: str, queue: int | None = None, offset: int | None = None
) -> str | None:
    """Return why a topic, a queue, or an offset yields no message; None if there are messages at that place."""
    topics, configs = store.topics(system=True), {}
    with suppress(ConfigError, CorruptionError):
        configs = store.topic_configs(system=True)
    if topic not in topics and topic not in configs:
        shown = [name for name in sorted({*topics, *configs}) if not is_hidden(name)]
        return _missing("topic", topic, shown, "messages")
    declared = configs[topic].queues if topic in configs else 0
    queues = sorted({*topics.get(topic, ()), *range(declared)})
    if queue is not None and queue not in queues:
        return f"topic {topic!r} has no queue {queue}; it has {_numbers(queues)}"
    asked = queues if queue is None else [queue]
    ranges = {
        each: (store.min_offset(topic, each), store.max_offset(topic, each)) for each in asked
    }
    if all(low == high for low, high in ranges.values()):
        what = f"topic {topic!r} has" if queue is None else f"queue {topic}/{queue} has"
        return f"{what} no message: retention has deleted all, or none was put"
    if offset is not None and all(offset >= high for _, high in ranges.values()):
        there = [
            f"queue {each}: {low} to {high - 1}"
            for each, (low, high) in ranges.items()
            if low < high
        ]
        return (
            f"no message has queue offset {offset} or a greater one; there are, in {_listed(there)}"
        )
    return None


def no_group(group: str, groups: Sequence[str]) -> str:
    """Return that a store does not have a consumer group, and which it has."""
    groups = [name for name in groups if not name.startswith(("CID_RMQ_SYS_", "penstock-"))]
    return _missing("group", group, groups, "consumer groups")


def _missing(what: str, name: str, names: Sequence[str], no_such: str) -> str:
    if not names:
        return f"there is no {what} {name!r}: the store has no {no_such}"
    listed = f"{what.capitalize()}s in the store: {_listed(names)}"
    return f"there is no {what} {name!r}{_near(name, names)} {listed}"


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f", did you mean {near[0]!r}?" if near else "."


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(names[:_LISTED_MAX]) + more


def _numbers(queues: Sequence[int]) -> str:
    """Return queue numbers as a range if they are consecutive."""
    ordered = sorted(queues)
    if len(ordered) == 1:
        return f"queue {ordered[0]} only"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"queues {ordered[0]} to {ordered[-1]}"
    return f"queues {_listed([str(queue) for queue in ordered])}"
