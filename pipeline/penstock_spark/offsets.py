"""Queue offsets: what a read asks for, told in numbers; and offsets of a stream as Kafka's JSON. No pyspark in here.

Offsets are the next message to read. One store given by its plain path: `{"topic":{"0":5}}`; several:
`{"store":{"topic":{"0":5}}}`. Inside, both are a flat mapping of `Place` to offset. Keys are sorted, so that
equal offsets are equal text, which is how Spark compares them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import attrs

import penstock
from penstock.errors import ConfigError, OffsetError, StorageError
from penstock_spark.locations import Location, Locations
from penstock_spark.options import EARLIEST, LATEST, Bound, SourceOptions
from penstock_spark.stores import ask_all, open_store

Bounds = penstock.QueueBounds


class Place(NamedTuple):
    """One queue of one store."""

    store: str
    topic: str
    queue: int

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic!r} in {self.store}"


class Stretch(NamedTuple):
    """Messages [start, stop) that a read asks for, and what there is of that queue."""

    start: int
    stop: int
    bounds: Bounds


class Held(NamedTuple):
    """What one store has of what is asked for.

    `topics` are all of its topics, also those that are not asked for.
    """

    topics: list[str]
    stretches: list[Stretch]


# --- what there is


@attrs.frozen
class Question:
    """Asks a store for its queues, and resolves where to start and to end; picklable."""

    options: SourceOptions
    is_one: bool
    resolves: bool = True

    def __call__(self, location: Location) -> Held:
        """Return what the store has."""
        options = self.options
        with open_store(location) as store:
            seen: list[str] = []

            def wanted(topic: str) -> bool:
                seen.append(topic)
                return options.wants(topic)

            found = [b for b in store.bounds(wanted) if options.wants_queue(b.topic, b.queue)]
            if not self.resolves:
                return Held(seen, [Stretch(b.min_offset, b.max_offset, b) for b in found])
            key = "" if self.is_one else location.name
            starts, ends = _sides(options, key)
            stretches = []
            for bounds in found:
                start, stop = starts(store, bounds), ends(store, bounds)
                stretches.append(Stretch(start, max(start, stop), bounds))
            return Held(seen, stretches)


Resolve = Callable[["penstock.Store", Bounds], int]


def _sides(options: SourceOptions, key: str) -> tuple[Resolve, Resolve]:
    def starts(store: "penstock.Store", bounds: Bounds) -> int:
        return resolve(options.starting, store, bounds, key, options.late_is_error)

    def ends(store: "penstock.Store", bounds: Bounds) -> int:
        return resolve(options.ending, store, bounds, key, late_is_error=False)

    return starts, ends


def resolve(
    bound: Bound, store: "penstock.Store", bounds: Bounds, key: str, late_is_error: bool
) -> int:
    """Return the offset that a bound means for one queue; one out of range is an error."""
    low, high = bounds.min_offset, bounds.max_offset
    default = {EARLIEST: low, LATEST: high}[bound.word]
    given = bound.numbers.get(key, {}).get(bounds.topic, {}).get(bounds.queue)
    time_ms = bound.time_ms if bound.time_ms is not None else given if bound.are_times else None
    if time_ms is not None:
        return _at_time(bound, store, bounds, time_ms, late_is_error)
    if given is None:
        return default
    offset = {EARLIEST: low, LATEST: high}.get(given, given)
    if not low <= offset <= high:
        what = f"{bound.name} of queue {bounds.queue} of topic {bounds.topic!r} in {store.path}:"
        raise OffsetError(offset, low, high + 1, what)
    return offset


def _at_time(
    bound: Bound, store: "penstock.Store", bounds: Bounds, time_ms: int, late_is_error: bool
) -> int:
    at = min(store.offset_at(bounds.topic, bounds.queue, time_ms=time_ms), bounds.max_offset)
    if at == bounds.max_offset and late_is_error:
        raise ConfigError(
            f"{bound.name}: queue {bounds.queue} of topic {bounds.topic!r} in {store.path} has no message "
            f"at {time_ms} or later; give startingOffsetsByTimestampStrategy=latest to begin at its end"
        )
    return at


def survey(
    options: SourceOptions, locations: Locations, *, resolves: bool = True
) -> dict[Place, Stretch]:
    """Return every queue that is asked for; what is named and is not there is an error."""
    question = Question(options, locations.is_one, resolves)
    found = ask_all(locations.stores, question)
    places = {
        Place(location.name, stretch.bounds.topic, stretch.bounds.queue): stretch
        for location, held in zip(locations.stores, found, strict=True)
        for stretch in held.stretches
    }
    if resolves:
        _check_topics(options, locations, found, places)
        for bound in (options.starting, options.ending):
            _check_named(bound, options, locations, places)
    return places


def _check_topics(
    options: SourceOptions,
    locations: Locations,
    found: Iterable[Held],
    places: Iterable[Place],
) -> None:
    """A topic or a queue that no store has is an error, not an empty read."""
    there = {topic for held in found for topic in held.topics}
    where = locations.stores[0].name if len(locations.stores) == 1 else "any of the stores"
    known = ", ".join(sorted(there)[:50]) or "none"
    for topic in options.topics:
        if topic not in there:
            raise ConfigError(f"there is no topic {topic!r} in {where}; there are: {known}")
    queues = {(place.topic, place.queue) for place in places}
    for topic, numbers in options.assigned.items():
        for queue in numbers:
            if (topic, queue) not in queues:
                raise ConfigError(
                    f"assign names queue {queue} of topic {topic!r}, which is not in {where}"
                )


def _check_named(
    bound: Bound, options: SourceOptions, locations: Locations, places: Mapping[Place, Stretch]
) -> None:
    """A queue that offsets name and the read has not is an error."""
    names = {locations.key(location.name): location.name for location in locations.stores}
    for key, topics in bound.numbers.items():
        if key not in names:
            raise _wrong_form(bound.name, key, locations)
        for topic, queues in topics.items():
            for queue in queues:
                if Place(names[key], topic, queue) in places:
                    continue
                if not options.wants(topic) or not options.wants_queue(topic, queue):
                    what = "which this read does not subscribe to"
                else:
                    what = f"which is not there in {names[key]}"
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


def to_json(offsets: Mapping[Place, int], locations: Locations) -> dict[str, Any]:
    """Return offsets as the dict that Spark writes down, sorted."""
    found: dict[str, Any] = {}
    for place, offset in sorted(offsets.items()):
        topics = found if locations.is_one else found.setdefault(place.store, {})
        topics.setdefault(place.topic, {})[str(place.queue)] = offset
    return found


def from_json(found: Mapping[str, Any], locations: Locations) -> dict[Place, int]:
    """Return what `to_json` made, from a checkpoint."""
    try:
        stores = {locations.stores[0].name: found} if locations.is_one else found
        return {
            Place(store, topic, int(queue)): int(offset)
            for store, topics in stores.items()
            for topic, queues in topics.items()
            for queue, offset in queues.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        one = "one store by its path" if locations.is_one else "several stores"
        raise StorageError(
            f"the checkpoint's offsets {found!r} are not those of a read of {one}: a checkpoint belongs to one "
            f"query over one kind of path; give the path as before, or a new checkpoint"
        ) from error
