"""Messages that request more than to be stored: a delay, a partition key, or the next queue in turn.

The kernel passes them here, and an extension decides what is stored in their place; see `Extension.rewrite`.
"""

from penstock._kernel import Batch, Message
from penstock.errors import ArgumentError, MessageError, PluginError
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
    try:
        level = arguments.whole("put", "delay_level", message.delay_level, arguments.INT64_MIN)
    except ArgumentError:
        raise NumberError("delay_level", message.delay_level) from None
    given = message.__replace__(delay_level=level)
    if is_plain(given):
        return given
    rewrite = batch.encoder.rewrite
    if rewrite is None:
        raise MessageError(
            "a message with a delay_level, a partition_key or no queue is refused: no extension is used here that handles it; "
            "nothing was stored"
        )
    made = rewrite(given)
    if not is_plain(made[0] if isinstance(made, tuple) else made):
        raise PluginError(
            "an extension returned a message that still has a delay_level, a partition_key or no queue; nothing was stored"
        )
    return made


def is_plain(message: Message) -> bool:
    """Return whether a message requests only to be stored."""
    return message.delay_level == 0 and message.queue is not None and message.partition_key is None
