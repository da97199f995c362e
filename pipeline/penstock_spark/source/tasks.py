"""The tasks of a read: how it is divided, what each task does, and its columns. Does not import pyspark.

The records of all queues are mixed in a log, so a task reads one range of the log for all queues, and reads it once.
The boundaries are estimated from a few entries of each queue. A task's share is given in queue offsets, so a wrong
estimate makes a task longer or shorter, but not incorrect. Small stores share a task.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import penstock
from penstock.errors import ConfigError, OffsetError
from penstock.escape import get_logger
from penstock_spark.arrow import COLUMNS, converter, ddl_of, pa, store_columns
from penstock_spark.errors import DataLossError
from penstock_spark.source.offsets import NextOffset, RequestedRange
from penstock_spark.source.options import SourceOptions
from penstock_spark.stores import Location, StoreSpan, ask_all, open_store

logger = get_logger(__name__)

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
# A batch is cut where its records have so many bytes, whatever `rowsPerBatch` says.
BATCH_BYTES = 8 << 20
_ADVICE = "give failOnDataLoss=false to skip such messages with a warning"


class LogRange(NamedTuple):
    """The positions in the log of a range of a queue.

    `ordinals` and `log_offsets` ascend together, from the first message to after the last; `totals` are the
    bytes before each.
    """

    span: StoreSpan
    ordinals: list[float]
    log_offsets: list[float]
    totals: list[float]


def _located(
    location: Location, requested_ranges: Sequence[tuple[NextOffset, RequestedRange]]
) -> list[LogRange]:
    """Locate a store's ranges in its log; reads more entries of long queues, which few stores have."""
    if all(_is_plain(requested) for _, requested in requested_ranges):
        return [_plain_piece(place, requested) for place, requested in requested_ranges]
    with open_store(location) as store:
        return [
            _plain_piece(place, requested)
            if _is_plain(requested)
            else _sampled_piece(store, place, requested)
            for place, requested in requested_ranges
        ]


def _is_plain(requested: RequestedRange) -> bool:
    """Return whether the bounds of the whole queue are a sufficient estimate."""
    start, stop, bounds, _ = requested
    is_whole = (start, stop) == (bounds.min_offset, bounds.max_offset)
    return is_whole and (stop - start) * bounds.record_bytes <= _SAMPLED_BYTES


def _span(place: NextOffset, requested: RequestedRange) -> StoreSpan:
    return StoreSpan(*place[:3], requested.start, requested.stop, place.generation)


def _plain_piece(place: NextOffset, requested: RequestedRange) -> LogRange:
    start, stop, bounds, _ = requested
    size = max(bounds.record_bytes, 1.0)
    log = [float(bounds.first_log_offset), float(bounds.last_log_offset) + size]
    return LogRange(_span(place, requested), [start, stop], log, [0.0, (stop - start) * size])


def _sampled_piece(
    store: "penstock.Store", place: NextOffset, requested: RequestedRange
) -> LogRange:
    start, stop, bounds, _ = requested
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
    pieces = ask_all(asked, lambda location: _located(location, by_store[location.name]))
    return share_out(pieces, min_partitions)


def share_out(stores: Iterable[list[LogRange]], min_partitions: int) -> list[list[StoreSpan]]:
    """Divide large stores and combine small ones, in order, into tasks of about equal size."""
    stores = [pieces for pieces in stores if pieces]
    sizes = [sum(piece.totals[-1] for piece in pieces) for pieces in stores]
    target = task_bytes(sum(sizes), min_partitions)
    tasks: list[list[StoreSpan]] = []
    room = 0.0
    for pieces, size in zip(stores, sizes, strict=True):
        rows = sum(piece.span.stop - piece.span.start for piece in pieces)
        parts = min(max(round(size / target), 1), rows)
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


# --- one task


class Losses:
    """Reports missing messages: raises an error, or logs a warning."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def report(self, what: str, cause: Exception | None = None) -> None:
        """Raise or log, as `failOnDataLoss` says."""
        if self._fails:
            raise DataLossError(what, _ADVICE) from cause
        logger.warning("%s; they are skipped, since failOnDataLoss is false", what)

    def is_there(self, span: StoreSpan, generation: int) -> bool:
        """Return whether the topic was not removed since the read was planned; report it if it was."""
        is_same = span.generation == generation
        if not is_same:
            self.report(
                f"messages [{span.start}, {span.stop}) of queue {span.queue} of topic {span.topic!r} in {span.store} "
                f"are gone: the topic was removed before they were read"
            )
        return is_same

    def in_store(self, name: str) -> "penstock.Lost":
        """Return the callback for messages that were deleted while they were read."""

        def lost(span: penstock.QueueSpan, error: OffsetError | None) -> None:
            self.report(
                f"messages [{span.start}, {span.stop}) of queue {span.queue} of topic {span.topic!r} in "
                f"{name} are gone: retention or a repair deleted them before they were read, or the queue has lost "
                f"their entries",
                error,
            )

        return lost


def read_spans(
    options: SourceOptions, names: Sequence[str], spans: Sequence[StoreSpan]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task, store by store, each in the order of its log."""
    convert, needed = converter(names), store_columns(names)
    losses = Losses(fails=options.fail_on_loss)
    for name, mine in itertools.groupby(spans, lambda span: span.store):
        with open_store(Location(name)) as store:
            generation = functools.cache(store.lowlevel.topic_generation)
            there = [each.span for each in mine if losses.is_there(each, generation(each.topic))]
            batches = store.lowlevel.arrow_spans(
                there, needed,
                rows=options.rows_per_batch, size=BATCH_BYTES, verify=options.verify,
                tags=options.tags, keys=options.keys, lost=losses.in_store(name),
            )  # fmt: skip
            for batch in batches:
                yield convert(batch, name)


# --- the columns of a read

DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
# In the order in which an error names them.
_ALL = tuple(dict.fromkeys((*DEFAULT, *COLUMNS)))


def ddl(*, headers: bool) -> str:
    """Return the schema of a read without a user schema."""
    return ddl_of((*DEFAULT, "headers") if headers else DEFAULT)


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of the requested columns.

    Args:
        fields: each one's name, and its type as Spark prints it.

    Raises:
        ConfigError: there is no such column, or it has another type.
    """
    for name, shown in fields:
        if name not in COLUMNS:
            near = next((known for known in _ALL if known.lower() == name.lower()), None)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"there is no column {name!r}{hint}; there are: {', '.join(_ALL)}")
        if shown.lower() != COLUMNS[name].shown:
            raise ConfigError(
                f"the column {name!r} is {COLUMNS[name].shown}, not {shown}: read it with that type, and cast it"
            )
    return tuple(name for name, _ in fields)
