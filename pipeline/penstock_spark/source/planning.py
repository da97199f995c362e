"""Divides a read into tasks, by bytes of log and in log order. This module does not import pyspark.

The records of all queues are mixed in a log, so a task reads one range of the log for all queues, and reads it once.
The boundaries are estimated from a few entries of each queue. A task's share is given in queue offsets, so a wrong
estimate makes a task longer or shorter, but not incorrect. Small stores share a task.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import attrs
import numpy as np

import penstock
from penstock_spark.source.offsets import NextOffset
from penstock_spark.source.queries import RequestedRange
from penstock_spark.stores.locations import Location
from penstock_spark.stores.open import ask_all, open_store

# A task reads so many bytes of log. Each costs some 30 ms; a few for each core share the work evenly.
TASK_BYTES_MIN = 64 << 20
TASK_BYTES_MAX = 256 << 20
TASKS_WANTED = 4
# A small read is cut in as many, but not smaller than this.
SMALL_TASK_BYTES = 8 << 20
# A queue with more bytes than this is looked at in several places.
_SAMPLED_BYTES = 16 << 20
_SAMPLES = 17
_GRID = 1024


class StoreSpan(NamedTuple):
    """Messages [start, stop) of one queue of one store."""

    store: str
    topic: str
    queue: int
    start: int
    stop: int


class LogRange(NamedTuple):
    """The positions in the log of a range of a queue.

    `ordinals` and `log_offsets` ascend together, from the first message to the one after the last; `totals` are the
    bytes before each.
    """

    span: StoreSpan
    ordinals: list[float]
    log_offsets: list[float]
    totals: list[float]


@attrs.frozen
class Measure:
    """Locates a store's ranges in its log; reads more entries of long queues, which few stores have."""

    requested_ranges: Mapping[str, list[tuple[NextOffset, RequestedRange]]]

    def __call__(self, location: Location) -> list[LogRange]:
        """Return the pieces of one store."""
        mine = self.requested_ranges[location.name]
        if all(_is_plain(requested) for _, requested in mine):
            return [_plain_piece(place, requested) for place, requested in mine]
        with open_store(location) as store:
            return [
                _plain_piece(place, requested)
                if _is_plain(requested)
                else _sampled_piece(store, place, requested)
                for place, requested in mine
            ]


def _is_plain(requested: RequestedRange) -> bool:
    """Return whether the bounds of the whole queue are a sufficient estimate."""
    start, stop, bounds = requested
    is_whole = (start, stop) == (bounds.min_offset, bounds.max_offset)
    return is_whole and (stop - start) * bounds.record_bytes <= _SAMPLED_BYTES


def _span(place: NextOffset, requested: RequestedRange) -> StoreSpan:
    return StoreSpan(*place, requested.start, requested.stop)


def _plain_piece(place: NextOffset, requested: RequestedRange) -> LogRange:
    start, stop, bounds = requested
    size = max(bounds.record_bytes, 1.0)
    log = [float(bounds.first_log_offset), float(bounds.last_log_offset) + size]
    return LogRange(_span(place, requested), [start, stop], log, [0.0, (stop - start) * size])


def _sampled_piece(
    store: "penstock.Store", place: NextOffset, requested: RequestedRange
) -> LogRange:
    start, stop, bounds = requested
    many = (stop - start) * max(bounds.record_bytes, 1.0) > _SAMPLED_BYTES
    found = store.lowlevel.sample(place.topic, place.queue, start, stop, _SAMPLES if many else 3)
    if not found:
        # Deleted meanwhile; the task that reads it reports that.
        return LogRange(_span(place, requested), [start, stop], [0.0, 1.0], [0.0, 1.0])
    ordinals = [float(start), *(float(at) for at, _, _ in found[1:]), float(stop)]
    log = [float(offset) for _, offset, _ in found]
    log.append(max(log[-1], float(bounds.last_log_offset)) + found[-1][2])
    sizes = [size for _, _, size in found]
    steps = np.maximum(np.diff(ordinals), 0) * sizes
    totals = [0.0, *np.cumsum(steps).tolist()]
    return LogRange(_span(place, requested), ordinals, np.maximum.accumulate(log).tolist(), totals)


def plan(
    requested_ranges: Mapping[NextOffset, RequestedRange],
    locations: Iterable[Location],
    min_partitions: int,
) -> list[list[StoreSpan]]:
    """Return the tasks of a read, each a list of spans; empty if there is nothing to read."""
    by_store: dict[str, list[tuple[NextOffset, RequestedRange]]] = {}
    for place, requested in sorted(requested_ranges.items(), key=lambda item: item[0]):
        if requested.stop > requested.start:
            by_store.setdefault(place.store, []).append((place, requested))
    asked = [location for location in locations if location.name in by_store]
    pieces = ask_all(asked, Measure(by_store))
    return share_out(pieces, min_partitions)


def share_out(stores: Iterable[list[LogRange]], min_partitions: int) -> list[list[StoreSpan]]:
    """Divide large stores and combine small ones, in order, into tasks of about equal size."""
    stores = [pieces for pieces in stores if pieces]
    sizes = [sum(piece.totals[-1] for piece in pieces) for pieces in stores]
    target = task_bytes(sum(sizes), min_partitions)
    tasks: list[list[StoreSpan]] = []
    room = 0.0
    for pieces, size in zip(stores, sizes, strict=True):
        parts = max(round(size / target), 1)
        for spans in _cut(pieces, parts) if parts > 1 else [[piece.span for piece in pieces]]:
            if not spans:
                continue
            if room < size / parts / 2 or not tasks:
                tasks.append([])
                room = target
            tasks[-1] += spans
            room -= size / parts
    return tasks


def task_bytes(total: float, min_partitions: int) -> float:
    """Return how much of the log one task reads."""
    if min_partitions:
        return max(min(total / min_partitions, TASK_BYTES_MAX), 1.0)
    if total > TASKS_WANTED * TASK_BYTES_MAX:
        # An even number, which cores share evenly; so each may have a little more or less.
        return total / (2 * round(total / TASK_BYTES_MAX / 2))
    size = min(max(total / TASKS_WANTED, TASK_BYTES_MIN), TASK_BYTES_MAX)
    return min(size, max(total / TASKS_WANTED, SMALL_TASK_BYTES))


def _cut(pieces: list[LogRange], parts: int) -> Iterator[list[StoreSpan]]:
    """Divide the queues of one store at the same log offsets."""
    grid = np.unique(np.concatenate([piece.log_offsets for piece in pieces]))
    if len(grid) > _GRID:
        grid = grid[np.linspace(0, len(grid) - 1, _GRID).astype(np.int64)]
    fine = max(len(grid), 2)
    grid = np.interp(np.linspace(0, fine - 1, max(fine, 4 * parts)), np.arange(len(grid)), grid)
    totals = np.zeros(len(grid))
    for piece in pieces:
        totals += np.interp(grid, piece.log_offsets, piece.totals)
    wanted = np.linspace(0, totals[-1], parts + 1)[1:-1]
    cuts = np.interp(wanted, totals, grid)
    ordinals = []
    for piece in pieces:
        at = np.interp(cuts, piece.log_offsets, piece.ordinals).round().astype(np.int64)
        span = piece.span
        at = np.maximum.accumulate(np.clip(at, span.start, span.stop))
        ordinals.append([span.start, *at.tolist(), span.stop])
    for part in range(parts):
        yield [
            piece.span._replace(start=edges[part], stop=edges[part + 1])
            for piece, edges in zip(pieces, ordinals, strict=True)
            if edges[part] < edges[part + 1]
        ]
