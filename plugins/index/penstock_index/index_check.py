"""Compares the hash index with the log: every key in it once, every chain whole."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from penstock.batch import DispatchBatch
from penstock.findings import Checker, Finding
from penstock.record import ROLLBACK
from penstock_index.index_file import Peek


class IndexChecker(Checker):
    """One comparison of all index files with the log. Not thread-safe.

    All entries are held as pairs of log offset and hash, 12 bytes each.
    """

    def __init__(self, folder: Path, peeks: Callable[[], Iterator[Peek]]) -> None:
        self._folder = folder
        self._peeks = peeks
        self._pairs: np.ndarray | None = None
        self._early: list[Finding] = []

    def _load(self) -> np.ndarray:
        parts = []
        for peek in self._peeks():
            entries = peek.entries()
            self._early.extend(self._check_chains(peek, entries))
            pairs = np.empty(len(entries), [("offset", "<i8"), ("hash", "<i4")])
            pairs["offset"], pairs["hash"] = entries["log_offset"], entries["hash"]
            parts.append(pairs)
        whole = (
            np.concatenate(parts) if parts else np.empty(0, [("offset", "<i8"), ("hash", "<i4")])
        )
        return np.sort(whole, order=("offset", "hash"))

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
        wanted = np.empty(len(rows), self._pairs.dtype)
        wanted["offset"], wanted["hash"] = batch.log_offsets[rows], hashes
        low = np.searchsorted(self._pairs["offset"], batch.start_offset)
        high = np.searchsorted(self._pairs["offset"], batch.end_offset)
        yield from self._compare(np.sort(wanted, order=("offset", "hash")), self._pairs[low:high])

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
