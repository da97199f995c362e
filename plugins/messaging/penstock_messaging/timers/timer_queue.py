"""Takes in the messages of the timer topic, in the order in which they were put.

A message that waits longer than the window of a broker's wheel, two days, is looked at earlier, and put to the topic
again. So its record is never much older than that, and retention does not delete it while it waits.
"""

from collections.abc import Callable

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock.errors import CorruptionError, MessageError, OffsetError
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_message import SECOND_MS, Timer, timer_of
from penstock_messaging.timers.waiting_timers import CANCELS, ROLLS, WAITS, WaitingTimer

# A broker's `timerRollWindowSlot`, in seconds.
_WINDOW_MS = 172_800 * SECOND_MS
# Maximum number of messages that are taken in at once.
COUNT_MAX = 1000

AddTimer = Callable[[WaitingTimer, Timer, StoredMessage], None]
Refuse = Callable[[str], None]


class TimerQueue:
    """How far the timer topic's queue is taken in. Not thread-safe.

    Attributes:
        offset: the queue offset of the next message.
    """

    def __init__(self) -> None:
        self.offset = 0

    def is_read(self, store: OpenStore) -> bool:
        """Return whether everything that readers see is taken in."""
        return self.offset >= store.max_offset(TIMER_TOPIC, 0)

    def read_new(self, store: OpenStore, now_ms: int, add: AddTimer, refuse: Refuse) -> bool:
        """Take in the next messages, at most `COUNT_MAX`; return whether there may be more.

        Args:
            store: the store.
            now_ms: the time now.
            add: called with each message; after an interrupt within with the same one again.
            refuse: called with a sentence about messages that cannot be taken in.
        """
        low, high = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
        inside = min(max(self.offset, low), high)
        if inside != self.offset:
            if self.offset:
                refuse(
                    f"the queue was read to {self.offset}, and has the offsets {low} to {high}: it continues at "
                    f"{inside}"
                )
            self.offset = inside
        if inside >= high:
            return False
        found = store.read(TIMER_TOPIC, 0, inside, COUNT_MAX)
        missing = found.next_offset - inside - len(found.messages)
        if missing > 0:
            refuse(
                f"{missing} of the messages {inside} to {found.next_offset - 1} are gone or corrupt"
            )
        for message in found.messages:
            try:
                timer = timer_of(message)
            except MessageError as error:
                refuse(f"the message at log offset {message.log_offset}: {error}")
            else:
                add(entry_of(message, timer, now_ms), timer, message)
            # One by one: an interrupt may come at any time.
            self.offset = message.queue_offset + 1
        self.offset = max(found.next_offset, inside)
        return inside < self.offset < high


def waiting_message(store: OpenStore, entry: WaitingTimer) -> StoredMessage:
    """Return the message of an entry, which may come from a file.

    Raises:
        MessageError: it is not one that waits.
        OffsetError, CorruptionError: it is gone or corrupt.
    """
    message = store.at(entry.log_offset)
    if message.topic != TIMER_TOPIC or message.queue != 0:
        raise MessageError(f"it is in {message.topic}/{message.queue}, not in {TIMER_TOPIC}")
    return message


def waiting_timer(store: OpenStore, entry: WaitingTimer) -> Timer | None:
    """Return what the message of an entry requests; None if it is gone or corrupt."""
    try:
        return timer_of(waiting_message(store, entry))
    except (MessageError, OffsetError, CorruptionError):
        return None


def may_roll(timer: Timer, since_ms: int) -> bool:
    """Return whether a message that was put at a time is put again on the way."""
    return timer.out_ms - since_ms >= _WINDOW_MS - SECOND_MS


def entry_of(message: StoredMessage, timer: Timer, now_ms: int) -> WaitingTimer:
    """Return the entry of a message that is taken in now."""
    enqueue_ms = now_ms // SECOND_MS * SECOND_MS
    kind = WAITS | (CANCELS if timer.cancels else 0)
    slot_ms = timer.second_ms
    ahead_ms = slot_ms - enqueue_ms
    if ahead_ms >= _WINDOW_MS:
        kind |= ROLLS
        # As in a broker: a last wait of at least half a window.
        is_last = ahead_ms - _WINDOW_MS < _WINDOW_MS // 3
        slot_ms = enqueue_ms + (_WINDOW_MS // 2 if is_last else _WINDOW_MS)
    return WaitingTimer(slot_ms, message.log_offset, len(message.record), kind, enqueue_ms)
