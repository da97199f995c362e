"""Messages that request more than to be stored: a delay, a partition key, or the next queue in turn.

The kernel passes them here, and an extension decides what is stored in their place; see `Extension.rewrite`.
"""

from penstock._kernel import Batch, Message
from penstock.errors import ArgumentError, MessageError, PluginError, shown
from penstock.format import arguments
from penstock.write.copies import add_copy
from penstock.write.validation import NumberError


def add_rewritten(batch: Batch, message: Message) -> None:
    """Add what is stored in place of such a message; raises `MessageError` if nothing is, and adds nothing."""
    made = rewritten(batch, message)
    if isinstance(made, tuple):
        add_copy(batch, *made)
    else:
        batch.add(made)


def rewritten(batch: Batch, message: Message) -> Message | tuple[Message, bytes]:
    """Return the message, or the copy with its properties text, that is stored in place of such a message."""
    given = _checked(message)
    if is_plain(given):
        return given
    rewrite = batch.encoder.rewrite
    if rewrite is None:
        raise MessageError(
            "a message with a delay, a partition_key or no queue is refused: no extension is used here that handles it; "
            "nothing was stored"
        )
    made = rewrite(given)
    if not is_plain(made[0] if isinstance(made, tuple) else made):
        raise PluginError(
            "an extension returned a message that still has a delay, a partition_key or no queue; nothing was stored"
        )
    return made


def _checked(message: Message) -> Message:
    """Return a message whose delays are numbers, and which is to be delivered at Unix milliseconds if at a time."""
    level = _whole("delay_level", message.delay_level)
    delay_ms = _whole("delay_ms", message.delay_ms)
    at_ms = message.deliver_at
    if at_ms is not None:
        try:
            at_ms = arguments.time_ms("put", "deliver_at", at_ms, up=True)
        except ArgumentError as error:
            raise MessageError(
                f"deliver_at {shown(error.value)} is refused: it must be {error.expected}; nothing was stored"
            ) from None
    return message.__replace__(delay_level=level, delay_ms=delay_ms, deliver_at=at_ms)


def _whole(name: str, value: object) -> int:
    try:
        return arguments.whole("put", name, value, arguments.INT64_MIN)
    except ArgumentError:
        raise NumberError(name, value) from None


def is_plain(message: Message) -> bool:
    """Return whether a message requests only to be stored."""
    delay = message.delay_level, message.delay_ms, message.deliver_at
    return delay == (0, 0, None) and message.queue is not None and message.partition_key is None
