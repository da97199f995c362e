"""Messages that request more than to be stored: a delay, or the queue of a partition key.

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
    if given.queue is None and given.partition_key is None:
        given.queue = batch.encoder.cursor_of(given.topic, None).queue
    rewrite = batch.encoder.rewrite
    if rewrite is None:
        raise MessageError(
            "a message with a delay or a partition_key is refused: no extension is used here that handles it; "
            "nothing was stored"
        )
    made = rewrite(given)
    if not is_plain(made[0] if isinstance(made, tuple) else made):
        raise PluginError(
            "an extension returned a message that still has a delay or a partition_key; nothing was stored"
        )
    return made


def _checked(message: Message) -> Message:
    """Return a message whose delays are numbers, of seconds and whole milliseconds, and no level if that is 0."""
    try:
        level = arguments.whole("put", "delay_level", message.delay_level, arguments.INT64_MIN)
    except ArgumentError:
        raise NumberError("delay_level", message.delay_level) from None
    at = message.deliver_at
    try:
        delay_ms = arguments.duration_ms("put", "delay", message.delay)
        at_ms = None if at is None else arguments.moment_ms("put", "deliver_at", at, up=True)
    except ArgumentError as error:
        raise MessageError(
            f"{error.argument} {shown(error.value)} is refused: it must be {error.expected}; nothing was stored"
        ) from None
    at = None if at_ms is None else at_ms / 1000
    # The kernel takes only the integer 0 for no delay.
    return message.__replace__(delay_level=level, delay=delay_ms and delay_ms / 1000, deliver_at=at)


def is_plain(message: Message) -> bool:
    """Return whether a message requests only to be stored."""
    has_time = message.delay_level or message.delay or message.deliver_at is not None
    return not has_time and message.partition_key is None
