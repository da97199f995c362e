"""The position of a group in a queue: the committed offset, the journal, and the mark that connects them.

The committed offset (`config/consumerOffset.json`) is what brokers see. The writer raises it from the journals, and
notes in the marks from which offset to which. If the committed offset is neither of the two, somebody else has
committed it (a broker, `commit_offset`): then that offset counts, and the journal does not.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import attrs

from penstock.files import Files
from penstock_messaging.groups.entries import ENTRY_BYTES, valid_entries
from penstock_messaging.groups.fold import Fold, Position
from penstock_messaging.groups.marks import Mark, usable_marks
from penstock_messaging.groups.paths import GroupPaths

# The lower half of a generation: how often the writer has voided the journal.
VOIDED_BITS = 32
# A writer that writes marks again and again, while somebody reads them, would have to be this often in between.
_TRIES_MAX = 1000

# More than an owner writes before it starts a new file.
JOURNAL_BYTES_MAX = 128 << 20
FOREIGN = "it was written for another store"
DELETED = "its topic was deleted"
MOVED = "the group's offset was moved by another program, or messages were lost"
WENT_ON = "another program, such as a broker, has consumed all of it, and more"


@attrs.frozen
class GroupProgress:
    """A group's position in a queue, as far as it is known.

    Attributes:
        fold: the state of the journal, without the refusals that were taken in; None if there is none that counts.
        mark: the writer's mark; None if there is none that counts.
        committed: the committed offset; None if there is none.
        base: the group has consumed all below it; None if it has never consumed the queue.
        generation: of the queue.
        epoch: of the last owner.
        number: of the last event.
        note: why a journal does not count; "" if it counts or does not exist.
        moved: the committed offset is none of the writer's.
    """

    fold: Fold | None
    mark: Mark | None
    committed: int | None
    base: int | None
    generation: int
    epoch: int
    number: int
    note: str = ""
    moved: bool = False

    def position(self) -> Position | None:
        """Return the position; None if the group has never consumed the queue."""
        if self.base is None:
            return None
        if self.fold is None:
            return Position(self.base)
        self.fold.raise_base(self.base)
        return self.fold.position()


def expected_offsets(fold: Fold | None, mark: Mark | None) -> set[int] | None:
    """Return which committed offsets (-1: none) are our own; None if any may be, since nothing is known yet."""
    if fold is not None and (mark is None or (fold.moved and mark.epoch < fold.epoch)):
        # The writer has taken in nothing since this owner began.
        return {-1 if fold.seen is None else fold.seen}
    return None if mark is None else {mark.old, mark.new}


def level_of(note: str) -> int:
    """Return the level for logging why a journal does not count: deleting and consuming are no loss."""
    return logging.INFO if note.endswith((DELETED, WENT_ON)) else logging.WARNING


def _moved(fold: Fold, committed: int | None) -> str:
    """Return why a journal does not count whose group's offset is another one: that all in it is consumed says less."""
    return WENT_ON if committed is not None and fold.reach <= committed else MOVED


def _of_store(fold: Fold | None, store_id: int) -> int:
    """Return the epoch of a journal; 0 for one of another store."""
    return fold.epoch if fold is not None and fold.store == store_id else 0


def _counting(
    fold: Fold | None, mark: Mark | None, store_id: int, topic_generation: int
) -> tuple[Fold | None, Mark | None, int, str]:
    """Return the journal and the mark if they count, the queue's generation, and why the journal does not count."""
    if mark is not None and mark.generation >> VOIDED_BITS != topic_generation:
        mark = None
    generation = topic_generation << VOIDED_BITS if mark is None else mark.generation
    if fold is None:
        return None, mark, generation, ""
    if fold.store != store_id:
        return None, mark, generation, FOREIGN
    if fold.generation >> VOIDED_BITS != topic_generation:
        return None, mark, generation, DELETED
    if mark is not None and fold.generation != generation:
        return None, mark, generation, _moved(fold, mark.new)
    return fold, mark, fold.generation, ""


def resolve_position(
    fold: Fold | None,
    mark: Mark | None,
    committed: int | None,
    *,
    store_id: int,
    topic_generation: int,
    end: int | None = None,
) -> GroupProgress:
    """Return what a journal, a mark and a committed offset say together. Changes `fold`.

    With `end`, the end of the queue as only the writer knows it, a committed offset that its opening has set back to
    the end is not taken for one of another program: messages were lost, and the journal still counts for earlier ones.
    """
    given, known = fold, mark
    fold, mark, generation, note = _counting(fold, mark, store_id, topic_generation)
    epoch = max(0 if known is None else known.epoch, _of_store(given, store_id))
    number = max(
        0 if note == FOREIGN or given is None else given.number,
        0 if mark is None else max(mark.taken, mark.pending),
    )
    expected, is_set_back = expected_offsets(fold, mark), False
    if expected is not None and (-1 if committed is None else committed) not in expected:
        if committed is None or committed != end or max(expected) <= end:
            note = note if fold is None else _moved(fold, committed)
            at = committed
            return GroupProgress(None, mark, at, at, generation, epoch, number, note, moved=True)
        is_set_back = True
    base = committed
    if fold is not None:
        taken = 0 if mark is None else mark.taken
        fold.take_in(taken)
        base = fold.base
        if committed is not None and fold.reset <= taken:
            base = max(base, committed)
    return GroupProgress(fold, mark, committed, base, generation, epoch, number, note, moved=is_set_back)  # fmt: skip


def read_journal(files: Files, path: Path) -> Fold | None:
    """Return the state that a journal's file describes; None if there is no file, or no valid entry."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        size = min(file.size, JOURNAL_BYTES_MAX)
        return Fold.of(valid_entries(file.pread(size - size % ENTRY_BYTES, 0)))
    finally:
        file.close()


def read_resolved(
    files: Files,
    paths: GroupPaths,
    topic: str,
    queue: int,
    *,
    committed: Callable[[], int | None],
    store_id: int,
    topic_generation: int,
    end: int | None = None,
) -> GroupProgress:
    """Return what is known of a queue; consistent although the writer may take journals in at the same time."""

    def mark_now() -> Mark | None:
        return usable_marks(files, paths).get((topic, queue))

    def facts() -> tuple[int | None, Fold | None]:
        return committed(), read_journal(files, paths.journal(topic, queue))

    mark, (offset, fold) = mark_now(), facts()
    for _ in range(_TRIES_MAX):
        # The writer changes the marks before it changes the committed offset.
        before, mark = mark, mark_now()
        if mark == before:
            break
        offset, fold = facts()
    return resolve_position(fold, mark, offset, store_id=store_id, topic_generation=topic_generation,
        end=end)  # fmt: skip
