"""Resolves the requested ranges in each store of a read. This module does not import pyspark.

If there are many stores on this machine, child processes query them, with request and result as JSON over standard
input and output. `multiprocessing` would fork this process with its threads, or run the unknown main script again. If
a child fails, this process repeats its queries, so the error is raised here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import attrs

import penstock
from penstock.errors import ConfigError, OffsetError
from penstock_spark.source.bounds import EARLIEST, LATEST, Bound
from penstock_spark.source.options import SourceOptions, parse_options
from penstock_spark.stores.locations import Location
from penstock_spark.stores.open import ask_all, open_store

# Fewer local stores than this are asked one after the other: starting a child costs half a second.
_MANY_LOCAL = 100
_CHILDREN_MAX = 8

Bounds = penstock.QueueBounds


class RequestedRange(NamedTuple):
    """Messages [start, stop) that a read requests, and the bounds of their queue."""

    start: int
    stop: int
    bounds: Bounds


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

            def wanted(topic: str) -> bool:
                seen.append(topic)
                return options.wants(topic)

            found = [
                b for b in store.lowlevel.bounds(wanted) if options.wants_queue(b.topic, b.queue)
            ]
            if not self.resolves:
                return StoreRanges(
                    seen, [RequestedRange(b.min_offset, b.max_offset, b) for b in found]
                )
            key = "" if self.is_one else location.name
            starts, ends = _sides(options, key)
            requested_ranges = []
            for bounds in found:
                start, stop = starts(store, bounds), ends(store, bounds)
                requested_ranges.append(RequestedRange(start, max(start, stop), bounds))
            return StoreRanges(seen, requested_ranges)


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
    """Return the offset of a bound in one queue; raise `OffsetError` if it is out of range."""
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
    at = min(store.offset_at(bounds.topic, bounds.queue, time_ms / 1000), bounds.max_offset)
    if at == bounds.max_offset and late_is_error:
        raise ConfigError(
            f"{bound.name}: queue {bounds.queue} of topic {bounds.topic!r} in {store.path} has no message "
            f"at {time_ms} or later; give startingOffsetsByTimestampStrategy=latest to begin at its end"
        )
    return at


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
        return [held for part in answers for held in part]


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
        [sys.executable, "-c", "from penstock_spark.source.queries import answer; answer()"],
        input=json.dumps(about).encode(), capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode != 0:
        return ask_all(locations, question)
    return [
        StoreRanges(
            topics,
            [
                RequestedRange(start, stop, Bounds(*bounds))
                for start, stop, bounds in requested_ranges
            ],
        )
        for topics, requested_ranges in json.loads(done.stdout)
    ]


def answer() -> None:
    """Read a request from standard input, and write the results to standard output."""
    about = json.load(sys.stdin.buffer)
    options = parse_options(about["given"], streaming=about["streaming"])
    question = Question(options, about["is_one"], about["resolves"])
    found = ask_all([Location(name) for name in about["stores"]], question)
    sys.stdout.buffer.write(json.dumps(found).encode())
