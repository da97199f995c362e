"""The timer service: puts messages into their own topics when their time comes, in the writing process.

One background thread. It begins with the first message that has a time, or at the opening of a store with such
messages; a store without any has no thread. It sleeps until the next message is due, or one due earlier is put.

Invariants:
    * No message is delivered before its time by the clock; one whose exact time is not known, at the end of its second.
    * The files that name what waits (see `TimerFiles`) are written after the log is durable, so a crash loses no
      message. What was delivered since they were written, every second, is found in the log, and not delivered again.
    * While they name a message, they name what cancels it, unless that comes after the saved offset.
    * A message that is gone or corrupt, or cannot be put, is skipped with a warning, and holds back no other one; what
      cannot be put is a dead letter. A put that fails for a reason that may pass (disk full, a retention policy refuses
      puts) is tried again, and skips nothing.
"""

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, takewhile
from typing import Any

from penstock import StoredMessage
from penstock.contracts import Context, OpenStore, Stoppable
from penstock.errors import (
    CorruptionError,
    MessageError,
    OffsetError,
    PenstockError,
    StoreClosedError,
    StoreFailedError,
)
from penstock.escape import get_logger
from penstock.format.hashes import java_hash
from penstock_messaging.copies_made import CopiesMade, Copy
from penstock_messaging.delays.schedule import destination
from penstock_messaging.properties_text import REAL_QUEUE, REAL_TOPIC, TIMER_TOPIC
from penstock_messaging.timers.cancellations import Cancellations
from penstock_messaging.timers.due_timers import (
    DueTimer,
    DueTimers,
    SecondColumns,
    due_in,
    key_hash,
)
from penstock_messaging.timers.timer_message import SECOND_MS, Timer, cancelling, copied, timer_of
from penstock_messaging.timers.timer_queue import (
    TimerQueue,
    entry_of,
    may_roll,
    waiting_message,
    waiting_timer,
)
from penstock_messaging.timers.timer_state import TimerFiles, TimerUnit
from penstock_messaging.timers.waiting_timers import CANCELS, WaitingTimer, WaitingTimers

logger = get_logger(__name__)

# The queue is looked at after this time at the latest: soon after a put, since a message is seen some time after it is
# announced, and otherwise when the clock may have been set.
_SOON_MS, _LOOK_MS = 1000, 10_000
_SOON_FOR_MS = 60_000
# Messages that become due within this time are delivered together.
_TOGETHER_MS = 10
_RETRY_MS = 1000
# How often what waits is written to files.
SAVE_MS = 1000
# Maximum number of messages, and of bytes, that are delivered at once.
_COUNT_MAX, _BYTES_MAX = 1000, 4 << 20
# With so many messages that are due, no further second is read.
_DUE_MAX = 20_000
# Messages that are read when their second comes are kept until they are delivered, up to about so much memory; it is
# what a message takes beside its bytes, too.
_CACHE_BYTES_MAX, _OBJECT_BYTES = 16 << 20, 200
_NEVER = 1 << 62
# How long before the first second that is not delivered, by the files, a message of it may have been delivered: a close
# leaves them ahead of the clock.
_AHEAD_MS = 5 * SECOND_MS


class TimerDelivery:
    """The timer service of one store. Safe from any thread.

    Attributes:
        read_ms: the first second that is not delivered, by the files.

    Args:
        context: of the extension.
        check: raises a `MessageError` if nothing may be delivered to a topic's queue any more.
        keep: stores elsewhere a message that cannot be delivered, and why.
    """

    def __init__(
        self,
        context: Context,
        *,
        check: Callable[[str, int], None] = lambda topic, queue: None,
        keep: Callable[[StoredMessage, str], None] = lambda message, why: None,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._check, self._keep = check, keep
        self._files = TimerFiles(context)
        self._store: OpenStore | None = None
        self._worker: Stoppable | None = None
        # Guards the three fields after it; held for moments only. A signal handler may put while its thread holds it.
        self._guard = threading.RLock()
        # The first time at which a message that is being put will be due; the store may not have it yet.
        self._expected_ms = _NEVER
        # When the worker runs next, 0 while it runs; and when a message was last announced.
        self._next_ms = self._announced_ms = 0
        # Held while a step runs, while a message is cancelled, and while the end waits for the last step.
        self._running = threading.Lock()
        self._queue = TimerQueue()
        self._waiting = WaitingTimers()
        self._due = DueTimers()
        self._cancels = Cancellations(self._waiting, self._due)
        # The units that the files do not have yet, six numbers each; the log offset of the last one, also if it was
        # passed to the files; what of all that waited was handled since they were written; and the messages that were
        # cancelled since then, with what cancelled them.
        self._unsaved = array("q")
        self._unsaved_last = -1
        self._gone: set[int] = set()
        self._called_off: set[int] = set()
        # Messages of those that are due, by log offset, and the memory that they take.
        self._cached: dict[int, StoredMessage] = {}
        self._cached_bytes = 0
        # What earlier openings delivered, and the files may name; until what waits can be none of it by any clock.
        self._made: CopiesMade | None = None
        # Store times: of the newest record then, from which on copies are looked for, and of the first one restored.
        self._made_ms, self._since_ms, self._restored_ms = 0, 0, _NEVER
        # Messages that cancel another one, which has been removed already.
        self._spent: set[int] = set()
        # Whether all that was there at the opening, or was put again, is taken in: what cancels comes first.
        self._is_caught_up = False
        # The last second of which something may be delivered.
        self.read_ms = self._opened_ms = 0
        self._changed_ms = _NEVER
        # The second of the clock in which the first change was that the files do not have.
        self._changed_second = 0
        self._last_trouble = ""
        self._delivered = self._cancelled = self._skipped = 0

    # --- begin and end

    def attach(self, store: OpenStore) -> None:
        """Begin: load what waits; if the store is open for writing and something does, start the thread."""
        self._store = store
        if not self._context.read_only:
            self._made = CopiesMade(store, lambda message: message.store_time_ms >= self._since_ms)
        found = self._files.load(store, self._unit_of)
        if found is not None:
            if found.problem:
                logger.warning("messages that wait for their time: %s", found.problem)
            self.read_ms, self._queue.offset = found.read_ms, found.queue_offset
            for unit in found.units():
                entry = WaitingTimer(*unit[:-1])
                is_first = entry.slot_ms == found.read_ms
                self._waiting.add(self._in_own_second(store, entry) if is_first else entry)
        if self._context.read_only:
            self._read_all(store)
        elif not self._waiting.is_empty or not self._queue.is_read(store):
            self._since_ms = self._made_since(store)
            self._made_ms = store.recovery.newest_time_ms if store.recovery else 0
            with self._guard:
                self._start()
        else:
            self._made = None

    def _made_since(self, store: OpenStore) -> int:
        """Return a time before which no copy was stored of what waits."""
        firsts = [
            message.store_time_ms
            for message in store.read(TIMER_TOPIC, 0, self._queue.offset, 1).messages
        ]
        waiting_ms = self._waiting.first_ms()
        if waiting_ms is not None:
            firsts.append(waiting_ms)
        # Seconds up to `read_ms` are over by a clock that may have been ahead.
        return min(self._restored_ms, min(firsts, default=self.read_ms) - _AHEAD_MS)

    def _in_own_second(self, store: OpenStore, entry: WaitingTimer) -> WaitingTimer:
        """Return an entry of the first second that the files could name, or in its own earlier one; see `_save`."""
        timer = waiting_timer(store, entry)
        if timer is None or timer.second_ms >= entry.slot_ms:
            return entry
        return entry._replace(slot_ms=timer.second_ms)

    def detach(self) -> None:
        """End the thread and save what waits; messages that are due now are delivered after the next opening."""
        with self._guard:
            worker, self._worker = self._worker, None
            store, self._store = self._store, None
        if worker is not None:
            worker.stop()
        # A step that hangs in a failing disk keeps the lock; the store's close reports it.
        if store is None or self._context.read_only or not self._running.acquire(blocking=False):
            return
        try:
            self._read_all(store)
            self._save(store, is_last=True)
        except (PenstockError, OSError) as error:
            logger.warning(
                "which messages wait for their time could not be saved (%s); none is lost, and the next opening may "
                "deliver some again",
                error,
            )
        finally:
            self._running.release()

    def expect(self, due_ms: int) -> None:
        """Say that a message that will be due at a time is about to be stored."""
        with self._guard:
            self._announced_ms = self._clock.monotonic_ms()
            self._expected_ms = min(self._expected_ms, due_ms)
            if self._store is None:
                return
            self._start()
            worker = self._worker if due_ms < self._next_ms else None
        if worker is not None:
            worker.wake()

    def _start(self) -> None:
        """Start the thread unless it runs; the caller holds the guard."""
        if self._has_worker():
            return
        made = self._context.spawn("penstock-timers", self._step)
        if self._has_worker():
            # A signal handler was faster.
            made.stop()
        else:
            self._worker = made

    def _has_worker(self) -> bool:
        return self._worker is not None

    @property
    def is_behind(self) -> bool:
        """Whether the thread has yet to deliver what is due."""
        with self._guard:
            is_late = bool(self._last_trouble) or self._next_ms <= self._clock.time_ms()
            return self._has_worker() and is_late

    # --- figures

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`: since the store was opened, and messages that wait now."""
        return {
            "delivered": self._delivered,
            "cancelled": self._cancelled,
            "skipped": self._skipped,
            "waiting": self.waiting(),
            "trouble": self._last_trouble or None,
        }

    def waiting(self) -> int:
        """Return how many messages wait, those included that are not taken in yet."""
        store = self._store
        if store is None:
            return 0
        ahead = max(store.max_offset(TIMER_TOPIC, 0) - self._queue.offset, 0)
        return len(self._waiting) + len(self._due) + ahead

    def first_due_ms(self) -> int | None:
        """Return the second in which the first message that waits is due, about; None if none waits."""
        with self._running:
            first_ms = self._due.first_ms()
            return self._waiting.first_ms() if first_ms is None else first_ms

    def entries(self) -> list[WaitingTimer]:
        """Return everything that waits, after taking in what was put."""
        with self._running:
            if self._store is not None:
                self._read_all(self._store)
            return [each.entry for each in sorted(self._due)] + list(self._waiting)

    # --- one round

    def _step(self) -> float | None:
        """Deliver what is due; returns the seconds until the next round, None after a failure that ends all puts."""
        with self._running:
            store = self._store
            if store is None:
                return None
            with self._guard:
                self._next_ms = 0
                now = self._clock.time_ms()
                if self._expected_ms <= now:
                    self._expected_ms = _NEVER
            try:
                next_ms = self._round(store, now)
                self._last_trouble = ""
            except (StoreFailedError, StoreClosedError) as error:
                self._last_trouble = str(error)
                return None
            except (PenstockError, OSError) as error:
                self._note_trouble(str(error))
                next_ms = now + _RETRY_MS
            return self._plan(next_ms)

    def _plan(self, next_ms: int) -> float:
        """Return the seconds until a time, or until an earlier one at which a message is expected."""
        with self._guard:
            now = self._clock.time_ms()
            since_ms = self._clock.monotonic_ms() - self._announced_ms
            look_ms = _SOON_MS if since_ms < _SOON_FOR_MS else _LOOK_MS
            expected_ms = max(self._expected_ms, now + _TOGETHER_MS)
            self._next_ms = max(min(next_ms, now + look_ms, expected_ms), now)
            return (self._next_ms - now) / 1000

    def _note_trouble(self, text: str) -> None:
        if text != self._last_trouble:
            self._last_trouble = text
            logger.warning(
                "messages whose time has come cannot be delivered now (%s); none is lost, and delivery is tried again "
                "every second",
                text,
            )

    def _round(self, store: OpenStore, now: int) -> int:
        """Take in, deliver and save a part of what there is to do; returns when there is more."""
        has_more = self._read_new(store, now)
        if has_more and not self._is_caught_up:
            return now
        self._is_caught_up = True
        while self._may_open() and self._open_second(store, now):
            pass
        self._deliver(store, now)
        next_ms = self._next_due_ms()
        if self._is_to_save(now, is_busy=next_ms <= now):
            self._save(store)
            next_ms = self._next_due_ms()
        if has_more or next_ms <= now:
            return now
        if now > self._made_ms:
            self._made = None
        if self._changed_ms != _NEVER:
            next_ms = min(next_ms, (now // SECOND_MS + 1) * SECOND_MS)
        return max(next_ms, now + _TOGETHER_MS)

    def _next_due_ms(self) -> int:
        times = (self._due.first_ms(), self._waiting.first_ms())
        return min((each for each in times if each is not None), default=_NEVER)

    def _is_to_save(self, now: int, *, is_busy: bool) -> bool:
        """Return whether what waits is to be written: once a second, as soon as all of the one before is delivered.

        Then the files count all but what is delivered in the present second.
        """
        if self._changed_ms == _NEVER or now // SECOND_MS == self._changed_second:
            return False
        return not is_busy or self._changed_ms <= self._clock.monotonic_ms() - SAVE_MS

    def _may_open(self) -> bool:
        """Return whether another second is to be opened if it has come: not with too much that is due before it."""
        first_ms, due_ms = self._waiting.first_ms(), self._due.first_ms()
        if first_ms is None or due_ms is None:
            return first_ms is not None
        return len(self._due) < _DUE_MAX or due_ms > first_ms

    def _note_change(self) -> None:
        if self._changed_ms == _NEVER:
            self._changed_ms = self._clock.monotonic_ms()
            self._changed_second = self._clock.time_ms() // SECOND_MS

    # --- taking in

    def _read_all(self, store: OpenStore) -> None:
        while self._read_new(store, self._clock.time_ms()):
            pass

    def _read_new(self, store: OpenStore, now: int) -> bool:
        """Take in messages that were put; return whether there may be more."""
        before = self._queue.offset

        def add(entry: WaitingTimer, timer: Timer, message: StoredMessage) -> None:
            is_over = self._was_put_again(timer, message)
            if is_over:
                # Before the unit: it says so.
                self._gone.add(entry.log_offset)
            if self._unsaved_last != entry.log_offset:
                # In this order: after an interrupt in between, the unit is written twice, which is read as one.
                self._unsaved.extend(_unit(entry, timer))
                self._unsaved_last = entry.log_offset
            if is_over:
                return
            if entry.log_offset in self._spent:
                self._called_off.add(entry.log_offset)
                self._spent.discard(entry.log_offset)
            elif entry.slot_ms > self._opened_ms or self._context.read_only:
                # Also if its second has come: what waits in that second may be what it cancels.
                self._waiting.add(entry)
            else:
                self._due.add(entry, due_in(entry, timer, now), key_hash(timer))

        refused: list[str] = []
        has_more = self._queue.read_new(store, now, add, refused.append)
        if self._queue.offset != before:
            self._note_change()
        self._skip(refused)
        return has_more

    def _was_put_again(self, timer: Timer, message: StoredMessage) -> bool:
        """Return whether an earlier opening has put a message to the timer topic again, so that it waits no more."""
        # Store times may be held by a clock that was ahead.
        since_ms = min(message.born_time_ms, message.store_time_ms)
        made = self._made
        return made is not None and may_roll(timer, since_ms) and _is_made(made, message, 0)

    def _is_handled(self, message: StoredMessage, copy: Copy) -> bool:
        """Return whether an earlier opening has delivered a message that is due, or has put it again on its way."""
        made = self._made
        return made is not None and (
            made.count_out(message, copy) or self._was_put_again(timer_of(message), message)
        )

    def _open_second(self, store: OpenStore, now: int) -> bool:
        """Move the messages of the first waiting second to those that are due; return whether it has come."""
        first_ms = self._waiting.first_ms()
        if first_ms is None or first_ms > now:
            return False
        refused: list[str] = []
        gone: list[int] = []
        second = SecondColumns(first_ms)
        for entry in self._waiting.first():
            try:
                message = waiting_message(store, entry)
                timer = timer_of(message)
            except (MessageError, OffsetError, CorruptionError) as error:
                refused.append(self._refused(store, entry, error))
                gone.append(entry.log_offset)
                continue
            self._cache(message)
            kind = entry.kind | CANCELS if timer.cancels else entry.kind & ~CANCELS
            second.add(entry._replace(kind=kind), due_in(entry, timer, now), key_hash(timer))
        self._waiting.drop_first()
        self._due.add_second(second)
        self._gone.update(gone)
        self._opened_ms = max(self._opened_ms, first_ms)
        self._note_change()
        self._skip(refused)
        return True

    def _cache(self, message: StoredMessage) -> None:
        """Keep a message until it is delivered, if there is room."""
        size = message.size + _OBJECT_BYTES
        is_new = message.log_offset not in self._cached
        if is_new and self._cached_bytes + size <= _CACHE_BYTES_MAX:
            self._cached[message.log_offset] = message
            self._cached_bytes += size

    def _cached_message(self, store: OpenStore, entry: WaitingTimer) -> StoredMessage:
        """Do as `waiting_message`, of a message that may be kept, and keep it no longer."""
        message = self._cached.pop(entry.log_offset, None)
        if message is None:
            return waiting_message(store, entry)
        self._cached_bytes -= message.size + _OBJECT_BYTES
        return message

    # --- delivering

    def _deliver(self, store: OpenStore, now: int) -> None:
        """Put the copies of messages that are due, at most a batch."""
        second_ms = self._waiting.first_ms()
        # What cancels a message may wait in a second that has come and is not opened yet.
        taken = self._due.pop_due(
            now if second_ms is None else min(now, second_ms), _COUNT_MAX, _BYTES_MAX
        )
        if not taken:
            return
        refused: list[str] = []
        copies: list[tuple[WaitingTimer, Copy]] = []
        place = self._places()
        try:
            if any(each.entry.kind & CANCELS for each in taken):
                self._cancel_due(store, taken)
            for each in taken:
                if each.entry.log_offset in self._called_off:
                    continue
                try:
                    message = self._cached_message(store, each.entry)
                    enqueue_ms = each.entry.enqueue_ms
                    copy = copied(
                        message, due_ms=each.due_ms, enqueue_ms=enqueue_ms, now_ms=now, destination_of=place,
                    )  # fmt: skip
                    if not self._is_handled(message, copy):
                        copies.append((each.entry, copy))
                except (MessageError, OffsetError, CorruptionError) as error:
                    refused.append(self._refused(store, each.entry, error))
            refused += self._put(store, copies)
        except BaseException:
            handled = self._gone | self._called_off
            left = [each for each in taken if each.entry.log_offset not in handled]
            self._due.give_back(left)
            raise
        finally:
            self._note_change()
        self._gone.update(each.entry.log_offset for each in taken)
        if not self._due:
            # Those that were cancelled.
            self._cached.clear()
            self._cached_bytes = 0
        self._skip(refused)

    def _places(self) -> Callable[[Mapping[bytes, bytes]], tuple[str, int]]:
        """Return a function that returns where messages go, or raises if they may not; asks once for each place."""
        known: dict[tuple[bytes | None, bytes | None], tuple[str, int]] = {}

        def place(pairs: Mapping[bytes, bytes]) -> tuple[str, int]:
            named = pairs.get(REAL_TOPIC), pairs.get(REAL_QUEUE)
            if named not in known:
                found = destination(pairs)
                self._check(*found)
                known[named] = found
            return known[named]

        return place

    def _cancel_due(self, store: OpenStore, taken: Sequence[DueTimer]) -> None:
        """Cancel what messages that are due cancel, of these and of those that are due later."""
        cancelled, done = self._cancels.among(store, taken)
        self._due.remove(cancelled)
        self._cancelled += len(cancelled)
        self._called_off.update(cancelled, done)

    def _put(self, store: OpenStore, copies: Sequence[tuple[WaitingTimer, Copy]]) -> list[str]:
        """Put copies, together if possible; returns a sentence for each that cannot be stored."""
        try:
            if copies:
                store.put_copies([copy for _, copy in copies])
        except MessageError as error:
            if len(copies) == 1:
                return [self._refused(store, copies[0][0], error)]
            # If a later put fails, those before it are not repeated.
            return [why for one in copies for why in self._put(store, [one])]
        self._gone.update(entry.log_offset for entry, _ in copies)
        count = sum(copy[0].topic != TIMER_TOPIC for _, copy in copies)
        self._delivered += count
        if count < len(copies):
            # What was put to the timer topic again may cancel a message that is delivered next.
            self._is_caught_up = False
        return []

    def _refused(self, store: OpenStore, entry: WaitingTimer, error: Exception) -> str:
        """Keep a message that cannot be delivered elsewhere, if it is there; return a sentence about it."""
        if isinstance(error, MessageError):
            with suppress(OffsetError, CorruptionError, MessageError):
                self._keep(waiting_message(store, entry), str(error))
        return f"the message at log offset {entry.log_offset}: {error}"

    def _skip(self, reasons: Sequence[str]) -> None:
        """Log what is not delivered, and count it."""
        if reasons:
            self._skipped += len(reasons)
            more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            logger.warning(
                "messages that wait for their time: not delivered, and skipped: %s%s. What is stored of it is a dead "
                "letter: see penstock dlq; it stays in %s until retention deletes it", reasons[0], more, TIMER_TOPIC,
            )  # fmt: skip

    # --- cancelling

    def cancel(self, message: StoredMessage) -> bool:
        """Cancel a message of the timer topic; return whether it waited, and is not delivered now."""
        with self._running:
            store = self._store
            if store is None:
                raise StoreClosedError
            timer = timer_of(message)
            if self._made is not None and (
                timer.due_ms <= self._clock.time_ms() or _is_made(self._made, message, timer.due_ms)
            ):
                # An opening before this one has delivered it, or may have; otherwise the next round does.
                return False
            self._read_all(store)
            found = self._cancels.copies_of(store, message, timer, self._clock.time_ms())
            if not found or self._cancels.is_cancelled(store, message, timer):
                return False
            if not timer.key:
                raise MessageError(
                    f"message {message.message_id} cannot be cancelled: it has no UNIQ_KEY by which to name it; it "
                    "still waits"
                )
            receipts = store.put_copies(cancelling(timer))
            # In this order: after a failure to put, the message still waits.
            self._spent.update(receipt.log_offset for receipt in receipts)
            for entry in found:
                if not self._waiting.remove(entry):
                    self._due.remove([entry.log_offset])
                self._called_off.add(entry.log_offset)
            self._cancelled += 1
            # A broker that takes the store over after a kill delivers what the files name, whatever the log has.
            self._read_all(store)
            self._note_change()
            self._save(store)
        return True

    # --- saving

    def _unit_of(self, message: StoredMessage, read_ms: int) -> TimerUnit | None:
        """Return how a record whose unit is lost is taken in now; None if it waits no more.

        `read_ms` is as in `timercheck`. A record whose second is over by it was delivered, unless it was put after that
        clock went back: its store time, held by the records before it, is then later than its own time. A put that took
        longer than its delay is no such one.
        """
        try:
            timer = timer_of(message)
        except MessageError:
            return None
        if self._was_put_again(timer, message):
            return None
        unit = _unit(entry_of(message, timer, self._clock.time_ms()), timer)
        if timer.second_ms < read_ms:
            is_late = message.store_time_ms - timer.due_ms >= SECOND_MS
            if self._context.read_only or not is_late:
                return None
            # By that clock it may have been delivered, too; its copy comes after it.
            self._restored_ms = min(self._restored_ms, message.store_time_ms)
        return unit._replace(slot_ms=max(unit.slot_ms, read_ms))

    def _save(self, store: OpenStore, *, is_last: bool = False) -> None:
        """Save what waits, after the copies of all else are durable."""
        now_ms = self._clock.time_ms() // SECOND_MS * SECOND_MS
        first = self._waiting.first_ms()
        seconds = self._due.slots_ms()
        read_ms = max(min([now_ms, *seconds, *([] if first is None else [first])]), self.read_ms)
        is_partial = is_last and read_ms <= self._opened_ms
        if (
            self._changed_ms == _NEVER
            and not is_partial
            and not (is_last and read_ms > self.read_ms)
        ):
            return
        if self._queue.offset == 0 and not self._unsaved:
            return
        store.flush()
        width = len(TimerUnit._fields)
        for at in range(0, len(self._unsaved), width):
            unit = TimerUnit(*self._unsaved[at : at + width])
            self._files.add(unit._replace(slot_ms=self._saved_slot_ms(unit, read_ms)))
        self._unsaved = array("q")
        if is_partial:
            self._files.leave(read_ms, self._queue.offset, self._left(store, read_ms))
        else:
            self._files.save(read_ms, self._queue.offset)
        # Until a second is over, the files say that its messages wait: they are written again then.
        is_open = not is_last and read_ms <= self._opened_ms
        self.read_ms = read_ms
        self._changed_second = now_ms // SECOND_MS
        self._changed_ms = self._clock.monotonic_ms() if is_open else _NEVER
        self._gone.clear()
        self._called_off.clear()

    def _saved_slot_ms(self, unit: TimerUnit, read_ms: int) -> int:
        """Return the second in which the files name a record from now on.

        A delivered message is not looked at again; a waiting one is, also if the clock has gone back to before it. A
        cancellation is looked at again as long as its message is: an earlier save may have named it or its original.
        """
        is_over = unit.log_offset in self._gone
        if unit.log_offset in self._called_off:
            # While the files go on from the same second, they may name in it a message of a second before it.
            is_over = unit.slot_ms < read_ms and self.read_ms < read_ms
        return min(unit.slot_ms, read_ms - SECOND_MS) if is_over else max(unit.slot_ms, read_ms)

    def _left(self, store: OpenStore, slot_ms: int) -> list[TimerUnit]:
        """Return what is left of a second that may be delivered in part, and of those before it: a clock went back."""
        left = []
        waiting = takewhile(lambda entry: entry.slot_ms <= slot_ms, self._waiting)
        for entry in chain((each.entry for each in sorted(self._due)), waiting):
            timer = waiting_timer(store, entry) if entry.slot_ms <= slot_ms else None
            if timer is not None:
                left.append(_unit(entry, timer))
        return left


def _is_made(made: CopiesMade, message: StoredMessage, due_ms: int) -> bool:
    """Return whether an earlier opening has put what comes in place of a message when it is handled at a time."""
    with suppress(MessageError):
        return made.count_out(message, copied(message, due_ms=due_ms, enqueue_ms=0, now_ms=0))
    return False


def _unit(entry: WaitingTimer, timer: Timer) -> TimerUnit:
    return TimerUnit(*entry, java_hash(timer.topic.decode("utf-8", "replace")))
