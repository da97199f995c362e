"""Which decisions of transactions have all their messages in the log."""

from collections.abc import Iterator

from penstock.format.arrays import np
from penstock.log.atomic_batches import batch_marks, read_mark
from penstock.log.commit_log import CommitLog


def decided_batches(log: CommitLog, log_offset: int) -> set[int]:
    """Return the decisions, low 30 bits each, of the whole atomic batches that begin at `log_offset` or after it.

    A record begins at `log_offset`, or the log ends there. Recovery has cut off a batch whose end is missing; but a broker may
    have opened the store before, and kept a part of a batch, which does not count.
    """
    found = set[int]()
    decision = other = reached = end = 0
    for number, at, size in _marked(log, max(log_offset, log.log.min_offset)):
        if end and at == reached and number == other:
            reached += size
        else:
            reached, end, mark, segment = at + size, 0, read_mark(number), log.log.find(at)
            if mark is None or segment is None or not (mark.is_first and mark.is_decided):
                continue
            base, decision = segment.base_offset, mark.decision
            if not reached <= base + mark.end <= segment.end_offset:
                continue
            end, other = base + mark.end, batch_marks(at - base, mark.end, decision)[1]
        if reached == end:
            found.add(decision)
            end = 0
    return found


def _marked(log: CommitLog, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield mark, log offset and size of each record that has a mark, well-formed or not."""
    for batch in log.batches(start, log.end_offset):
        columns = batch.columns
        rows = np.flatnonzero(columns.prepared_offsets < 0)
        parts = columns.prepared_offsets, columns.log_offsets, columns.sizes
        yield from zip(*(part[rows].tolist() for part in parts), strict=True)
