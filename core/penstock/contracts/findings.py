"""Findings: the problems in a store that `verify` reports."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from penstock.contracts.dispatch_batch import DispatchBatch


class Finding(NamedTuple):
    """One problem in a store.

    Attributes:
        part: "log", "queue", "index", or a dispatcher's own word.
        path: the file.
        position: byte in the file; -1 if the finding is not about one byte.
        log_offset: log offset of the record; -1 if the finding is not about a record.
        text: the problem, in one sentence.
        what_now: what to do; `verify` fills it in if a checker leaves it empty, or sets `COPYING`.
        is_note: a remark, not a problem: it requires no repair, and nothing is refused because of it.
    """

    part: str
    path: Path
    position: int
    log_offset: int
    text: str
    what_now: str = ""
    is_note: bool = False

    def advised(self) -> "Finding":
        """Return the finding with `what_now` filled in."""
        if self.is_note or self.what_now not in ("", COPYING):
            return self
        derived = "`penstock repair --apply` rebuilds it from the log; it holds only derived data"
        return self._replace(what_now=_WHAT_NOW.get(self.part, derived))


# The `what_now` of a finding that is not corruption if the store was copied while it was written. In any other store,
# `verify` replaces it by the usual advice.
COPYING = "copied while it was written"

# What else helps against corruption in the log, and what to do about it.
ONLY_CUT = (
    "restore the segment from a copy; or `penstock repair --apply --cut` cuts the log at the first corruption, and saves what "
    "it cuts off"
)
CORRUPT_LOG = (
    "`penstock repair --apply --quarantine` notes it, so that the store opens for writing with all other messages; where that is "
    f"refused or leaves it, {ONLY_CUT}"
)

_WHAT_NOW = {
    "log": CORRUPT_LOG,
    "digest": "restore the segment from a copy; `penstock repair --apply` corrects a single flipped "
    "bit of a block, `--accept` accepts the bytes as they are",
    "marks": "`penstock repair --apply` rewrites it; until then an opening reads more of the log",
}


def damaged_blocks(path: Path, base_offset: int, start: int, stop: int) -> Finding:
    """Return the finding for a range of a segment that differs from its digest."""
    text = f"bytes {start} to {stop} have changed since the segment was sealed"
    return Finding("digest", path, start, base_offset + start, text)


class Checker(ABC):
    """Compares derived files with the log for `verify`; changes nothing.

    Several processes may use a splittable checker, each for a part of the batches. The result of each one's
    `seen` is then passed to `take` of the checker whose `start` and `finish` are called.
    """

    is_splittable: ClassVar[bool] = False

    def start(self) -> Iterator[Finding]:
        """Return the problems that the derived files show without the log."""
        yield from ()

    def damage(self, start: int, stop: int) -> None:  # noqa: B027 - optional
        """Note that the log has no valid records in [start, stop)."""

    def seen(self) -> object:
        """Return the state that `finish` needs of the batches so far, and reset it; must be picklable."""
        return None

    def take(self, seen: Any) -> None:  # noqa: B027 - optional
        """Add the state that another checker's `seen` returned."""

    @abstractmethod
    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """Return the problems for these records; each batch is passed once, in log order."""

    @abstractmethod
    def finish(self, end: int) -> Iterator[Finding]:
        """Return the problems with content of the files, below log offset `end`, for which no record was passed."""
