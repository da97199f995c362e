"""Queues and offsets of a read: the stores', the requested, and a stream's, as Kafka's JSON. Does not import pyspark.

If there are many stores on this machine, child processes query them, with request and result as JSON over standard
input and output. `multiprocessing` would fork this process with its threads, or run the unknown main script again. If
a child fails, this process repeats its queries, so the error is raised here.

Offsets are the next message to read. One store given by its plain path: `{"topic":{"0":5}}`; several:
`{"store":{"topic":{"0":5}}}`. In memory, both are a flat mapping of `NextOffset` to offset. Keys are sorted, so that
equal offsets are equal text, which is how Spark compares them. Where a topic was removed and created again, its queues
are written as `"0@1"`: queue 0 since the first removal. So the same number of another generation is another queue.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import attrs

import penstock
from penstock.errors import ConfigError, OffsetError, StorageError
from penstock.escape import near
from penstock.format.names import is_hidden
from penstock_spark.source.options import EARLIEST, LATEST, Bound, SourceOptions, parse_options
from penstock_spark.stores import Location, Locations, ask_all, open_store, queue_name

# Fewer local stores than this are asked one after the other: starting a child costs half a second.
_MANY_LOCAL = 100
_CHILDREN_MAX = 8
# `offset_at` refuses a larger number, since it looks like milliseconds.
_TIME_MAX_S = 10**12 - 1

Bounds = penstock.QueueBounds


class RequestedRange(NamedTuple):
    """Messages [start, stop) that a read requests, the bounds of their queue, and its topic's generation."""

    start: int
    stop: int
    bounds: Bounds
    generation: int


class StoreRanges(NamedTuple):
    """The requested ranges of one store.

    `topics` are all of its topics, also those that are not asked for.
    """

    topics: list[str]
    requested_ranges: list[RequestedRange]


@attrs.frozen
class Question:
    """Lists the queues of a store, and resolves their start and end."""

    options: SourceOptions
    is_one: bool
    resolves: bool = True

    def __call__(self, location: Location) -> StoreRanges:
        """Return the ranges of the store."""
        options = self.options
        with open_store(location) as store:
            seen: list[str] = []
            generations: dict[str, int] = {}

            def wanted(topic: str) -> bool:
                seen.append(topic)
                if options.wants(topic):
                    generations[topic] = store.lowlevel.topic_generation(topic)
                return topic in generations

            found = [
                b for b in store.lowlevel.bounds(wanted) if options.wants_queue(b.topic, b.queue)
            ]
            if not self.resolves:
                whole = [
                    RequestedRange(b.min_offset, b.max_offset, b, generations[b.topic])
                    for b in found
                ]
                return StoreRanges(seen, whole)
            key = "" if self.is_one else location.name
            starting, ending = options.starting, options.ending
            late_is_error = options.since is None
            requested_ranges = []
            for b in found:
                number = generations[b.topic]
                start = _resolve(starting, store, b, key, number, late_is_error=late_is_error)
                stop = _resolve(ending, store, b, key, number)
                requested_ranges.append(RequestedRange(start, max(start, stop), b, number))
            return StoreRanges(seen, requested_ranges)


def _resolve(
    bound: Bound,
    store: "penstock.Store",
    bounds: Bounds,
    key: str,
    generation: int,
    *,
    late_is_error: bool = False,
) -> int:
    """Return the offset of a bound in one queue of a generation of its topic.

    Raises:
        OffsetError: it is out of range.
        ConfigError: the bound is of another generation, or later than every message.
    """
    low, high = bounds.min_offset, bounds.max_offset
    default = {EARLIEST: low, LATEST: high}[bound.word]
    named = bound.numbers.get(key, {}).get(bounds.topic, {}).get(bounds.queue)
    given = None if named is None else named.number
    if named is not None and named.generation not in (None, generation):
        raise ConfigError(
            f"{bound.name} names queue {bounds.queue} of topic {bounds.topic!r} after {named.generation} removals of "
            f"it, but {store.path} knows {generation}: it is another queue now"
        )
    time_ms = bound.time_ms if bound.time_ms is not None else given if bound.are_times else None
    if time_ms is not None:
        # A later time is the same: after every message.
        time_s = min(time_ms / 1000, _TIME_MAX_S)
        at = min(store.offset_at(bounds.topic, bounds.queue, time_s), high)
        if at == high and late_is_error:
            raise ConfigError(
                f"{bound.name}: queue {bounds.queue} of topic {bounds.topic!r} in {store.path} has no message "
                f"at {time_ms} or later; give since to begin at its end"
            )
        return at
    if given is None:
        return default
    offset = {EARLIEST: low, LATEST: high}.get(given, given)
    if not low <= offset <= high:
        what = f"{bound.name} of queue {bounds.queue} of topic {bounds.topic!r} in {store.path}:"
        raise OffsetError(offset, low, high + 1, what)
    return offset


# --- many stores


def ask_stores(question: Question, locations: Sequence[Location]) -> list[StoreRanges]:
    """Return the ranges of each store, in order."""
    cores = min(len(os.sched_getaffinity(0)), _CHILDREN_MAX)
    is_local = not any(location.is_remote for location in locations)
    if not is_local or len(locations) < _MANY_LOCAL or cores == 1:
        return ask_all(locations, question)
    size = -(-len(locations) // cores)
    parts = [locations[at : at + size] for at in range(0, len(locations), size)]
    with ThreadPoolExecutor(cores) as threads:
        answers = threads.map(lambda part: _ask_in_child(question, part), parts)
        return [ranges for part in answers for ranges in part]


def _ask_in_child(question: Question, locations: Sequence[Location]) -> list[StoreRanges]:
    about = {
        "given": question.options.given,
        "streaming": question.options.streaming,
        "is_one": question.is_one,
        "resolves": question.resolves,
        "stores": [location.name for location in locations],
    }
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", "from penstock_spark.source.offsets import answer; answer()"],
        input=json.dumps(about).encode(), capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode != 0:
        return ask_all(locations, question)
    return [
        StoreRanges(
            topics,
            [RequestedRange(low, high, Bounds(*b), number) for low, high, b, number in ranges],
        )
        for topics, ranges in json.loads(done.stdout)
    ]


def answer() -> None:
    """Read a request from standard input, and write the results to standard output."""
    about = json.load(sys.stdin.buffer)
    options = parse_options(about["given"], streaming=about["streaming"])
    question = Question(options, about["is_one"], about["resolves"])
    found = ask_all([Location(name) for name in about["stores"]], question)
    sys.stdout.buffer.write(json.dumps(found).encode())


class NextOffset(NamedTuple):
    """One queue of one store, in one generation of its topic: how often that was removed."""

    store: str
    topic: str
    queue: int
    generation: int = 0

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic!r} in {self.store}"


# --- all stores of a read


def survey(
    options: SourceOptions, locations: Locations, *, resolves: bool = True
) -> dict[NextOffset, RequestedRange]:
    """Return the range of every requested queue; a named store, topic or queue that does not exist is an error."""
    question = Question(options, locations.is_one, resolves)
    found = ask_stores(question, locations.stores)
    places = {
        NextOffset(
            location.name, requested.bounds.topic, requested.bounds.queue, requested.generation
        ): requested
        for location, ranges in zip(locations.stores, found, strict=True)
        for requested in ranges.requested_ranges
    }
    if resolves:
        _check_topics(options, locations, found, places)
        for bound in (options.starting, options.ending):
            _check_named(bound, options, locations, places)
    return places


def _check_topics(
    options: SourceOptions,
    locations: Locations,
    found: Iterable[StoreRanges],
    places: Iterable[NextOffset],
) -> None:
    """Raise `ConfigError` for a topic or queue that no store has; the read would be empty without a reason."""
    there = {topic for ranges in found for topic in ranges.topics}
    where = locations.stores[0].name if len(locations.stores) == 1 else "any of the stores"
    known = sorted(topic for topic in there if not is_hidden(topic))
    for topic in options.topics:
        if topic not in there:
            raise ConfigError(
                f"there is no topic {topic!r} in {where}{near(topic, known)}; there are: "
                f"{', '.join(known[:50]) or 'none'}"
            )
    queues = {(place.topic, place.queue) for place in places}
    for topic, numbers in options.assigned.items():
        for queue in numbers:
            if (topic, queue) not in queues:
                raise ConfigError(
                    f"assign names queue {queue} of topic {topic!r}, which is not in {where}"
                )


def _check_named(
    bound: Bound,
    options: SourceOptions,
    locations: Locations,
    places: Mapping[NextOffset, RequestedRange],
) -> None:
    """Raise `ConfigError` for a queue that offsets name and the read does not have."""
    names = {locations.key(location.name): location.name for location in locations.stores}
    there = {place[:3] for place in places}
    for key, topics in bound.numbers.items():
        if key not in names:
            raise _wrong_form(bound.name, key, locations)
        for topic, queues in topics.items():
            for queue in queues:
                if (names[key], topic, queue) in there:
                    continue
                if not options.wants(topic) or not options.wants_queue(topic, queue):
                    what = "which this read does not subscribe to"
                else:
                    what = f"which does not exist in {names[key]}"
                raise ConfigError(f"{bound.name} names queue {queue} of topic {topic!r}, {what}")


def _wrong_form(name: str, key: str, locations: Locations) -> ConfigError:
    if locations.is_one:
        form = 'one store is read, so it must be JSON as {"topic":{"0":23}}'
    elif key:
        form = f"there is no store {key!r} in this read; name it as the column store does"
    else:
        form = (
            'several stores are read, so it must be JSON as {"/path/of/store":{"topic":{"0":23}}}'
        )
    return ConfigError(f"{name}: {form}")


# --- offsets of a stream


def to_json(
    offsets: Mapping[NextOffset, int], locations: Locations, known: Iterable[str] = ()
) -> dict[str, Any]:
    """Return offsets as the sorted dict that Spark writes to the checkpoint.

    Of several stores, those in `known` are in it even without a queue.
    """
    names = sorted({*known, *(place.store for place in offsets)})
    found: dict[str, Any] = {} if locations.is_one else {name: {} for name in names}
    for place, offset in sorted(offsets.items()):
        topics = found if locations.is_one else found[place.store]
        queue = queue_name(place.queue, place.generation)
        topics.setdefault(place.topic, {})[queue] = offset
    return found


def from_json(found: Mapping[str, Any], locations: Locations) -> dict[NextOffset, int]:
    """Parse the dict of `to_json` from a checkpoint."""
    try:
        stores = {locations.stores[0].name: found} if locations.is_one else found
        return {
            NextOffset(store, topic, *map(int, queue.split("@", 1))): int(offset)
            for store, topics in stores.items()
            for topic, queues in topics.items()
            for queue, offset in queues.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        one = "one store by its path" if locations.is_one else "several stores"
        raise StorageError(
            f"the checkpoint's offsets {found!r} are not offsets of a read of {one}: a checkpoint belongs to one "
            f"query over one kind of path; nothing was read. Give the earlier path, or a new checkpoint"
        ) from error
