"""Queue offsets as evidence: in one life of a queue they count up by one.

The body's CRC covers no header. Where records do not end in a CRC of their own, a flipped bit in a queue offset,
a queue's number, a topic or a transaction flag leaves a record that is valid by itself, and wrong. What shows it
is the count of its queue:

    * A record that breaks the count is corrupt if later records of the queue go on as if it had not: n, X, n+2,
      or n, X, n+1. Where none follow, it is corrupt if the entry for the offset that was due points at it, or if
      Penstock wrote it: Penstock never breaks the count. A broker's record that says 0 where no single flipped bit
      explains it, and whose entry is where the queue ended, is not: brokers restart queues at 0 like that.
    * A record is corrupt if the entry of another queue, or of another offset, points at it, and exactly that
      offset is missing in that queue, unless later records of its queue continue it.
    * A break that later records continue (a restart at 0, a repeat, a gap) begins a new life. Brokers leave such
      logs: topics that were deleted and made again, idle topics restarted, 5.0 to 5.3.2 after a clean stop with
      lagging queues. It is worth a note and nothing else.

Not counted: prepared and rolled back messages. An inner batch counts INNER_NUM. The first record of a queue is
free where the log does not begin at 0, and so is a gap that corrupt bytes before it explain. A record that ends
in a CRC of its own bytes is what was written, whatever its count.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from penstock.errors import OffsetError
from penstock.format.columns import RecordColumns
from penstock.format.names import topic_of
from penstock.format.record import (
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    PREPARED,
    ROLLBACK,
    TRANSACTION_MASK,
    MalformedRecordError,
    RecordFields,
    decode_record,
)
from penstock.format.validity import ends_in_own_crc
from penstock.log.segmented_log import Rejected, SegmentedLog

INNER_BATCH = 0x80
# So many breaks of one queue wait for what follows them.
_PENDING_MAX = 16
# So many missing offsets of a queue are looked up among its entries.
_MISSING_MAX = 256
_NOTES_MAX = 100

Queue = tuple[bytes, int]


class Note(NamedTuple):
    """A new life of a queue: no corruption, but worth knowing."""

    log_offset: int
    text: str


@attrs.frozen
class QueueHistory:
    """What the counts of all queues show.

    Attributes:
        rejected: log offset of each corrupt record, with its size and the reason.
        notes: the first lives after the first one of each queue.
    """

    rejected: dict[int, Rejected]
    notes: list[Note]


class Due(NamedTuple):
    """The offset that is due in a queue, and how many bytes of the log may hold records that nobody has counted."""

    offset: int
    unseen_bytes: int = 0


class _Run(NamedTuple):
    """Records of one queue that count up, one after the other in the log."""

    first: int
    following: int
    log_offset: int
    size: int
    records: int


@attrs.define(eq=False)
class _Life:
    """What is known of a queue so far: the offset that is due, and breaks that wait for what follows them."""

    due: int
    lost_bytes: int
    unseen_bytes: int = 0
    # The life's only record so far.
    single: _Run | None = None
    pending: list[_Run] = attrs.Factory(list)


class QueueLives:
    """Counts the records of a log in its order; says at the end which are corrupt. Not thread-safe.

    Args:
        log: the log, with its witness.
        due_at: returns the offset that is due in a queue whose first record is met, or None where it is not known.
        is_own: returns whether Penstock wrote the record at a log offset.
        gaps: ranges of the log that a repair covered with a blank record, ascending.
    """

    def __init__(
        self,
        log: SegmentedLog,
        due_at: Callable[[Queue], Due | None],
        is_own: Callable[[int], bool],
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._log = log
        self._due_at = due_at
        self._is_own = is_own
        self._gaps = deque(gaps)
        self._lives: dict[Queue, _Life] = {}
        self._lost_bytes = 0
        self._rejected: dict[int, Rejected] = {}
        self._notes: list[Note] = []
        # The first record of each new life.
        self._firsts: set[int] = set()

    def add(self, columns: RecordColumns) -> None:
        """Count valid records; they come in log order, all once."""
        while self._gaps and len(columns) and self._gaps[0][1] <= int(columns.log_offsets[0]):
            self.lose(*self._gaps.popleft())
        for queue, run in _runs(columns):
            self._take(queue, run)

    def lose(self, start: int, stop: int) -> None:
        """Take note that the log has no valid records in [start, stop): offsets may be missing after it."""
        self._lost_bytes += stop - start

    def finish(self) -> QueueHistory:
        """Return what the counts show."""
        for queue, life in self._lives.items():
            self._settle(queue, life)
            for run in life.pending:
                self._judge(queue, run, life.due)
            if not life.pending:
                self._look_for_missing(queue, life.due, self._end(queue))
        return QueueHistory(self._rejected, self._notes[:_NOTES_MAX])

    def _end(self, queue: Queue) -> int:
        return 0 if self._log.witness is None else self._log.witness.end(*queue)

    # --- counting

    def _take(self, queue: Queue, run: _Run) -> None:
        life = self._lives.get(queue)
        if life is None:
            known = self._due_at(queue)
            expected = known or Due(run.first)
            life = self._lives[queue] = _Life(expected.offset, 0, expected.unseen_bytes)
            if known is None:
                life.due = run.following
                life.single = run if run.records == 1 else None
                return
        pending, due = life.pending, life.due
        if pending and run.first == pending[-1].following:
            # The last break goes on: a new life. What stood alone between the lives is judged by itself.
            last = pending.pop()
            self._change(queue, life, last)
            self._continue(life, run)
        elif run.first in (due, due + len(pending)):
            for broken in pending:
                self._reject_odd(queue, broken, due, run.first)
            self._continue(life, run)
        elif self._may_be_lost(life, run):
            self._continue(life, run)
        elif run.records > 1:
            self._change(queue, life, run)
        else:
            pending.append(run)
            if len(pending) > _PENDING_MAX:
                self._judge(queue, pending.pop(0), due)

    def _may_be_lost(self, life: _Life, run: _Run) -> bool:
        """Return whether corrupt bytes since the queue's last record explain the offsets that are missing."""
        lost = self._lost_bytes - life.lost_bytes
        missing = run.first - life.due
        return lost > 0 and not life.pending and 0 < missing <= lost // FIXED_SIZE + 1

    def _continue(self, life: _Life, run: _Run) -> None:
        life.single = None
        life.pending.clear()
        life.due, life.lost_bytes = run.following, self._lost_bytes

    def _change(self, queue: Queue, life: _Life, run: _Run) -> None:
        """Go on with a run that breaks the count of its queue: after corrupt records, or in a new life."""
        for broken in life.pending:
            self._judge(queue, broken, life.due)
        self._settle(queue, life)
        self._firsts.add(run.log_offset)
        missing = max(run.first - life.due, 0)
        if not missing or self._look_for_missing(queue, life.due, run.first) < missing:
            self._note(queue, run, life.due)
        self._continue(life, run)

    def _note(self, queue: Queue, run: _Run, due: int) -> None:
        """Take note of a new life."""
        self._firsts.add(run.log_offset)
        text = (
            f"queue {_name(queue)} goes on at {run.first} where {due} was due: a new life of the queue, as "
            f"after its topic was deleted"
        )
        self._notes.append(Note(run.log_offset, text))

    def _settle(self, queue: Queue, life: _Life) -> None:
        single, life.single = life.single, None
        if single is not None:
            self._judge(queue, single, single.first)

    # --- judging

    def _reject_odd(self, queue: Queue, run: _Run, due: int, following: int) -> None:
        """Reject a record that later ones of its queue do not know of."""
        if self._is_restart(queue, run, due):
            self._note(queue, run, due)
            return
        self._reject(
            run.log_offset,
            run.size,
            f"it says queue offset {run.first} of queue {_name(queue)}, where {due} was due, and the queue "
            f"goes on at {following} as if it had not",
        )

    def _judge(self, queue: Queue, run: _Run, due: int) -> None:
        """Decide about a record that breaks the count and that none of its queue follows."""
        witness = self._log.witness
        here = (run.log_offset, run.size)
        if witness is not None and witness.place(*queue, run.first) == here:
            return
        says = f"it says queue offset {run.first} of queue {_name(queue)}"
        if self._is_restart(queue, run, due):
            self._note(queue, run, due)
        elif witness is not None and due != run.first and witness.place(*queue, due) == here:
            self._reject(*here, f"{says}, and the queue's entry {due} points at it")
        elif self._may_be_unseen(queue, run, due):
            return
        elif run.first not in (0, due) and self._is_own(run.log_offset):
            self._reject(*here, f"{says}, where {due} was due, and Penstock wrote it")

    def _may_be_unseen(self, queue: Queue, run: _Run, due: int) -> bool:
        """Return whether the offsets that are missing may be in records before the walk that no entry names yet."""
        return 0 < run.first - due <= self._lives[queue].unseen_bytes // FIXED_SIZE

    def _is_restart(self, queue: Queue, run: _Run, due: int) -> bool:
        """Return whether a broker began a queue anew at 0 and entered that record where the queue ended.

        It does with what it had not entered when it was killed. One flipped bit makes 0 of a power of two only.
        """
        witness = self._log.witness
        return (
            run.first == 0
            and due.bit_count() > 1
            and not self._is_own(run.log_offset)
            and witness is not None
            and witness.place(*queue, due) == (run.log_offset, run.size)
        )

    def _look_for_missing(self, queue: Queue, start: int, stop: int) -> int:
        """Reject records that entries of missing offsets point at, and that say to be something else.

        Returns how many.
        """
        if self._log.witness is None:
            return 0
        before = len(self._rejected)
        for ordinal in range(start, min(stop, start + _MISSING_MAX)):
            place = self._log.witness.place(*queue, ordinal)
            fields = None if place is None else self._fields_at(*place)
            if place is None or fields is None:
                continue
            if not self._is_at_home(fields, queue, ordinal, place):
                says = f"{fields.queue_offset} of {_name((fields.topic, fields.queue))}"
                self._reject(
                    *place,
                    f"entry {ordinal} of queue {_name(queue)} points at it, and that offset is missing in the "
                    f"queue; the record says {says}",
                )
        return len(self._rejected) - before

    def _is_at_home(
        self, fields: RecordFields, queue: Queue, ordinal: int, place: tuple[int, int]
    ) -> bool:
        """Return whether a record is where it says to be, by that offset or by another queue's entry.

        So is the first one of a new life: brokers enter a record with offset 0 wherever its queue ends.
        """
        if _is_at(fields, queue, ordinal):
            return True
        if place[0] in self._firsts and (fields.topic, fields.queue) == queue:
            return True
        if fields.sys_flag & TRANSACTION_MASK in (PREPARED, ROLLBACK) or self._log.witness is None:
            return False
        said = self._log.witness.place(fields.topic, fields.queue, fields.queue_offset)
        return said == place

    def _fields_at(self, log_offset: int, size: int) -> RecordFields | None:
        segment = self._log.find(log_offset)
        if segment is None or not FIXED_SIZE <= size <= segment.end_offset - log_offset:
            return None
        try:
            fields = decode_record(bytes(self._log.read(log_offset, size)))
        except (MalformedRecordError, OffsetError, OSError):
            return None
        return fields if fields.log_offset == log_offset else None

    def _reject(self, log_offset: int, size: int, reason: str) -> None:
        if not self._is_proven(log_offset, size):
            self._rejected.setdefault(log_offset, Rejected(size, reason))

    def _is_proven(self, log_offset: int, size: int) -> bool:
        """Return whether a record ends in a CRC of its own bytes."""
        try:
            record = bytes(self._log.read(log_offset, size))
            has_room = len(decode_record(record).properties) >= CRC_PROPERTY_SIZE
        except (MalformedRecordError, OffsetError, OSError):
            return True
        return has_room and ends_in_own_crc(record)


def _is_at(fields: RecordFields, queue: Queue, ordinal: int) -> bool:
    is_counted = fields.sys_flag & TRANSACTION_MASK not in (PREPARED, ROLLBACK)
    return is_counted and (fields.topic, fields.queue, fields.queue_offset) == (*queue, ordinal)


def _name(queue: Queue) -> str:
    topic = topic_of(queue[0])
    return f"{queue[0]!r}/{queue[1]}" if topic is None else f"{topic}/{queue[1]}"


def _runs(columns: RecordColumns) -> Iterator[tuple[Queue, _Run]]:
    """Yield the runs of each queue among some records, those of one queue in their order."""
    types = columns.transaction_types
    counted = np.flatnonzero((types != PREPARED) & (types != ROLLBACK))
    if len(counted) == 0:
        return
    names, rows = columns.topics
    topics, queues, offsets = rows[counted], columns.queues[counted], columns.queue_offsets[counted]
    steps = _steps(columns)[counted]
    order = np.lexsort((queues, topics))
    topics, queues, offsets, steps = topics[order], queues[order], offsets[order], steps[order]
    places = counted[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (
        (topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])
        | (offsets[1:] != offsets[:-1] + steps[:-1])
    )  # fmt: skip
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(order)) - 1
    log_offsets, sizes = columns.log_offsets, columns.sizes
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        row = int(places[first])
        yield (names[int(topics[first])], int(queues[first])), _Run(
            int(offsets[first]), int(offsets[last] + steps[last]), int(log_offsets[row]),
            int(sizes[row]), last - first + 1,
        )  # fmt: skip


def _steps(columns: RecordColumns) -> np.ndarray:
    """Return how far each record moves its queue on: an inner batch by the messages in it."""
    steps = np.ones(len(columns), np.int64)
    batches = np.flatnonzero(columns.sys_flags & INNER_BATCH)
    if len(batches):
        numbers = columns.rows(batches).properties.named(b"INNER_NUM")
        for row, text in zip(numbers.rows.tolist(), numbers.texts(), strict=True):
            if text.isdigit() and int(text[:9]) > 0:
                steps[batches[row]] = int(text[:9])
    return steps
