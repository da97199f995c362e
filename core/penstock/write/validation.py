"""Validates messages, and encodes batches of messages.

The compiled kernel encodes plain messages itself (see `RecordEncoder`), and calls these functions for all others:
they return the bytes to store, or raise `MessageError`. An extension decides what is stored in place of a message with
a delay or a partition key; see `Extension.rewrite`.

`put` makes the properties text from tag, keys and properties, and refuses some of them, for example a request for a
delayed delivery. A copy of a message that is stored elsewhere keeps the text that it has there, byte by byte.
"""

import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from penstock._kernel import Batch, Message, RecordEncoder
from penstock.config.model import BODY_BYTES_MAX
from penstock.errors import (
    ArgumentError,
    ArgumentTypeError,
    MessageError,
    MessageTooLargeError,
    PluginError,
)
from penstock.escape import shown
from penstock.format import arguments
from penstock.format.properties import check_zeros, encode_properties
from penstock.format.record import (
    CRC_PROPERTY_SIZE,
    PROPERTIES_BYTES_MAX,
    RecordFields,
    encode_host,
    encode_record,
)

# The number of messages encoded before another thread may run; it takes well under a millisecond.
_AT_ONCE = 512


def check_wait(wait: object) -> bool:
    """Return whether a put waits if the flush policy makes puts wait; raises `MessageError` unless it is a bool."""
    try:
        return arguments.flag("put", "wait", wait)
    except ArgumentError as error:
        raise MessageError(
            f"wait {shown(wait)} is refused: it must be {error.expected}; nothing was stored"
        ) from None


def listed(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a batch as a list; refuses anything that is not an iterable of messages."""
    if isinstance(messages, Message | str | bytes | bytearray) or not isinstance(
        messages, Iterable
    ):
        expected = "a list of penstock.Message, for example [Message(topic, body)]"
        raise ArgumentTypeError("put_many", "messages", messages, expected)
    return list(messages)


def check_messages(given: Sequence[object]) -> None:
    """Raise `ArgumentTypeError` for the first object that is not a message."""
    expected = "a penstock.Message, for example Message(topic, body)"
    for number, each in enumerate(given):
        arguments.instance("put_many", f"messages[{number}]", each, Message, expected)


def check_body(body: object, body_bytes_max: int) -> bytes:
    """Return a body as bytes; raises `MessageError` if it is invalid or too large."""
    if not isinstance(body, bytes | bytearray | memoryview):
        # Text is refused, since its encoding would be a guess.
        raise MessageError(
            f"the body must be bytes, not {type(body).__name__}: encode it first; nothing was stored"
        )
    copied = bytes(body)
    if len(copied) > body_bytes_max:
        raise MessageTooLargeError(
            "the body",
            len(copied),
            body_bytes_max,
            "use a shorter body, or increase log.body_bytes_max",
        )
    return copied


def text_of(
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    *,
    crc_property: bool,
) -> bytes:
    """Return the properties text, without a CRC; raises `MessageError` if it cannot be stored."""
    return check_text(encode_properties(tag, keys, properties), crc_property=crc_property)


def check_text(text: bytes, *, crc_property: bool) -> bytes:
    """Return `text`; raises `MessageError` if it cannot be stored, with the CRC property if that is enabled."""
    room = CRC_PROPERTY_SIZE if crc_property else 0
    if len(text) + room > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "the properties text", len(text), PROPERTIES_BYTES_MAX - room, "use shorter properties"
        )
    if not crc_property:
        check_zeros(text)
    return text


def host_bytes(text: str) -> bytes:
    """Return a host as bytes; raises `MessageError` unless it is `address:port`."""
    try:
        return encode_host(text)
    except (ValueError, OverflowError, AttributeError, TypeError) as error:
        raise MessageError(
            f"host {shown(text)} is refused: it must be 'address:port' ({error})"
        ) from error


class NumberError(MessageError):
    """A number of a message is not an integer, or does not fit into its field."""

    def __init__(self, name: str, value: object) -> None:
        is_number = isinstance(value, SupportsIndex)
        problem = "does not fit into its field" if is_number else "must be a whole number"
        self.detail = f"{problem}: {name} {shown(value)}"
        super().__init__(f"a number of the message {self.detail}")


def transaction_refused() -> MessageError:
    """Return the error for a batch that contains a message of a transaction."""
    return MessageError("a prepared or rolled back message cannot be part of a batch")


def encode_messages(encoder: RecordEncoder, messages: Sequence[Message]) -> Batch:
    """Return messages as one batch; raises at the first message that cannot be stored, and writes nothing."""
    batch, given = Batch(encoder), list(messages)
    while len(batch) < len(given):
        # In parts: during a call no other thread runs, and no signal is handled.
        first = len(batch)
        try:
            batch.add_all(given[first : first + _AT_ONCE])
        except NumberError as error:
            raise MessageError(f"message {len(batch)}: a number {error.detail}") from error
        except MessageError as error:
            error.add_note(f"it is message {len(batch)} of the batch; nothing was stored")
            raise
    return batch


def encode_copies(encoder: RecordEncoder, copies: Iterable[tuple[Message, bytes]]) -> Batch:
    """Return messages as one batch; raises at the first that cannot be stored, and writes nothing.

    Args:
        encoder: of the store.
        copies: messages, each with its properties text in place of its own tag, keys and properties.
    """
    batch = Batch(encoder)
    for message, text in copies:
        add_copy(batch, message, text)
    return batch


def add_copy(batch: Batch, message: Message, text: bytes) -> None:
    """Add one copy to a batch; raises `MessageError` if it cannot be stored, and adds nothing.

    Extensions are not asked whether puts to its queue are allowed: a copy may go where callers may not use.
    """
    encoder = batch.encoder
    is_plain = message.queue is not None and message.partition_key is None
    if not is_plain or (message.delay_level, message.delay, message.deliver_at) != (0, 0, None):
        raise MessageError(
            "a copy with a delay, a partition_key or no queue is refused: its properties text and queue are stored as "
            "they are; nothing was stored"
        )
    cursor = (encoder.make_copy_cursor or encoder.cursor_of)(message.topic, message.queue)
    # The limit of the store is one for callers: stored messages may be larger, by an earlier limit or a broker's.
    body = check_body(message.body, BODY_BYTES_MAX)
    check_text(text, crc_property=encoder.crc_property)
    born, host = message.born_time_ms, message.born_host
    fields = RecordFields(
        topic=cursor.topic_bytes, body=body, queue=cursor.queue, flag=message.flag,
        sys_flag=message.sys_flag, born_time_ms=encoder.now_ms() if born is None else born,
        born_host=encoder.store_host if host is None else host_bytes(host),
        store_host=encoder.store_host, reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset, properties=text,
    )  # fmt: skip
    record = _record(fields)
    if operator.index(message.prepared_offset) < 0:
        # Negative numbers are marks of atomic batches.
        raise NumberError("prepared_offset", message.prepared_offset)
    batch.add_record(cursor, record, has_crc=False)


def _record(fields: RecordFields) -> bytes:
    try:
        return encode_record(fields)
    except (struct.error, TypeError, OverflowError) as error:
        raise MessageError(
            f"a number of the message does not fit into its field: {error}"
        ) from error


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
        at_ms = (
            None if at is None else arguments.moment_ms("put", "deliver_at", at, up=True, ago=False)
        )
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
