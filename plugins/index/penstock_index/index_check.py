"""Compares the hash index with the log: every key in it once, every chain whole, every time right."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.batch import DispatchBatch
from penstock.findings import Checker, Finding
from penstock.record import ROLLBACK
from penstock_index.index_file import Peek, seconds_since

# What is kept of an entry. Of a file's first entry the seconds count from another base (see `IndexFile.add`).
_ENTRY = np.dtype(
    [("offset", "<i8"), ("hash", "<i4"), ("seconds", "<i4"), ("base", "<i8"), ("is_first", "?")]
)
_PAIR = ["offset", "hash"]


class _Claim(NamedTuple):
    """A record's store time, as a header has it."""

    path: Path
    position: int
    log_offset: int
    time_ms: int


class IndexChecker(Checker):
    """One comparison of all index files with the log. Not thread-safe.

    All entries are held at once, 25 bytes each.
    """

    def __init__(self, folder: Path, peeks: Callable[[], Iterator[Peek]]) -> None:
        self._folder = folder
        self._peeks = peeks
        self._pairs: np.ndarray | None = None
        self._early: list[Finding] = []
        self._claims: list[_Claim] = []

    def _load(self) -> np.ndarray:
        parts = [np.empty(0, _ENTRY)]
        for peek in self._peeks():
            entries = peek.entries()
            self._early.extend(self._check_chains(peek, entries))
            self._early.extend(self._check_header(peek, entries))
            part = np.zeros(len(entries), _ENTRY)
            part["offset"], part["hash"] = entries["log_offset"], entries["hash"]
            part["seconds"], part["base"] = entries["seconds"], peek.header.begin_ms
            part["is_first"][:1] = True
            parts.append(part)
        return np.sort(np.concatenate(parts), order=_PAIR)

    def _check_header(self, peek: Peek, entries: np.ndarray) -> Iterator[Finding]:
        if len(entries) == 0:
            return
        head = peek.header
        first, last = int(entries["log_offset"][0]), int(entries["log_offset"][-1])
        self._claims.append(_Claim(peek.path, 0, first, head.begin_ms))
        self._claims.append(_Claim(peek.path, 8, last, head.end_ms))
        slots = int((entries["previous"] == 0).sum())
        for position, what, found, right in (
            (16, "first log offset", head.begin_offset, first),
            (24, "last log offset", head.end_offset, last),
            (32, "count of slots", head.slot_count, slots),
        ):
            if found != right:
                text = f"the header's {what} is {found}, not {right}"
                yield Finding("index", peek.path, position, -1, text)

    @staticmethod
    def _check_chains(peek: Peek, entries: np.ndarray) -> Iterator[Finding]:
        slots, previous = peek.expected(entries)
        wrong = np.nonzero(entries["previous"] != previous)[0]
        for row in wrong[:10].tolist():
            position = peek.position_of(row + 1)
            yield Finding(
                "index", peek.path, position, int(entries["log_offset"][row]),
                f"entry {row + 1} points to entry {int(entries['previous'][row])}, not {int(previous[row])}",
            )  # fmt: skip
        table = peek.slots()
        for slot in np.nonzero(table != slots)[0][:10].tolist():
            yield Finding(
                "index", peek.path, 40 + 4 * slot, -1,
                f"slot {slot} points to entry {int(table[slot])}, not {int(slots[slot])}",
            )  # fmt: skip

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """See `Checker`."""
        if self._pairs is None:
            self._pairs = self._load()
            yield from self._early
        keys = batch.keys
        counted = batch.transaction_types[keys.rows] != ROLLBACK
        rows, hashes = keys.rows[counted], keys.hashes[counted]
        wanted = np.zeros(len(rows), _ENTRY)[_PAIR]
        wanted["offset"], wanted["hash"] = batch.log_offsets[rows], hashes
        low = np.searchsorted(self._pairs["offset"], batch.start_offset)
        high = np.searchsorted(self._pairs["offset"], batch.end_offset)
        found = self._pairs[low:high]
        yield from self._compare(np.sort(wanted, order=_PAIR), found[_PAIR])
        yield from self._check_times(batch, found)

    def _check_times(self, batch: DispatchBatch, found: np.ndarray) -> Iterator[Finding]:
        times = dict(zip(batch.log_offsets.tolist(), batch.store_times_ms.tolist(), strict=True))
        for claim in self._claims:
            if times.get(claim.log_offset, claim.time_ms) != claim.time_ms:
                text = f"the header's time {claim.time_ms} is not that of the record"
                yield Finding("index", claim.path, claim.position, claim.log_offset, text)
        found = found[~found["is_first"] & np.isin(found["offset"], batch.log_offsets)]
        rows = np.searchsorted(batch.log_offsets, found["offset"])
        right = seconds_since(batch.store_times_ms[rows], found["base"])
        for row in np.nonzero(right != found["seconds"])[0].tolist():
            text = (
                f"an entry has second {found['seconds'][row]} for a record of second {right[row]}"
            )
            yield self._finding(int(found["offset"][row]), text)

    def _compare(self, wanted: np.ndarray, found: np.ndarray) -> Iterator[Finding]:
        if len(wanted) == len(found) and (wanted == found).all():
            return
        need, need_counts = np.unique(wanted, return_counts=True)
        have, have_counts = np.unique(found, return_counts=True)
        there = dict(zip(have.tolist(), have_counts.tolist(), strict=True))
        for pair, count in zip(need.tolist(), need_counts.tolist(), strict=True):
            if there.pop(pair, 0) < count:
                yield self._finding(pair[0], f"a key with hash {pair[1]} is missing from the index")
        for offset, key_hash in there:
            yield self._finding(
                offset, f"the index has hash {key_hash}, which is no key of the record"
            )

    def _finding(self, log_offset: int, text: str) -> Finding:
        return Finding("index", self._folder, -1, log_offset, text)

    def finish(self, end: int) -> Iterator[Finding]:
        """See `Checker`."""
        if self._pairs is None:
            self._pairs = self._load()
            yield from self._early
