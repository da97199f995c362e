"""Which messages of the timer topic were put to it again on the way, so that a copy waits in their place.

The timer log says so of each message. Where it is lost, or was never there, as in a copy of a store, the messages themselves must:
a copy has the time and the key of the message before it, and one more in TIMER_ROLL_TIMES. Of a message without a UNIQ_KEY nothing
can be said; brokers and Penstock put none.
"""

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock.errors import MessageError
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_message import Timer, rolls_of, timer_of
from penstock_messaging.timers.timer_queue import COUNT_MAX, may_roll

_About = tuple[int, bytes, bytes]


class RolledTimers:
    """The copies in the timer topic; it is read at the first message of which there may be one. Not thread-safe.

    Args:
        store: open, with its recovery done.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._rolls: dict[_About, int] | None = None

    def has_copy(self, message: StoredMessage, timer: Timer) -> bool:
        """Return whether a copy of a message was put to the timer topic; `timer` is what the message requests."""
        if not may_roll(timer, message.store_time_ms) or not (timer.key or timer.cancels):
            return False
        if self._rolls is None:
            self._rolls = self._read()
        return self._rolls.get(_about(timer), 0) > rolls_of(message)

    def _read(self) -> dict[_About, int]:
        found: dict[_About, int] = {}
        offset, high = self._store.min_offset(TIMER_TOPIC), self._store.max_offset(TIMER_TOPIC)
        while offset < high:
            part = self._store.read(TIMER_TOPIC, 0, offset, COUNT_MAX)
            for message in part.messages:
                rolls = rolls_of(message)
                if not rolls:
                    continue
                try:
                    about = _about(timer_of(message))
                except MessageError:
                    continue
                found[about] = max(found.get(about, 0), rolls)
            if part.next_offset <= offset:
                break
            offset = part.next_offset
        return found


def _about(timer: Timer) -> _About:
    return timer.second_ms, timer.key, timer.cancels
