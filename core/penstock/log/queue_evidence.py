"""Evidence of the queues about records: queue entries, and queue offsets, which count up by one in each generation.

Entries are derived, and have no checksum of their own. So an entry alone never makes a record valid or corrupt;
it decides only between two interpretations of the log that are both possible (see also `resync`).

The body's CRC does not cover the header. If records do not end in a CRC of their own, a flipped bit in a queue offset,
a queue's number, a topic or a transaction flag leaves a record that passes all checks, and is wrong. The sequence of
queue offsets reveals it:

    * A record that breaks the sequence is corrupt if later records of the queue continue without it: n, X, n+2, or
      n, X, n+1. If no record follows, it is corrupt if the entry for the expected offset points at it, or if Penstock
      wrote it: Penstock never breaks the sequence. It is not corrupt if as many corrupt records lie between it and the
      one before as offsets are missing: of these one may have lost its queue. A broker's record with offset 0 is not
      corrupt if no single flipped bit explains the 0, and its entry is at the queue's end: brokers restart queues at 0
      in this way.
    * A record is corrupt if the entry of another queue, or of another offset, points at it, and exactly that
      offset is missing in that queue, unless later records of its own queue continue its sequence.
    * A break that later records continue (a restart at 0, a repeat, a gap) begins a new generation. Brokers leave such
      logs if a topic was deleted and created again, or if an idle topic was restarted. Versions 5.0 to 5.3.2 also do so
      after a clean stop with lagging queues. Such a break is only noted.

Prepared and rolled back messages are not counted. An inner batch counts as INNER_NUM messages. The first record of a
queue may have any offset if the log does not begin at 0; a gap is accepted if corrupt bytes before it explain it. A
record that ends in a valid CRC of its own bytes is never rejected.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import attrs

from penstock.contracts import Dispatcher, QueueReader, is_light
from penstock.errors import OffsetError, StorageError
from penstock.format.arrays import np
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
from penstock.log.segmented_log import Rejected, SegmentedLog, Witness

# So many messages of a corrupt range are named.
_NAMED = 3
# In so many queues is searched for them: each search takes some reads.
_SEARCHES_MAX = 100_000


class EntryWitness:
    """A `Witness` that reads a queue index. Entries that cannot be read are no evidence."""

    def __init__(self, index: QueueReader) -> None:
        self._index = index
        self._searches_left = _SEARCHES_MAX

    def place(self, topic: bytes, queue: int, queue_offset: int) -> tuple[int, int] | None:
        """See `Witness`."""
        name = topic_of(topic)
        if name is None or queue < 0 or queue_offset < 0:
            return None
        try:
            return self._index.place(name, queue, queue_offset)
        except (OSError, StorageError):
            return None

    def end(self, topic: bytes, queue: int) -> int:
        """See `Witness`."""
        name = topic_of(topic)
        if name is None or queue < 0:
            return 0
        try:
            return self._index.max_offset(name, queue)
        except (OSError, StorageError):
            return 0

    def within(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """See `Witness`."""
        for topic, queue in self._index.queues():
            self._searches_left -= 1
            if self._searches_left < 0 or is_light(topic):
                continue
            key = topic.encode(), queue
            ordinal = end_before(self, key, start)
            while (place := self.place(*key, ordinal)) is not None and start <= place[0] < stop:
                yield topic, queue, ordinal
                ordinal += 1


def use_entries(log: SegmentedLog, dispatchers: Iterable[Dispatcher]) -> None:
    """Set the queue index among these dispatchers as the log's witness."""
    index = next((each for each in dispatchers if isinstance(each, QueueReader)), None)
    log.witness = None if index is None else EntryWitness(index)


def end_before(witness: Witness, queue: tuple[bytes, int], log_offset: int) -> int:
    """Return the queue offset after the last entry of a record before `log_offset`; entries are in ascending order."""

    def is_before(ordinal: int) -> bool:
        place = witness.place(*queue, ordinal)
        return place is not None and place[0] < log_offset

    low = high = witness.end(*queue)
    step = 1
    while low > 0 and not is_before(low - 1):
        high = low - 1
        low, step = max(low - step, 0), step * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if is_before(middle) else (low, middle)
    return low


def count_within(log: SegmentedLog, start: int, stop: int) -> int:
    """Return how many queue entries point into a corrupt range; 0 if the queues cannot be read."""
    return 0 if log.witness is None else sum(1 for _ in log.witness.within(start, stop))


def messages_within(log: SegmentedLog, start: int, stop: int) -> str:
    """Return the messages whose entries point into a corrupt range, in parentheses; empty if there are none."""
    found = () if log.witness is None else log.witness.within(start, stop)
    names = [
        f"{topic}, queue {queue}, offset {at}" for topic, queue, at in islice(found, _NAMED + 1)
    ]
    names[_NAMED:] = ["and others"] if len(names) > _NAMED else []
    return f" ({'; '.join(names)})" if names else ""


INNER_BATCH = 0x80
# The maximum number of undecided breaks of one queue.
_PENDING_MAX = 16
# The maximum number of missing offsets of a queue that are looked up among its entries.
_MISSING_MAX = 256
_NOTES_MAX = 100

Queue = tuple[bytes, int]


class Note(NamedTuple):
    """A new generation of a queue: not corruption, but reported."""

    log_offset: int
    text: str


@attrs.frozen
class QueueHistory:
    """The result of checking the offsets of all queues.

    Attributes:
        rejected: by log offset, the size of each corrupt record and the reason.
        notes: the new generations of queues; at most `_NOTES_MAX`.
    """

    rejected: dict[int, Rejected]
    notes: list[Note]


class Due(NamedTuple):
    """The expected offset of a queue, and how many bytes of the log may hold records that were not counted."""

    offset: int
    unseen_bytes: int = 0


class _Run(NamedTuple):
    """Consecutive records of one queue whose offsets count up by one."""

    first: int
    following: int
    log_offset: int
    size: int
    records: int


@attrs.define(eq=False)
class _Generation:
    """The state of a queue so far: the expected offset, and breaks that are not decided yet."""

    due: int
    lost_bytes: int
    unseen_bytes: int = 0
    # The log offset of the last run that counts.
    reached: int = -1
    pending: list[_Run] = attrs.Factory(list)


class QueueGenerations:
    """Counts the records of a log in log order, and determines which are corrupt. Not thread-safe.

    Args:
        log: the log, with its witness.
        due_at: returns the expected offset of a queue's first record, or None if it is not known.
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
        self._generations: dict[Queue, _Generation] = {}
        self._lost_bytes = 0
        self._rejected: dict[int, Rejected] = {}
        self._notes: list[Note] = []
        # The first record of each new generation.
        self._firsts: set[int] = set()
        # Breaks that are corrupt unless corrupt records explain them: queue, run, expected offset, the run before.
        self._jumps: list[tuple[Queue, _Run, int, int]] = []

    def add(self, columns: RecordColumns) -> None:
        """Count valid records; each must be passed once, in log order."""
        while self._gaps and len(columns) and self._gaps[0][1] <= int(columns.log_offsets[0]):
            self.lose(*self._gaps.popleft())
        for queue, run in _runs(columns):
            self._add_run(queue, run)

    def lose(self, start: int, stop: int) -> None:
        """Note that the log has no valid records in [start, stop): queue offsets may be missing after that range."""
        self._lost_bytes += stop - start

    def finish(self) -> QueueHistory:
        """Decide the remaining breaks; return the corrupt records and the notes."""
        for queue, generation in self._generations.items():
            for run in generation.pending:
                self._judge(queue, run, generation.due)
            if not generation.pending:
                self._look_for_missing(queue, generation.due, self._end(queue))
        # In log order: one that is rejected here may explain a later one.
        for queue, run, due, after in sorted(self._jumps, key=lambda jump: jump[1].log_offset):
            lost = sum(after < at < run.log_offset for at in self._rejected)
            if not 0 < run.first - due <= lost:
                says = f"it states offset {run.first} of queue {_name(queue)}, {due} was expected"
                self._reject(run.log_offset, run.size, f"{says}, and Penstock wrote it")
        return QueueHistory(self._rejected, self._notes[:_NOTES_MAX])

    def _end(self, queue: Queue) -> int:
        return 0 if self._log.witness is None else self._log.witness.end(*queue)

    # --- counting

    def _add_run(self, queue: Queue, run: _Run) -> None:
        """Add a run of records to its queue; decide breaks that this run confirms or contradicts."""
        generation = self._generations.get(queue)
        if generation is None:
            known = self._due_at(queue)
            expected = known or Due(run.first)
            generation = self._generations[queue] = _Generation(
                expected.offset, 0, expected.unseen_bytes
            )
            if known is None:
                generation.due, generation.reached = run.following, run.log_offset
                return
        pending, due = generation.pending, generation.due
        if pending and run.first == pending[-1].following and not self._repeats(pending[-1], due):
            # The run continues the last break: a new generation. The breaks before that one are judged one by one.
            last = pending.pop()
            self._change(queue, generation, last)
            self._continue(generation, run)
        elif run.first in (due, due + len(pending)):
            for broken in pending:
                self._reject_odd(queue, broken, due, run.first)
            self._continue(generation, run)
        elif self._may_be_lost(generation, run):
            self._continue(generation, run)
        elif run.records > 1 and self._repeats(run, due):
            self._reject_odd(queue, run, due, due)
            self._continue(generation, run)
        elif run.records > 1:
            self._change(queue, generation, run)
        else:
            pending.append(run)
            if len(pending) > _PENDING_MAX:
                self._judge(queue, pending.pop(0), due)

    def _repeats(self, run: _Run, due: int) -> bool:
        """Return whether Penstock wrote a record that states the offset of the one before; later ones follow both."""
        return 0 < run.first == due - 1 and self._is_own(run.log_offset)

    def _may_be_lost(self, generation: _Generation, run: _Run) -> bool:
        """Return whether corrupt bytes since the queue's last record explain the missing offsets."""
        lost = self._lost_bytes - generation.lost_bytes
        missing = run.first - generation.due
        return lost > 0 and not generation.pending and 0 < missing <= lost // FIXED_SIZE + 1

    def _continue(self, generation: _Generation, run: _Run) -> None:
        generation.pending.clear()
        generation.due, generation.lost_bytes = run.following, self._lost_bytes
        generation.reached = run.log_offset

    def _change(self, queue: Queue, generation: _Generation, run: _Run) -> None:
        """Continue with a run that breaks the sequence of its queue, after corrupt records or in a new generation."""
        for broken in generation.pending:
            self._judge(queue, broken, generation.due)
        self._firsts.add(run.log_offset)
        missing = max(run.first - generation.due, 0)
        if not missing or self._look_for_missing(queue, generation.due, run.first) < missing:
            self._note(queue, run, generation.due)
        self._continue(generation, run)

    def _note(self, queue: Queue, run: _Run, due: int) -> None:
        """Note a new generation."""
        self._firsts.add(run.log_offset)
        text = (
            f"queue {_name(queue)} continues at offset {run.first}, {due} was expected: a new generation of the queue, "
            f"as after its topic was deleted and created again"
        )
        self._notes.append(Note(run.log_offset, text))

    # --- judging

    def _reject_odd(self, queue: Queue, run: _Run, due: int, following: int) -> None:
        """Reject a record that breaks the sequence, unless it is a restart; later records continue without it."""
        if self._is_restart(queue, run, due):
            self._note(queue, run, due)
            return
        self._reject(
            run.log_offset,
            run.size,
            f"it states offset {run.first} of queue {_name(queue)}, {due} was expected, and the queue continues at "
            f"{following} without it",
        )

    def _judge(self, queue: Queue, run: _Run, due: int) -> None:
        """Reject or accept a record that breaks the sequence and that no later record continues."""
        witness = self._log.witness
        here = (run.log_offset, run.size)
        if witness is not None and witness.place(*queue, run.first) == here:
            self._look_for_missing(queue, due, run.first)
            return
        says = f"it states offset {run.first} of queue {_name(queue)}"
        if self._is_restart(queue, run, due):
            self._note(queue, run, due)
        elif witness is not None and due != run.first and witness.place(*queue, due) == here:
            self._reject(*here, f"{says}, but the queue's entry {due} points at it")
        elif self._may_be_unseen(queue, run, due):
            return
        elif run.first not in (0, due) and self._is_own(run.log_offset):
            self._jumps.append((queue, run, due, self._generations[queue].reached))

    def _may_be_unseen(self, queue: Queue, run: _Run, due: int) -> bool:
        """Return whether the missing offsets may belong to records before the scan that have no entries yet."""
        return 0 < run.first - due <= self._generations[queue].unseen_bytes // FIXED_SIZE

    def _is_restart(self, queue: Queue, run: _Run, due: int) -> bool:
        """Return whether a broker restarted a queue at 0 and wrote that record's entry at the queue's end.

        A killed broker does so with records that had no entry yet. The expected offset must not be a power of two: from
        such an offset, one flipped bit makes 0.
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
        """Reject records that the entries of missing offsets point at, but that state another queue or offset.

        Returns how many were rejected.
        """
        if self._log.witness is None:
            return 0
        before = len(self._rejected)
        for ordinal in range(start, min(stop, start + _MISSING_MAX)):
            place = self._log.witness.place(*queue, ordinal)
            fields = None if place is None else self._fields_at(*place)
            if place is None or fields is None:
                continue
            if not self._is_consistent(fields, queue, ordinal, place):
                says = f"{fields.queue_offset} of {_name((fields.topic, fields.queue))}"
                self._reject(
                    *place,
                    f"entry {ordinal} of queue {_name(queue)} points at it, and the log has no other record with that "
                    f"offset; but the record states offset {says}",
                )
        return len(self._rejected) - before

    def _is_consistent(
        self, fields: RecordFields, queue: Queue, ordinal: int, place: tuple[int, int]
    ) -> bool:
        """Return whether a record states that queue and offset, or the entry of the stated ones points at it.

        The first record of a new generation is consistent too: brokers write its entry at the queue's end, whatever its
        offset.
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


def _steps(columns: RecordColumns) -> "np.ndarray":
    """Return by how many offsets each record advances its queue: an inner batch by its number of messages."""
    steps = np.ones(len(columns), np.int64)
    batches = np.flatnonzero(columns.sys_flags & INNER_BATCH)
    if len(batches):
        numbers = columns.rows(batches).properties.named(b"INNER_NUM")
        for row, text in zip(numbers.rows.tolist(), numbers.texts(), strict=True):
            if text.isdigit() and int(text[:9]) > 0:
                steps[batches[row]] = int(text[:9])
    return steps
