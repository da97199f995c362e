"""Which messages that wait are cancelled by which: found by where their records are, or by key.

A message is cancelled by another one of the timer topic that has its second and names its key. A process that was
killed may leave more than one copy of a message that is put to the timer topic again on the way; all of them have its
key. Changes nothing; not thread-safe.
"""

from collections.abc import Sequence

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock_messaging.timers.due_timers import DueTimer, DueTimers
from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.timer_queue import entry_of, may_roll, waiting_timer
from penstock_messaging.timers.waiting_timers import CANCELS, ROLLS, WaitingTimer, WaitingTimers


class Cancellations:
    """The waiting messages and their cancellations.

    Args:
        waiting: those whose second has not come.
        due: the others.
    """

    def __init__(self, waiting: WaitingTimers, due: DueTimers) -> None:
        self._waiting, self._due = waiting, due

    def copies_of(
        self, store: OpenStore, message: StoredMessage, timer: Timer, now_ms: int
    ) -> list[WaitingTimer]:
        """Return the entry of a message, and those of copies that wait in its place; none if nothing of it waits."""
        if timer.cancels:
            return []
        first_ms = entry_of(message, timer, message.store_time_ms).slot_ms
        own = self._own(message.log_offset, {first_ms, timer.second_ms})
        found = [] if own is None else [own]
        has_copies = bool(timer.key) and may_roll(timer, message.store_time_ms)
        if not has_copies or (own is not None and now_ms < first_ms):
            return found
        for entry in self._all():
            is_near = entry.kind & ROLLS or entry.slot_ms in {first_ms, timer.second_ms}
            if is_near and entry != own and self._has_key(store, entry, timer):
                found.append(entry)
        return found

    def _own(self, log_offset: int, near: set[int]) -> WaitingTimer | None:
        late = self._due.with_offset(log_offset)
        found = None if late is None else late.entry
        for slot_ms in near:
            found = found or self._waiting.with_offset(log_offset, slot_ms)
        # It may be looked at in another second than expected.
        return found or self._waiting.with_offset(log_offset)

    def _all(self) -> list[WaitingTimer]:
        return [*self._waiting, *(each.entry for each in self._due)]

    def _has_key(self, store: OpenStore, entry: WaitingTimer, timer: Timer) -> bool:
        found = waiting_timer(store, entry)
        return found is not None and (found.key, found.second_ms, found.cancels) == (
            timer.key, timer.second_ms, b"",
        )  # fmt: skip

    def is_cancelled(self, store: OpenStore, message: StoredMessage, timer: Timer) -> bool:
        """Return whether a message that waits will be cancelled, by an entry that an earlier opening has left."""
        others = [each for each in self._waiting.of_second(timer.second_ms) if each.kind & CANCELS]
        if may_roll(timer, message.store_time_ms):
            both = ROLLS | CANCELS
            others += [entry for entry in self._waiting if entry.kind & both == both]
        for entry in others:
            found = waiting_timer(store, entry)
            if found is not None and (found.cancels, found.second_ms) == (
                timer.key,
                timer.second_ms,
            ):
                return True
        return False

    def among(self, store: OpenStore, taken: Sequence[DueTimer]) -> tuple[list[int], list[int]]:
        """Return what due messages cancel, of these and of those due later, and what is done with that.

        Both as log offsets. A message that cancels others is done with in its own second, even with nothing to cancel.
        If it is looked at earlier, it is to be put again, also in that second: the files name it only before that.
        """
        timers = [(each, waiting_timer(store, each.entry)) for each in taken]
        cancels = {
            (timer.second_ms, timer.cancels)
            for _, timer in timers
            if timer is not None and timer.cancels
        }
        later = self._due.with_keys([hash(key) for key in cancels])
        both = [*timers, *((each, waiting_timer(store, each.entry)) for each in later)]
        cancelled = [
            each.entry.log_offset
            for each, timer in both
            if timer is not None and not timer.cancels and (timer.second_ms, timer.key) in cancels
        ]
        done = [
            each.entry.log_offset
            for each, timer in timers
            if timer is not None and timer.cancels and timer.second_ms <= each.due_ms
        ]
        return cancelled, done
