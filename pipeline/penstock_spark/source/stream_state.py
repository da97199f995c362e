"""A stream over stores: its start, new messages, batches and missing messages. Does not import pyspark.

Arguments and results are dicts of offsets that Spark stores in the checkpoint. No store stays open between calls.

Invariants:
    * Every message at or after the start of a query is in exactly one batch, unless a loss was reported.
    * The result of `latest` depends only on the stores, so a repeated batch is the same.
    * A batch reads only queues that are in its start offsets. The first batch that finds a new queue only records its
      offset, and the next batch reads from there; so a repeated batch knows the queue's begin, even after retention.
      Of several stores, one without queues is in the offsets too, as `{}`: its first queue begins at 0.
    * A queue that was read stays in the offsets while it is missing; when it exists again, reading continues. A queue
      of a topic that was removed and created again is a new queue, which takes the place of the old one.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import ConfigError, CorruptionError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import is_waiting
from penstock_spark.source.offsets import NextOffset, RequestedRange, from_json, survey, to_json
from penstock_spark.source.options import LATEST, SourceOptions
from penstock_spark.source.tasks import Losses, plan
from penstock_spark.stores import Locations, StoreSpan, find_stores, is_dataset, keep_folder

logger = get_logger(__name__)

FOLDER = "penstock-spark"
FORMAT = 1
_SIZE_MAX = 64 << 20

_K = TypeVar("_K")


class KeptStart:
    """The start of a stream with a `group`, stored with the data that it reads.

    Spark asks a source for the start offsets, and asks again if the query is restarted before its first batch is
    committed, since the checkpoint does not contain them until then. A different second answer would skip or repeat
    messages. So the first answer is stored, in one file for each group::

        penstock-spark/<group>.json   {"format": 1, "start": {<offsets>}, "begun": false}

    in the folder of the dataset; else in that of the read's store that has such a file; else in that of the first
    store. `begun` is true when the first batch is committed. From then on Spark does not ask again for this query, so a
    later request is from another query, which gets its own start.

    The file is written atomically and durably before the start is used. A group's name cannot be a path outside of the
    folder. One query uses a group at a time; not thread-safe.
    """

    def __init__(self, home: Path, group: str, files: Files | None = None) -> None:
        self._files = files or Files()
        self._home = home
        self.path = home / FOLDER / f"{group}.json"
        self._group = group

    def exists(self) -> bool:
        """Return whether a start is stored."""
        return self._files.exists(self.path)

    def read(self) -> tuple[dict[str, Any], bool] | None:
        """Return the start, and whether the first batch is known to be committed; None if there is none."""
        try:
            start, begun = self._parsed()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptionError(
                self.path, 0, f"the start of group {self._group}", str(error),
                "delete it: a query whose first batch is committed does not need it",
            ) from error  # fmt: skip
        except OSError as error:
            raise StorageError(
                f"the start of group {self._group!r} cannot be read ({error})"
            ) from error
        return start, begun

    def _parsed(self) -> tuple[dict[str, Any], bool]:
        found = json.loads(self._files.read_whole(self.path, _SIZE_MAX))
        # The name may not be durable yet, if its writer was killed; later reads must return the same offsets.
        self._files.sync_folder(self.path.parent)
        version, start, begun = found["format"], found["start"], found["begun"]
        if version != FORMAT or not isinstance(start, dict) or not isinstance(begun, bool):
            raise ValueError(f"format {version!r} is not {FORMAT}")
        return start, begun

    def write(self, start: dict[str, Any], *, begun: bool) -> None:
        """Store a start durably."""
        text = json.dumps({"format": FORMAT, "start": start, "begun": begun}, sort_keys=True)
        try:
            # Whole and durably, as the kernel writes its own marks.
            keep_folder(self._files, self.path.parent, self._home)
            self._files.write_whole(self.path, text.encode())
        except OSError as error:
            raise ConfigError(
                f"the start of group {self._group!r} cannot be stored in {self.path.parent} ({error}): make the "
                f"folder writable, or omit group and start at 'earliest' or at offsets"
            ) from error


class Follower:
    """Tracks the new messages of the stores. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._losses = Losses(fails=options.fail_on_loss)
        self._start: dict[str, Any] | None = None
        self._target: dict[NextOffset, int] | None = None
        self._newest: dict[str, Any] | None = None
        self._has_begun = False
        self._gone: set[NextOffset] = set()

    def _look(self) -> tuple[Locations, dict[NextOffset, RequestedRange]]:
        """Return the current ranges, including new stores, topics and queues."""
        locations = find_stores(self.options.paths)
        return locations, survey(self.options, locations, resolves=False)

    # --- the start

    def start(self) -> dict[str, Any]:
        """Return where the query starts; the same answer each time it is asked."""
        if self._start is None:
            self._start = self._kept_start() if self.options.group else self._new_start()
        return self._start

    def _new_start(self) -> dict[str, Any]:
        options = self.options
        locations = find_stores(options.paths)
        found = survey(options, locations)
        if options.starting.has(LATEST) and not options.group:
            logger.warning(
                "the stream starts at 'latest' and has no group: if it stops before its first batch is "
                "committed, the restarted query begins at the offsets that are the latest then, and skips the "
                "messages in between. To prevent this, give group, or startingOffsets as 'earliest' or JSON"
            )
        starts = {place: requested.start for place, requested in found.items()}
        return to_json(starts, locations, [store.name for store in locations.stores])

    def _kept_start(self) -> dict[str, Any]:
        kept = self._kept()
        found = kept.read()
        if found is not None and not found[1]:
            logger.info("group %s starts where %s says", self.options.group, kept.path)
            return found[0]
        if found is not None:
            logger.warning(
                "group %s was used by another query, whose first batch is committed (%s); this query has no batch "
                "in its checkpoint, so it starts where startingOffsets says",
                self.options.group, kept.path,
            )  # fmt: skip
        start = self._new_start()
        kept.write(start, begun=False)
        return start

    def _kept(self) -> KeptStart:
        paths = self.options.paths
        if len(paths) == 1 and is_dataset(Path(paths[0])):
            return KeptStart(Path(paths[0]), self.options.group)
        stores = find_stores(paths).stores
        # A pattern may match another store first than it did when the start was kept.
        homes = [Path(store.name) for store in stores if not store.is_remote]
        for kept in (KeptStart(home, self.options.group) for home in homes):
            if kept.exists():
                return kept
        if not stores or stores[0].is_remote:
            where = stores[0].name if stores else "an empty dataset"
            raise ConfigError(
                f"group: the start cannot be stored in {where}, which is read-only; omit group, and "
                f"start at 'earliest' or at offsets"
            )
        return KeptStart(Path(stores[0].name), self.options.group)

    def note_begun(self, offsets: Mapping[str, Any]) -> None:
        """Record that the batch that ends at these offsets is committed."""
        if not self.options.group or self._has_begun:
            return
        kept = self._kept()
        found = kept.read()
        if found is not None and not found[1] and found[0] != offsets:
            kept.write(found[0], begun=True)
        self._has_begun = found is None or found[1] or found[0] != offsets

    # --- what is new

    def fix_target(self) -> None:
        """Fix the end at the current ends, for a query that stops when it has read all existing messages."""
        self._target = {place: requested.stop for place, requested in self._look()[1].items()}

    def newest(self) -> dict[str, Any] | None:
        """Return the latest offsets that were seen."""
        return self._newest

    def latest(
        self, start: Mapping[str, Any] | None, *, rows: int = 0, size: int = 0
    ) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`; `start` itself if there are no new messages."""
        begin = self.start() if start is None else start
        self.note_begun(begin)
        locations, found = self._look()
        self._newest = to_json({place: s.stop for place, s in found.items()}, locations)
        before = from_json(begin, locations)
        stores = {store.name for store in locations.stores}
        known = stores if locations.is_one else set(begin)
        self._report_gone(before, found)
        starts, ends = {}, {}
        there = {place[:3] for place in found}
        away = {place: offset for place, offset in before.items() if place[:3] not in there}
        for place, requested in found.items():
            if self._target is not None and place not in self._target:
                if place in before:
                    starts[place] = ends[place] = before[place]
                continue
            starts[place] = ends[place] = self._begin(place, before, requested, known)
            if place not in before:
                continue
            end = (
                requested.stop if self._target is None else min(requested.stop, self._target[place])
            )
            ends[place] = max(end, starts[place])
        sizes = {place: found[place].bounds.record_bytes for place in ends}
        taken = limited(starts, ends, sizes, rows=rows, size=size)
        bare = stores - {place.store for place in found}
        return to_json({**away, **taken}, locations, known | bare)

    def _is_left_out(self, topic: str) -> bool:
        """Return whether messages of a topic wait, and it is not requested by name.

        A checkpoint may have offsets of them, of a run that requested them.
        """
        return is_waiting(topic) and not self.options.wants(topic)

    def _report_gone(
        self, before: Mapping[NextOffset, int], found: Mapping[NextOffset, RequestedRange]
    ) -> None:
        gone = {
            place for place in before
            if place not in found and before[place] > 0 and not self._is_left_out(place.topic)
        }  # fmt: skip
        # Said once while it lasts; as an error each time.
        self._gone &= gone
        there = {place[:3] for place in found}
        for place in sorted(gone - self._gone):
            is_anew = place[:3] in there
            what = (
                "was removed with its topic, which was created again"
                if is_anew
                else "no longer exists, or is not subscribed to"
            )
            self._losses.report(f"{place}, which was read up to {before[place]}, {what}")
            self._gone.add(place)

    def _begin(
        self,
        place: NextOffset,
        before: Mapping[NextOffset, int],
        requested: RequestedRange,
        known: set[str],
    ) -> int:
        """Return the offset at which reading a queue continues; a new queue begins at its earliest.

        The stores in `known` were part of the query before, so their new queues were empty then.
        """
        low, high = requested.bounds.min_offset, requested.bounds.max_offset
        if place not in before:
            if low > 0 and place.store in known:
                self._losses.report(f"{place} is new, and its first messages [0, {low}) are gone")
            return low
        at = before[place]
        if at < low:
            self._losses.report(
                f"messages [{at}, {low}) of {place} are gone: retention deleted them before they were read"
            )
        elif at > high:
            self._losses.report(
                f"{place} was read up to {at}, and now ends at {high}: it was created again, or truncated"
            )
        return min(max(at, low), high)

    # --- one batch

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[StoreSpan]]:
        """Return the tasks of the batch [start, end)."""
        locations, found = self._look()
        first, last = from_json(start, locations), from_json(end, locations)
        wanted = {}
        for place, stop in last.items():
            if place not in first:
                # A new queue; this batch only records it.
                continue
            at, requested = first[place], found.get(place)
            if requested is None:
                if stop > at and not self._is_left_out(place.topic):
                    self._losses.report(f"{place} no longer exists")
                continue
            if at > stop and self.options.fail_on_loss:
                raise StorageError(
                    f"the batch of {place} begins at {at}, after its end {stop}: the query was restarted before its "
                    f"first batch was committed, and started at another offset. Nothing was read. Use a new "
                    f"checkpoint, and give group, or startingOffsets as 'earliest' or JSON"
                )
            wanted[place] = self._there(place, at, stop, requested)
        return plan(wanted, locations.stores, self.options.min_partitions)

    def _there(
        self, place: NextOffset, start: int, stop: int, requested: RequestedRange
    ) -> RequestedRange:
        """Return the part of a batch that still exists."""
        low, high = requested.bounds.min_offset, requested.bounds.max_offset
        if start < min(low, stop):
            gone = min(low, stop)
            self._losses.report(
                f"messages [{start}, {gone}) of {place} are gone: retention deleted them before they were read"
            )
        if stop > max(high, start):
            self._losses.report(
                f"messages [{max(high, start)}, {stop}) of {place} are gone: it was created again, or truncated"
            )
        begin, end = max(start, low), min(stop, high)
        return requested._replace(start=begin, stop=max(begin, end))


# --- how much one batch reads


def limited(
    starts: Mapping[_K, int],
    ends: Mapping[_K, int],
    sizes: Mapping[_K, float],
    *,
    rows: int = 0,
    size: int = 0,
) -> dict[_K, int]:
    """Return the end offset of the batch for each queue of `ends`.

    As in Kafka's source, the limit is divided among the queues in proportion to their new messages, and each queue with
    new messages gets at least one, so no queue starves.

    Args:
        starts: the next message of each queue.
        ends: the end offset of each queue, not before its start.
        sizes: the mean record size of each, in bytes.
        rows: approximate maximum number of messages in total; 0 for no limit.
        size: approximate maximum number of bytes in total; 0 for no limit.
    """
    new = {place: ends[place] - starts[place] for place in ends}
    share = 1.0
    if rows:
        share = min(share, rows / max(sum(new.values()), 1))
    if size:
        total = sum(count * sizes[place] for place, count in new.items())
        share = min(share, size / max(total, 1.0))
    if share >= 1.0:
        return dict(ends)
    return {place: starts[place] + min(count, _part(count * share)) for place, count in new.items()}


def _part(wanted: float) -> int:
    # A share is a quotient: what should be whole may lie a little below.
    return math.ceil(wanted) if wanted < 1 else math.floor(wanted * (1 + 1e-12))
