"""The delivery service: puts delayed messages into their own topics when due, in the store's writing process.

One background thread serves all levels. It begins with the first delayed message, or at the opening of a store with
messages that wait; a store without any has no thread. It sleeps until a message is due, or one with a shorter
delay is put.

Invariants:
    * A message is due when the time in its queue entry has come, or when the clock has gone back to before it was
      stored. Each level delivers in the order of storing, so one that is not due holds back the others.
    * `delayOffset.json` never names an offset whose copies are not durable: the log is flushed first. So a crash loses
      no message. What was delivered since it was written (`save_ms`) is found in the log, not delivered again.
    * An entry whose message is gone or corrupt, or cannot be put, is skipped with a warning: it must not hold back its
      level. What cannot be put is a dead letter. A put that fails for a reason that may pass (disk full, a retention
      policy refuses puts) is tried again, and skips nothing.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock import StoredMessage
from penstock.contracts import Context, OpenStore, Stoppable, SummaryLine
from penstock.contracts.dispatcher import QueueEntries
from penstock.errors import MessageError, PenstockError, StoreClosedError, StoreFailedError
from penstock.escape import get_logger
from penstock_messaging.copies_made import CopiesMade, Copy
from penstock_messaging.delays.delay_offsets import DelayOffsets
from penstock_messaging.delays.levels import (
    LEVEL_MAX,
    SCHEDULE_TOPIC,
    delay_ms,
    level_of,
    queue_of,
)
from penstock_messaging.delays.schedule import delivered

logger = get_logger(__name__)

# A level is looked at after this time at the latest: when the clock is set, and when a put took longer than its delay.
_LOOK_MS = 10_000
# Clocks are corrected by so much without anybody setting them.
_LITTLE_MS = 10_000
# Messages that become due within this time are delivered together.
_TOGETHER_MS = 10
_RETRY_MS = 1000
# Maximum number of messages, and of bytes, that are delivered at once.
_COUNT_MAX, _BYTES_MAX = 1000, 4 << 20
# Maximum number of records that are read at once because of a time that is not one of their level.
_RECORDS_MAX = 256
# The clock of another machine, or of this one before it was set, may have been ahead by so much; by more, only where
# delivered messages show it.
_AHEAD_MS = 60_000
# A delay above this is not one that a broker was configured with, but a corrupt entry.
_DELAY_MAX_MS = 366 * 24 * 3_600_000
_NEVER = 1 << 62


class Delivery:
    """The delivery service of one store. Safe from any thread.

    Args:
        context: of the extension.
        save_ms: how long after a delivery the progress is saved at the latest.
        check: raises a `MessageError` if nothing may be delivered to a topic's queue any more.
        keep: stores elsewhere a message that cannot be delivered, and why.
    """

    def __init__(
        self,
        context: Context,
        *,
        save_ms: int,
        check: Callable[[str, int], None] = lambda topic, queue: None,
        keep: Callable[[StoredMessage, str], None] = lambda message, why: None,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._save_ms = save_ms
        self._check, self._keep = check, keep
        self._offsets = DelayOffsets(context)
        self._store: OpenStore | None = None
        self._worker: Stoppable | None = None
        # Guards the fields below; held for moments only. A signal handler may put while its thread holds it.
        self._guard = threading.RLock()
        # When the latest message of a level that is being put will be due; the store may not have it yet.
        self._expected: dict[int, int] = {}
        # When the worker runs next; 0 while it runs.
        self._next_ms = 0
        # Held while a step runs, and while the end waits for it.
        self._running = threading.Lock()
        self._levels: list[int] = list(range(1, LEVEL_MAX + 1))
        # What earlier openings have delivered and not saved, until it is counted; and by level, up to where it is.
        self._made: CopiesMade | None = None
        self._looked_to: dict[int, int] = {}
        # Whether the file counts deliveries, and does not say where the log ended then.
        self._lacks_end = False
        self._unsaved_ms = _NEVER
        self._last_trouble = ""
        self._delivered = self._skipped = 0

    # --- begin and end

    def attach(self, store: OpenStore) -> None:
        """Begin: load the progress, and start the thread if a message waits. The store must be open for writing."""
        self._store = store
        self._offsets.load()
        if self._offsets.problem:
            logger.warning("delayed messages: %s", self._offsets.problem)
        # A broker with more levels has used further queues.
        queues = {queue_of(level) for level in self._levels} | set(
            store.topics(system=True).get(SCHEDULE_TOPIC, ())
        )
        self._levels = [level_of(queue) for queue in sorted(queues)]
        # A table that counts deliveries and does not say where the log ended then, as a broker's, does not tell copies
        # of what it counts from others: then what was delivered after it is delivered again.
        has_end = bool(self._offsets.log_end) or not self._offsets.known()
        log_end = store.message_batch().log_end
        if self._offsets.log_end > log_end:
            # A repair, or a cut, has taken the log's end, and with it copies that were delivered.
            try:
                self._offsets.restart()
            except OSError as error:
                logger.warning(
                    "delayed messages: the table of a longer log is still there: %s", error
                )
        self._lacks_end = not has_end
        waiting = {level: self._clamp(store, level) for level in self._levels}
        self._looked_to = {level: at for level, (at, high) in waiting.items() if at < high}
        if self._looked_to:
            # After a clean close, nothing was put since.
            counts = has_end and self._offsets.log_end != log_end
            self._made = self._copies_made(store) if counts else None
            with self._guard:
                self._start()

    def _copies_made(self, store: OpenStore) -> CopiesMade:
        """Return the copies of what counts as undelivered; each is after its message, and after the last save."""
        firsts = [
            store.queue_entries(SCHEDULE_TOPIC, queue_of(level), at, at + 1).log_offsets.tolist()
            for level, at in self._looked_to.items()
        ]
        begin = max(min(first[0] if first else 0 for first in firsts), self._offsets.log_end)
        return CopiesMade(store, lambda message: message.log_offset >= begin)

    def detach(self) -> None:
        """End the thread and save the progress; messages that are due now are delivered after the next opening."""
        with self._guard:
            worker, self._worker = self._worker, None
            store, self._store = self._store, None
        if worker is not None:
            worker.stop()
        # A step that hangs in a failing disk keeps the lock; the store's close reports it.
        if store is None or not self._running.acquire(blocking=False):
            return
        try:
            self._save(store)
        except (PenstockError, OSError) as error:
            logger.warning(
                "how far delayed messages are delivered could not be saved (%s); the next opening may deliver some of "
                "them again",
                error,
            )
        finally:
            self._running.release()

    def expect(self, level: int) -> None:
        """Say that a message of this level, 1 to 18, is about to be stored or was stored just now."""
        with self._guard:
            due_ms = self._clock.time_ms() + delay_ms(level)
            self._expected[level] = due_ms
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
        made = self._context.spawn("penstock-deliver", self._step)
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

    def waiting(self) -> dict[int, int]:
        """Return how many messages wait, by level, without the levels that have none."""
        store = self._store
        return {} if store is None else waiting(store, self._offsets, self._levels)

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`: since the store was opened, and messages that wait now."""
        return {
            "delivered": self._delivered,
            "skipped": self._skipped,
            "waiting": sum(self.waiting().values()),
            "trouble": self._last_trouble or None,
        }

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
                for level in [each for each, due in self._expected.items() if due <= now]:
                    del self._expected[level]
            try:
                while self._pass_made(store, now):
                    if self._store is None:
                        # It closes.
                        return None
                if self._lacks_end:
                    # Before anything is delivered: copies that come now are counted after a kill. It is tried once.
                    self._lacks_end = self._offsets.is_saved = False
                    self._save(store)
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
            expected_ms = max(min(self._expected.values(), default=_NEVER), now + _TOGETHER_MS)
            self._next_ms = max(min(next_ms, now + _LOOK_MS, expected_ms), now)
            return (self._next_ms - now) / 1000

    def _note_trouble(self, text: str) -> None:
        if text != self._last_trouble:
            self._last_trouble = text
            logger.warning(
                "delayed messages cannot be delivered now (%s); none is lost, and delivery is tried again every second",
                text,
            )

    def _round(self, store: OpenStore, now: int) -> int:
        """Deliver what is due of each level, a part of it if there is much; returns when the next message is due."""
        next_ms = _NEVER
        for level in self._levels:
            next_ms = min(next_ms, self._deliver(store, level, now))
        left_ms = self._unsaved_ms + self._save_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            self._save(store)
            return next_ms
        return min(next_ms, now + left_ms)

    def _save(self, store: OpenStore) -> None:
        """Save the progress, after the copies that it counts are durable; not before all are counted."""
        if self._made is not None:
            return
        if not self._offsets.is_saved:
            self._offsets.log_end = store.flush()
            self._offsets.save()
        self._unsaved_ms = _NEVER

    def _advance(self, level: int, offset: int) -> None:
        """Set how far a level is delivered."""
        self._offsets.set(level, offset)
        if self._unsaved_ms == _NEVER:
            self._unsaved_ms = self._clock.monotonic_ms()

    def _clamp(self, store: OpenStore, level: int) -> tuple[int, int]:
        """Return where a level continues, and its queue's end; moves progress outside of the queue into it."""
        queue, offset = queue_of(level), self._offsets.get(level)
        low = store.min_offset(SCHEDULE_TOPIC, queue)
        high = store.max_offset(SCHEDULE_TOPIC, queue)
        inside = min(max(offset, low), high)
        if inside != offset:
            if offset:
                logger.warning(
                    "delay level %d was delivered to queue offset %d, and its queue has offsets %d to %d: it continues "
                    "at %d",
                    level, offset, low, high, inside,
                )  # fmt: skip
            self._advance(level, inside)
        return inside, high

    # --- one level

    def _pass_made(self, store: OpenStore, now: int) -> bool:
        """Count a part of what earlier openings have delivered and not saved; returns whether there is more.

        This comes before anything is delivered and saved here. What is not due by this clock may be delivered, too: the
        clock of another machine, whose copy this store is, or this one before it was set, may have been ahead. Each
        level was delivered in its order, so what comes before a message that is delivered is delivered, refused, or
        gone; and after so many that were not, none is.
        """
        made = self._made
        while made is not None and self._looked_to:
            level, at = next(iter(self._looked_to.items()))
            entries = store.queue_entries(SCHEDULE_TOPIC, queue_of(level), at, at + _COUNT_MAX)
            is_ahead = bool((entries.tag_codes[:1] > now + _AHEAD_MS).any())
            if is_ahead and at - self._offsets.get(level) >= _COUNT_MAX:
                del self._looked_to[level]
                continue
            fitting = _within(entries.sizes.tolist(), _BYTES_MAX)
            found = store.read(SCHEDULE_TOPIC, queue_of(level), at, max(fitting, 1))
            if found.next_offset <= at:
                del self._looked_to[level]
                continue
            for message in found.messages:
                with suppress(MessageError):
                    if made.count_out(message, delivered(message)):
                        self._advance(level, message.queue_offset + 1)
            self._looked_to[level] = found.next_offset
            return True
        self._made = None
        return False

    def _deliver(self, store: OpenStore, level: int, now: int) -> int:
        """Deliver what is due of one level, at most a batch; returns when the level is to be looked at again."""
        offset, high = self._clamp(store, level)
        if offset >= high:
            return _NEVER
        stop = min(high, offset + _COUNT_MAX)
        entries = store.queue_entries(SCHEDULE_TOPIC, queue_of(level), offset, stop)
        if not len(entries.sizes):
            return self._pass_hole(store, level, offset, now)
        # What was stored since the round began is not from before a clock that went back.
        now = self._clock.time_ms()
        count, next_ms = self._count_due(store, level, offset, entries, now)
        if count:
            fitting = _within(entries.sizes[:count].tolist(), _BYTES_MAX)
            self._deliver_range(store, level, offset, offset + fitting)
            if fitting < count:
                return now
        return next_ms if offset + count < high else _NEVER

    def _pass_hole(self, store: OpenStore, level: int, offset: int, now: int) -> int:
        """Continue after entries that the queue has lost; returns when the level is to be looked at again."""
        found = store.read(SCHEDULE_TOPIC, queue_of(level), offset, 1)
        if found.next_offset <= offset:
            return _NEVER
        if not found.messages:
            lost = f"the queue has lost its entries {offset} to {found.next_offset - 1}"
            self._advance(level, found.next_offset)
            self._skip(level, [lost])
        return now

    def _count_due(
        self, store: OpenStore, level: int, offset: int, entries: QueueEntries, now: int
    ) -> tuple[int, int]:
        """Return how many of the first entries are due, and when the next one is to be looked at."""
        codes = entries.tag_codes
        later = ((entries.sizes != 0) & ((codes > now) | (codes < 0))).nonzero()[0]
        if not len(later):
            return len(codes), now
        count = int(later[0])
        code = int(codes[count])
        if 0 <= code <= now + delay_ms(level):
            return count, max(code, now + _TOGETHER_MS)
        if count:
            return count, now
        # The time is missing, or later than a message of this level that was stored by now can have: the clock went
        # back, or a broker with longer levels stored it. The record knows.
        return self._count_due_records(store, level, offset, codes.tolist(), now)

    def _count_due_records(
        self, store: OpenStore, level: int, offset: int, codes: Sequence[int], now: int
    ) -> tuple[int, int]:
        """Do as `_count_due`, by the times in the records."""
        found = store.read(SCHEDULE_TOPIC, queue_of(level), offset, min(len(codes), _RECORDS_MAX))
        messages = {message.queue_offset: message for message in found.messages}
        known = min(found.next_offset - offset, len(codes))
        for count in range(known):
            # A message that is gone or corrupt is due: it is passed over.
            message = messages.get(offset + count)
            due_ms = now if message is None else due_time_ms(message, codes[count], level, now)
            if due_ms > now:
                return count, max(due_ms, now + _TOGETHER_MS)
        return known, now + _TOGETHER_MS

    def _deliver_range(self, store: OpenStore, level: int, start: int, stop: int) -> None:
        """Put the copies of the messages in [start, stop), and count them as delivered."""
        found = store.read(SCHEDULE_TOPIC, queue_of(level), start, stop - start).messages
        messages = [message for message in found if message.queue_offset < stop]
        refused = []
        if len(messages) < stop - start:
            missing = stop - start - len(messages)
            refused.append(f"{missing} of the messages {start} to {stop - 1} are gone or corrupt")
        copies: list[tuple[int, Copy]] = []
        for message in messages:
            try:
                copy = delivered(message)
                self._check(copy[0].topic, copy[0].queue)
                copies.append((message.queue_offset, copy))
            except MessageError as error:
                refused.append(_refusal(message.log_offset, error))
                self._keep(message, str(error))
        refused += self._put(store, level, copies)
        self._advance(level, stop)
        self._skip(level, refused)

    def _put(self, store: OpenStore, level: int, copies: Sequence[tuple[int, Copy]]) -> list[str]:
        """Put copies, together if possible; returns a sentence for each that cannot be stored."""
        try:
            if copies:
                store.put_copies([copy for _, copy in copies])
            self._delivered += len(copies)
        except MessageError as error:
            if len(copies) == 1:
                offset, (message, _) = copies[0]
                for each in store.read(SCHEDULE_TOPIC, queue_of(level), offset, 1).messages:
                    self._keep(each, str(error))
                return [f"message {offset}, to {message.topic}/{message.queue}: {error}"]
        else:
            return []
        refused = []
        for one in copies:
            refused += self._put(store, level, [one])
            # If the next put fails, this one is not repeated.
            self._advance(level, one[0] + 1)
        return refused

    def _skip(self, level: int, reasons: Sequence[str]) -> None:
        """Log what is not delivered, and count it."""
        if reasons:
            self._skipped += len(reasons)
            more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            logger.warning(
                "delay level %d: not delivered, and passed over: %s%s. What is stored of it is a dead letter: see "
                "penstock dlq; it stays in %s until retention deletes it",
                level, reasons[0], more, SCHEDULE_TOPIC,
            )  # fmt: skip


def _refusal(log_offset: int, error: MessageError) -> str:
    return f"the message at log offset {log_offset}: {error}"


def due_time_ms(message: StoredMessage, code: int, level: int, now: int) -> int:
    """Return when a waiting message is due, if the time in its queue entry cannot be right at `now`.

    The time counts from when the message was stored; if the clock has gone back to before that, from when it was born
    (store times do not decrease, so a message that is stored after the clock went back may have a later store time); if
    that is to come as well, the message is due now. A clock that has gone back by a little, and less than the delay,
    makes the message wait that much longer: when a retry was born says nothing.
    """
    start_ms = message.store_time_ms
    given_ms = code - start_ms
    # A negative code is none; another level's delay is that of a broker that was configured so.
    wait_ms = given_ms if code > 0 and 0 < given_ms <= _DELAY_MAX_MS else delay_ms(level)
    if start_ms > now + min(wait_ms, _LITTLE_MS):
        start_ms = message.born_time_ms
        if start_ms > now:
            return now
    return start_ms + wait_ms


def _within(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first sizes are together at most a limit; at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > limit:
            return count
    return len(sizes)


def summary_line(store: OpenStore, delivery: Delivery | None, context: Context) -> SummaryLine:
    """Return how many messages wait at a delay level, retries among them; see `Extension.summary`.

    Without a delivery, another process may deliver them: by what it has saved.
    """
    if delivery is None:
        offsets = DelayOffsets(context)
        offsets.load()
        found = waiting(store, offsets)
    else:
        found = delivery.waiting()
    count = sum(found.values())
    return SummaryLine("delays", "wait at a delay level", f"{count:,}", {"waiting": count})


def waiting(
    store: OpenStore, offsets: DelayOffsets, levels: Sequence[int] | None = None
) -> dict[int, int]:
    """Return how many messages wait to be delivered, by level; for any store, also one that another process writes.

    Args:
        store: an open store.
        offsets: its table, loaded.
        levels: which levels; None for all that the store has queues of.
    """
    if levels is None:
        levels = [level_of(queue) for queue in store.topics(system=True).get(SCHEDULE_TOPIC, ())]
    found = {}
    for level in levels:
        queue = queue_of(level)
        low, high = store.min_offset(SCHEDULE_TOPIC, queue), store.max_offset(SCHEDULE_TOPIC, queue)
        count = high - min(max(offsets.get(level), low), high)
        if count:
            found[level] = count
    return found
