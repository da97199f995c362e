"""When a message is to be delivered, of what its caller requests: checked, and as one time. Pure functions."""

from penstock import Message
from penstock.errors import MessageError
from penstock.format import arguments


def due_ms_of(message: Message, now_ms: int, *, delay_max_ms: int, is_refused: bool) -> int:
    """Return when a message with `delay` or `deliver_at` is due, Unix milliseconds; not after `now_ms` means at once.

    Args:
        message: what the caller puts.
        now_ms: the time now.
        delay_max_ms: the longest delay.
        is_refused: whether the store takes no such messages.

    Raises:
        MessageError: more than one delay is requested, or a too long one, or the store takes none.
    """
    delay, at = message.delay, message.deliver_at
    requested = [
        name
        for name, is_given in (
            ("delay_level", message.delay_level != 0),
            ("delay", delay != 0),
            ("deliver_at", at is not None),
        )
        if is_given
    ]
    if len(requested) > 1:
        raise MessageError(
            f"a message with {' and '.join(requested)} is refused: give one of them; nothing was stored"
        )
    if at is None:
        due_ms = now_ms + arguments.duration_ms("put", "delay", delay)
    else:
        due_ms = arguments.moment_ms("put", "deliver_at", at, up=True, ago=False)
    if due_ms <= now_ms:
        return now_ms
    if is_refused:
        raise MessageError(
            f'{requested[0]} is refused: extensions.messaging.timers of this store is "refuse", as for a directory '
            "that a broker of 4.x takes over, which cannot deliver at any time; use one of the 18 levels, "
            "delay_level. Nothing was stored"
        )
    if due_ms - now_ms > delay_max_ms:
        raise MessageError(
            f"a delay of {(due_ms - now_ms) / 1000:.15g} s is refused: the longest is {delay_max_ms / 1000:.15g} s "
            f"(extensions.messaging.delay_max_ms); nothing was stored"
        )
    return due_ms
