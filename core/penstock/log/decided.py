"""Which decisions of transactions have their messages in the log."""

from collections.abc import Iterator

from penstock.format.arrays import np
from penstock.log.atomic_batches import batch_marks, read_mark
from penstock.log.commit_log import CommitLog


def decided_batches(log: CommitLog, log_offset: int) -> set[int]:
    """Return the decisions, low 30 bits each, of the whole atomic batches that begin at `log_offset` or after it.

    A record begins at `log_offset`, or the log ends there. Recovery cuts off a batch that is not whole; but another program may have
    written the store between, and kept a part, which decides nothing.
    """
    found = set[int]()
    decision = other = reached = end = 0
    for number, at, size in _marked(log, log_offset):
        if not (end and at == reached and number == other):
            mark, segment = read_mark(number), log.log.find(at)
            end = 0
            if mark is None or segment is None or not (mark.is_first and mark.is_decided):
                continue
            decision, end = mark.decision, segment.base_offset + mark.end
            start = at - segment.base_offset
            other = batch_marks(start, mark.end, decision)[1] if start < mark.end else 0
        reached = at + size
        if reached == end:
            found.add(decision)
        if reached >= end:
            end = 0
    return found


def _marked(log: CommitLog, log_offset: int) -> Iterator[tuple[int, int, int]]:
    """Return the mark, log offset and size of each record with a mark."""
    for batch in log.batches(max(log_offset, log.log.min_offset), log.end_offset):
        columns = batch.columns
        at = np.flatnonzero(columns.prepared_offsets < 0)
        parts = columns.prepared_offsets[at], columns.log_offsets[at], columns.sizes[at]
        yield from zip(*(part.tolist() for part in parts), strict=True)
