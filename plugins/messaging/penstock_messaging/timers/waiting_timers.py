"""Which messages wait, and until which second: in memory, 16 bytes a message and about 200 a used second.

Only where the record is, when it was taken in, and what kind it is are kept; all else is read from the log when the
second comes. Not thread-safe.
"""

import heapq
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from penstock_messaging.timers.timer_message import SECOND_MS

# The kinds of an entry, as bits: of a broker's files. An entry to be rolled is put to the timer topic again.
WAITS, ROLLS, CANCELS = 1, 2, 4
_KIND_BITS, _SIZE_BITS = 3, 31
_AGE_MAX = (1 << (63 - _KIND_BITS - _SIZE_BITS)) - 1


class WaitingTimer(NamedTuple):
    """An entry.

    Attributes:
        slot_ms: the second in which it is looked at: TIMER_OUT_MS, or an earlier one if it is rolled.
        log_offset: where its record begins.
        size: the record's length in bytes.
        kind: the sum of `WAITS`, `ROLLS` and `CANCELS`.
        enqueue_ms: the second in which it was taken in.
    """

    slot_ms: int
    log_offset: int
    size: int
    kind: int
    enqueue_ms: int


class WaitingTimers:
    """The entries of one store, by second."""

    def __init__(self) -> None:
        # Of each second pairs of numbers: the log offset, and the other fields packed into one.
        self._slots: dict[int, array[int]] = {}
        self._order: list[int] = []
        self._balance = 0

    def __len__(self) -> int:
        """Return how many messages wait; each one that cancels another counts as one less, as in a broker's figures."""
        return max(self._balance, 0)

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._slots

    def add(self, entry: WaitingTimer) -> None:
        """Add an entry; the last one may be added a second time, after an interrupt, which does nothing."""
        second = entry.slot_ms // SECOND_MS
        slot = self._slots.get(second)
        if slot is None:
            # In this order: a second without entries does no harm.
            heapq.heappush(self._order, second)
            slot = self._slots[second] = array("q")
        if slot and slot[-2] == entry.log_offset:
            return
        self._balance += _weight(entry.kind)
        slot.extend((entry.log_offset, packed(entry)))

    def first_ms(self) -> int | None:
        """Return the first second that has entries."""
        return self._order[0] * SECOND_MS if self._order else None

    def first(self) -> Iterator[WaitingTimer]:
        """Yield the entries of the first second in the order in which they were added."""
        second = self._order[0]
        return _entries(second, self._slots.get(second, array("q")))

    def drop_first(self) -> None:
        """Remove the entries of the first second."""
        second = heapq.heappop(self._order)
        slot = self._slots.pop(second, array("q"))
        self._balance -= sum(map(_weight, slot[1::2]))
        if not self._slots:
            # An interrupt may have ended the counting of one.
            self._balance = 0

    def of_second(self, slot_ms: int) -> Iterator[WaitingTimer]:
        """Yield the entries of a second."""
        second = slot_ms // SECOND_MS
        return _entries(second, self._slots.get(second, array("q")))

    def with_offset(self, log_offset: int, slot_ms: int | None = None) -> WaitingTimer | None:
        """Return the entry of the record at a log offset; looks at one second, or at all of them."""
        seconds = self._slots if slot_ms is None else [slot_ms // SECOND_MS]
        for second in seconds:
            slot = self._slots.get(second, array("q"))
            if log_offset in slot:
                for entry in _entries(second, slot):
                    if entry.log_offset == log_offset:
                        return entry
        return None

    def remove(self, entry: WaitingTimer) -> bool:
        """Remove an entry; return whether there was one with its second and its log offset."""
        slot = self._slots.get(entry.slot_ms // SECOND_MS, array("q"))
        for at in range(0, len(slot), 2):
            if slot[at] == entry.log_offset:
                # An empty second stays, and is found to be empty when it comes.
                del slot[at : at + 2]
                self._balance -= _weight(entry.kind)
                return True
        return False

    def __iter__(self) -> Iterator[WaitingTimer]:
        """Yield all entries, second by second."""
        for second in sorted(self._slots):
            yield from _entries(second, self._slots[second])


def _weight(kind: int) -> int:
    return -1 if kind & CANCELS else 1


def _entries(second: int, slot: "array[int]") -> Iterator[WaitingTimer]:
    for at in range(0, len(slot), 2):
        yield unpacked(second * SECOND_MS, slot[at], slot[at + 1])


def packed(entry: WaitingTimer) -> int:
    """Return all fields of an entry but its second and its log offset as one number."""
    age = min(max((entry.slot_ms - entry.enqueue_ms) // SECOND_MS, 0), _AGE_MAX)
    return (age << _SIZE_BITS | entry.size) << _KIND_BITS | entry.kind


def unpacked(slot_ms: int, log_offset: int, fields: int) -> WaitingTimer:
    """Return the entry with a second, a log offset and the other fields as `packed` returned them."""
    kind = fields & ((1 << _KIND_BITS) - 1)
    size = fields >> _KIND_BITS & ((1 << _SIZE_BITS) - 1)
    age = fields >> (_KIND_BITS + _SIZE_BITS)
    return WaitingTimer(slot_ms, log_offset, size, kind, slot_ms - age * SECOND_MS)
