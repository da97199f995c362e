"""What is wrong in a store, as `verify` tells it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from penstock.contracts.dispatch_batch import DispatchBatch


class Finding(NamedTuple):
    """One thing that is wrong in a store.

    Attributes:
        part: "log", "queue", "index", or a dispatcher's own word.
        path: the file.
        position: byte in the file; -1 where no one byte is meant.
        log_offset: the record it is about; -1 for none.
        text: what is wrong, in one sentence.
        what_now: which step helps; `verify` fills it in where a checker leaves it empty, or `COPYING`.
        is_note: it is worth knowing and nothing is wrong: no reason to repair, or to refuse anything.
    """

    part: str
    path: Path
    position: int
    log_offset: int
    text: str
    what_now: str = ""
    is_note: bool = False

    def advised(self) -> "Finding":
        """Return it with what to do now."""
        if self.is_note or self.what_now not in ("", COPYING):
            return self
        derived = "`penstock repair --apply` makes it anew from the log; nothing in it is original"
        return self._replace(what_now=_WHAT_NOW.get(self.part, derived))


# What a checker says of a finding that is no corruption where the store was copied while it was written; in any
# other store the usual advice takes its place.
COPYING = "copied while it was written"

_WHAT_NOW = {
    "log": "restore the segment from a copy; or see what `penstock repair` would do: without --cut "
    "it keeps every byte, with --cut it cuts the log at the first damage",
    "digest": "restore the segment from a copy; `penstock repair --apply` turns back a single flipped "
    "bit of a block, `--accept` takes the bytes as they are",
    "marks": "`penstock repair --apply` writes it anew; until then opening reads more of the log",
}


def damaged_blocks(path: Path, base_offset: int, start: int, stop: int) -> Finding:
    """Return what there is to say of a stretch of a segment that differs from its digest."""
    text = f"bytes {start} to {stop} are not what they were when the segment was sealed"
    return Finding("digest", path, start, base_offset + start, text)


class Checker(ABC):
    """Compares derived files with the log for `verify`; changes nothing.

    A checker that is splittable may be used for some of the batches only, in a process of its own;
    then `seen` of each goes into `take` of the one that does `start` and `finish`.
    """

    is_splittable: ClassVar[bool] = False

    def start(self) -> Iterator[Finding]:
        """Return what the derived files show by themselves."""
        yield from ()

    def damage(self, start: int, stop: int) -> None:  # noqa: B027 - may be left out
        """Take note that the log has no sound records in [start, stop)."""

    def seen(self) -> object:
        """Return what `finish` must know of the batches so far, and forget it; can be pickled."""
        return None

    def take(self, seen: Any) -> None:  # noqa: B027 - may be left out
        """Take in what another one has seen."""

    @abstractmethod
    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """Return what is wrong for these records; batches come in log order, all once."""

    @abstractmethod
    def finish(self, end: int) -> Iterator[Finding]:
        """Return what is in the files for records below `end` beyond those that came."""
