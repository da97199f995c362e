"""Decided acknowledgements that a queue's journal lacks, after a crash, or because it could not be written.

A decision speaks of one owner's turn in a queue: it says nothing once the queue was taken anew, or the group was set
elsewhere in it. So the next owner of a queue must know what is decided about the turn before; this module says that.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from penstock.contracts import Finding, SummaryLine
from penstock.errors import CorruptionError, PenstockError
from penstock.files import Files
from penstock_messaging.groups.fold import Range, merged
from penstock_messaging.groups.position import GroupProgress
from penstock_messaging.transactions.decision_file import (
    AckDecision,
    QueueAcks,
    decision_path,
    read_decisions,
)


def is_passed(acks: QueueAcks, resolved: GroupProgress) -> bool:
    """Return whether a decision no longer concerns a queue: it was claimed anew, or the group was moved in it."""
    fold = resolved.fold
    is_same_turn = (acks.generation, acks.epoch) == (resolved.generation, resolved.epoch)
    return fold is None or not is_same_turn or fold.reset > acks.number


def lacking(acks: QueueAcks, resolved: GroupProgress) -> Sequence[Range]:
    """Return the ranges of a decision if it counts for the queue's next owner and the journal lacks some of them."""
    fold = resolved.fold
    if fold is None or is_passed(acks, resolved):
        return ()
    known = merged(fold.acked, max(fold.base, resolved.base or 0))
    return () if merged([*known[1], *acks.ranges], known[0]) == known else acks.ranges


def about(acks: Iterable[QueueAcks], group: str, topic: str, queue: int) -> list[QueueAcks]:
    """Return those of one queue."""
    return [each for each in acks if (each.group, each.topic, each.queue) == (group, topic, queue)]


class DecidedElsewhere:
    """The decisions as a read-only process sees them: whether the writer has something to add. Safe from any thread."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root

    def ranges(
        self, group: str, topic: str, queue: int, resolved: GroupProgress
    ) -> Sequence[Range] | None:
        """Return nothing if the journal has all that may be decided; None if the process that writes must say what is.

        Raises `CorruptionError` if the file of decisions is corrupt: then the next opening for writing clears it up.
        """
        acks = (each for decision in self._decisions() for each in decision.acks)
        is_open = any(lacking(each, resolved) for each in about(acks, group, topic, queue))
        return None if is_open else ()

    def undecided(self, resolved: Callable[[str, str, int], GroupProgress]) -> int:
        """Return how many transactions acknowledge messages in a queue whose journal lacks that.

        `resolved` returns what is known about a group, topic and queue. Raises `CorruptionError` as `ranges` does.
        """
        return sum(
            any(
                lacking(each, resolved(each.group, each.topic, each.queue))
                for each in decision.acks
            )
            for decision in self._decisions()
        )

    def _decisions(self) -> Sequence[AckDecision]:
        found = read_decisions(self._files, self._root)
        if found.trouble:
            raise CorruptionError(
                decision_path(self._root), 0, "decisions of transactions", found.trouble,
                "open the store for writing: it uses what can be read",
            )  # fmt: skip
        return found.decisions


def summary_of(count: Callable[[], int]) -> list[SummaryLine]:
    """Return the line about transactions that are not decided; none if there is none."""
    key, what = "undecided", "transactions, not decided"
    try:
        found = count()
    except (PenstockError, OSError) as error:
        return [SummaryLine(key, what, f"not known: {error}", None)]
    text = f"{found}; the process that writes decides, or the next opening for writing"
    return [SummaryLine(key, what, text, {"open": found})] if found else []


def decision_findings(files: Files, root: Path) -> list[Finding]:
    """Return what is wrong with the file of decisions, for `verify`."""
    path = decision_path(root)
    try:
        trouble = read_decisions(files, root).trouble
    except OSError as error:
        trouble = f"it cannot be read ({error})"
    if not trouble:
        return []
    what_now = (
        "open the store for writing, which uses what can be read and keeps the file under another name; messages that "
        "a transaction had acknowledged just before a crash may be redelivered"
    )
    return [
        Finding("decisions", path, -1, -1, f"the decisions of transactions: {trouble}", what_now)
    ]
