"""Which decisions of transactions have their messages in the log."""

from penstock.format.arrays import np
from penstock.log.atomic_batches import read_mark
from penstock.log.commit_log import CommitLog


def decided_batches(log: CommitLog, log_offset: int) -> set[int]:
    """Return the decisions, low 30 bits each, of the atomic batches that begin at `log_offset` or after it.

    A record begins at `log_offset`, or the log ends there. Recovery has cut off a batch that is not whole.
    """
    found = set[int]()
    start, end = max(log_offset, log.log.min_offset), log.end_offset
    for batch in log.batches(start, end):
        marks = batch.columns.prepared_offsets
        for number in marks[np.flatnonzero(marks < 0)].tolist():
            mark = read_mark(number)
            if mark is not None and mark.is_first and mark.is_decided:
                found.add(mark.decision)
    return found
