"""The waiting messages, read from the log: the result of `Store.delayed`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import StoredMessage
from penstock.contracts import DelayedMessage, OpenStore, SummaryLine
from penstock.errors import CorruptionError, MessageError, OffsetError
from penstock_messaging.delays.schedule import destination
from penstock_messaging.properties_text import TIMER_TOPIC, stored_pairs
from penstock_messaging.timers.timer_message import Timer, timer_of
from penstock_messaging.timers.waiting_timers import CANCELS, WaitingTimer

if TYPE_CHECKING:
    from penstock_messaging.timers.timer_delivery import TimerDelivery


def listed(store: OpenStore, entries: Iterable[WaitingTimer]) -> list[DelayedMessage]:
    """Return the messages of entries that will be delivered, by due time.

    Left out are messages that are cancelled, gone or corrupt, or that have no topic to go to.
    """
    found: list[tuple[Timer, StoredMessage]] = []
    for entry in entries:
        try:
            message = store.at(entry.log_offset)
            if message.topic == TIMER_TOPIC:
                found.append((timer_of(message), message))
        except (MessageError, OffsetError, CorruptionError):
            continue
    cancelled = {(timer.second_ms, timer.cancels) for timer, _ in found if timer.cancels}
    made = []
    for timer, message in found:
        if timer.cancels or (timer.second_ms, timer.key) in cancelled:
            continue
        try:
            topic, queue = destination(stored_pairs(message))
        except MessageError:
            continue
        made.append(DelayedMessage(
            message.message_id, topic, queue, timer.due_ms, message.born_time_ms, len(message.body)
        ))  # fmt: skip
    return sorted(made, key=lambda each: each.due_ms)


def summary_line(store: OpenStore, timers: "TimerDelivery") -> SummaryLine:
    """Return how many messages wait for their time, and who can deliver them; see `Extension.summary`."""
    entries = timers.entries()
    count, first_ms = len(entries), timers.first_due_ms()
    if any(entry.kind & CANCELS for entry in entries):
        # Only the records say which messages these cancel.
        found = listed(store, entries)
        count, first_ms = len(found), found[0].due_ms if found else None
    value = {"waiting": count, "first_due_ms": first_ms}
    more = "; a broker of 4.x cannot deliver them" if count else ""
    return SummaryLine("timers", "wait for their time", f"{count:,}{more}", value)
