"""Compares the hash index with the log: each key is in it once, with its time, and every chain is complete."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import COPYING, Checker, DispatchBatch, Finding
from penstock.format.record import ROLLBACK
from penstock_index.index_file import Peek

# `seconds` count from the file's begin time; -1 for a file's first entry, which has another base.
_ROW = np.dtype([("offset", "<i8"), ("hash", "<i4"), ("seconds", "<i4"), ("file", "<u2")])
_KEY = ["offset", "hash"]
# Maximum number of findings of one kind in one file.
_FINDINGS_MAX = 10


class _Claim(NamedTuple):
    """A record's store time, as an index header states it."""

    path: Path
    position: int
    log_offset: int
    time_ms: int


class IndexChecker(Checker):
    """One comparison of all index files with the log. Not thread-safe.

    Header, entries and slots of a file change with every key. So copying a file while it is being written explains
    any error in it, and an opening for writing rebuilds such files.
    All entries are kept in memory, 18 bytes each.
    """

    is_splittable = True

    def __init__(
        self,
        folder: Path,
        peeks: Callable[[], Iterator[Peek]],
        strays: Callable[[], Iterator[Path]],
    ) -> None:
        self._folder = folder
        self._peeks = peeks
        self._strays = strays
        self._rows: np.ndarray | None = None
        self._begins: list[int] = []
        self._claims: list[_Claim] = []
        self._reached = 0
        self._corrupt_ranges: list[tuple[int, int]] = []

    def start(self) -> Iterator[Finding]:
        """See `Checker`: headers, chains, and files of a wrong length."""
        for path in self._strays():
            yield Finding(
                "index", path, -1, -1, "an index file of the wrong length or type", COPYING
            )
        for peek in self._peeks():
            entries = peek.entries()
            yield from self._check_header(peek, entries)
            yield from self._check_chains(peek, entries)

    @staticmethod
    def _check_header(peek: Peek, entries: np.ndarray) -> Iterator[Finding]:
        head, count = peek.header, len(entries)
        if head.index_count != count + 1 and not (count == 0 and head.index_count <= 0):
            text = f"the header counts {head.index_count - 1} entries, but the file has {count}"
            yield Finding("index", peek.path, 36, -1, text, COPYING)
        if count == 0:
            return
        offsets = entries["log_offset"]
        used = int((entries["previous"] == 0).sum())
        for position, what, stated, right in (
            (16, "begin offset", head.begin_offset, int(offsets[0])),
            (24, "end offset", head.end_offset, int(offsets[-1])),
            (32, "count of slots", head.slot_count, used),
        ):
            if stated != right:
                text = f"the header's {what} is {stated}, not {right}"
                yield Finding("index", peek.path, position, int(offsets[0]), text, COPYING)

    @staticmethod
    def _claims_of(peek: Peek, entries: np.ndarray) -> list["_Claim"]:
        if len(entries) == 0:
            return []
        first, last = int(entries["log_offset"][0]), int(entries["log_offset"][-1])
        head = peek.header
        return [_Claim(peek.path, 0, first, head.begin_ms), _Claim(peek.path, 8, last, head.end_ms)]

    @staticmethod
    def _check_chains(peek: Peek, entries: np.ndarray) -> Iterator[Finding]:
        slots, previous = peek.expected(entries)
        wrong = np.nonzero(entries["previous"] != previous)[0]
        for row in wrong[:_FINDINGS_MAX].tolist():
            position = peek.position_of(row + 1)
            yield Finding(
                "index", peek.path, position, int(entries["log_offset"][row]),
                f"entry {row + 1} points to entry {int(entries['previous'][row])}, not {int(previous[row])}",
                COPYING,
            )  # fmt: skip
        table = peek.slots()
        if len(table) != len(slots):
            yield Finding("index", peek.path, 40, -1, "the file ends within its slots", COPYING)
            return
        for slot in np.nonzero(table != slots)[0][:_FINDINGS_MAX].tolist():
            yield Finding(
                "index", peek.path, 40 + 4 * slot, -1,
                f"slot {slot} points to entry {int(table[slot])}, not {int(slots[slot])}",
                COPYING,
            )  # fmt: skip

    def _load(self) -> np.ndarray:
        parts = [np.empty(0, _ROW)]
        self._begins, self._claims = [], []
        for peek in self._peeks():
            entries = peek.entries()
            rows = np.empty(len(entries), _ROW)
            rows["offset"], rows["hash"] = entries["log_offset"], entries["hash"]
            # Values below zero are wrong; one of them, -1, is reserved for the first entries.
            rows["seconds"] = np.maximum(entries["seconds"], -2)
            rows["seconds"][rows["seconds"] == -1] = -2
            rows["file"] = len(self._begins)
            rows["seconds"][:1] = -1
            self._begins.append(peek.header.begin_ms)
            self._claims += self._claims_of(peek, entries)
            parts.append(rows)
        return np.sort(np.concatenate(parts), order=_KEY)

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        rows = self._rows = self._load() if self._rows is None else self._rows
        self._reached = max(self._reached, batch.end_offset)
        keys = batch.keys
        counted = batch.transaction_types[keys.rows] != ROLLBACK
        wanted = np.zeros(int(counted.sum()), _ROW)
        wanted["offset"] = batch.log_offsets[keys.rows[counted]]
        wanted["hash"] = keys.hashes[counted]
        low = np.searchsorted(rows["offset"], batch.start_offset)
        high = np.searchsorted(rows["offset"], batch.end_offset)
        wanted, found = _keys(np.sort(wanted, order=_KEY)), _keys(rows[low:high])
        if len(wanted) != len(found) or not (wanted == found).all():
            tagged, hashes = batch.columns.properties.tag_keys()
            tag_keys = zip(batch.log_offsets[tagged].tolist(), hashes.tolist(), strict=True)
            yield from self._compare(wanted, found, set(tag_keys))
        yield from self._compare_times(batch, rows[low:high])

    def _compare(
        self, wanted: np.ndarray, found: np.ndarray, tag_keys: set[tuple[int, int]]
    ) -> Iterator[Finding]:
        need, need_counts = np.unique(wanted, return_counts=True)
        have, have_counts = np.unique(found, return_counts=True)
        there = dict(zip(have.tolist(), have_counts.tolist(), strict=True))
        for pair, count in zip(need.tolist(), need_counts.tolist(), strict=True):
            if there.pop(pair, 0) < count:
                yield self._finding(pair[0], f"a key with hash {pair[1]} is missing from the index")
        for offset, key_hash in there:
            # Newer brokers index tags as well. Whether all tags are indexed is not checked.
            if (offset, key_hash) not in tag_keys:
                yield self._finding(
                    offset, f"the index has hash {key_hash}, which is not of a key of the record"
                )

    def _compare_times(self, batch: DispatchBatch, rows: np.ndarray) -> Iterator[Finding]:
        """Compare times: a look-up skips files and entries by their times, so wrong ones hide records."""
        times = dict(zip(batch.log_offsets.tolist(), batch.store_times_ms.tolist(), strict=True))
        for claim in self._claims:
            if times.get(claim.log_offset, claim.time_ms) != claim.time_ms:
                text = f"the header's time {claim.time_ms} is not the time of the record"
                yield Finding("index", claim.path, claim.position, claim.log_offset, text, COPYING)
        at = np.searchsorted(batch.log_offsets, rows["offset"])
        known = (at < len(batch)) & (rows["seconds"] != -1)
        rows, at = rows[known], at[known]
        known = batch.log_offsets[at] == rows["offset"]
        rows, at = rows[known], at[known]
        begins = np.array(self._begins, np.int64)[rows["file"]]
        right = np.clip((batch.store_times_ms[at] - begins) // 1000, 0, (1 << 31) - 1)
        right[begins <= 0] = 0
        wrong = rows["seconds"] != right
        for row, seconds in zip(rows[wrong].tolist(), right[wrong].tolist(), strict=True):
            yield self._finding(
                row[0],
                f"an entry has the time difference {row[2]} s, but its record requires {seconds} s",
            )

    def _finding(self, log_offset: int, text: str) -> Finding:
        return Finding("index", self._folder, -1, log_offset, text, COPYING)

    def damage(self, start: int, stop: int) -> None:
        """See `Checker`: entries whose records are lost in a corrupt range are not findings."""
        self._corrupt_ranges.append((start, stop))

    def seen(self) -> object:
        corrupt, self._corrupt_ranges = self._corrupt_ranges, []
        return self._reached, corrupt

    def take(self, seen: Any) -> None:
        self._reached = max(self._reached, seen[0])
        self._corrupt_ranges.extend(seen[1])

    def finish(self, end: int) -> Iterator[Finding]:
        """See `Checker`. Entries at or after `end` belong to an active writer."""
        rows = self._rows = self._load() if self._rows is None else self._rows
        offsets = rows["offset"]
        extra = (offsets < 0) | ((offsets >= self._reached) & (offsets < end))
        for start, stop in self._corrupt_ranges:
            extra &= (offsets < start) | (offsets >= stop)
        if extra.any():
            text = f"{int(extra.sum())} entries belong to no record; the first has this log offset"
            yield self._finding(int(offsets[extra][0]), text)


def _keys(rows: np.ndarray) -> np.ndarray:
    keys = np.empty(len(rows), [(name, _ROW[name]) for name in _KEY])
    for name in _KEY:
        keys[name] = rows[name]
    return keys
