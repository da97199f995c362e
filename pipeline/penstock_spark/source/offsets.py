"""Resolves the queues and offsets of a read, and converts a stream's offsets to Kafka's JSON. This module does not import pyspark.

Offsets are the next message to read. One store given by its plain path: `{"topic":{"0":5}}`; several:
`{"store":{"topic":{"0":5}}}`. In memory, both are a flat mapping of `NextOffset` to offset. Keys are sorted, so that
equal offsets are equal text, which is how Spark compares them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.errors import ConfigError, StorageError
from penstock_spark.source.bounds import Bound
from penstock_spark.source.options import SourceOptions
from penstock_spark.source.queries import Question, RequestedRange, StoreRanges, ask_stores
from penstock_spark.stores.locations import Locations


class NextOffset(NamedTuple):
    """One queue of one store."""

    store: str
    topic: str
    queue: int

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic!r} in {self.store}"


# --- what there is


def survey(
    options: SourceOptions, locations: Locations, *, resolves: bool = True
) -> dict[NextOffset, RequestedRange]:
    """Return the range of every requested queue; a named store, topic or queue that does not exist is an error."""
    question = Question(options, locations.is_one, resolves)
    found = ask_stores(question, locations.stores)
    places = {
        NextOffset(location.name, requested.bounds.topic, requested.bounds.queue): requested
        for location, held in zip(locations.stores, found, strict=True)
        for requested in held.requested_ranges
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
    bound: Bound,
    options: SourceOptions,
    locations: Locations,
    places: Mapping[NextOffset, RequestedRange],
) -> None:
    """Raise `ConfigError` for a queue that offsets name and the read does not have."""
    names = {locations.key(location.name): location.name for location in locations.stores}
    for key, topics in bound.numbers.items():
        if key not in names:
            raise _wrong_form(bound.name, key, locations)
        for topic, queues in topics.items():
            for queue in queues:
                if NextOffset(names[key], topic, queue) in places:
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


def to_json(offsets: Mapping[NextOffset, int], locations: Locations) -> dict[str, Any]:
    """Return offsets as the sorted dict that Spark writes to the checkpoint."""
    found: dict[str, Any] = {}
    for place, offset in sorted(offsets.items()):
        topics = found if locations.is_one else found.setdefault(place.store, {})
        topics.setdefault(place.topic, {})[str(place.queue)] = offset
    return found


def from_json(found: Mapping[str, Any], locations: Locations) -> dict[NextOffset, int]:
    """Parse the dict of `to_json` from a checkpoint."""
    try:
        stores = {locations.stores[0].name: found} if locations.is_one else found
        return {
            NextOffset(store, topic, int(queue)): int(offset)
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
