"""Validates messages, and encodes batches of messages.

The compiled kernel encodes plain messages itself (see `RecordEncoder`), and calls these functions for all others:
they return the bytes to store, or raise `MessageError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from penstock._kernel import Batch, Message, RecordEncoder
from penstock.errors import (
    ArgumentError,
    ArgumentTypeError,
    MessageError,
    MessageTooLargeError,
    shown,
)
from penstock.format import arguments
from penstock.format.properties import check_zeros, encode_properties
from penstock.format.record import CRC_PROPERTY_SIZE, PROPERTIES_BYTES_MAX, encode_host

# The number of messages encoded before another thread may run; it takes well under a millisecond.
_AT_ONCE = 512


def check_wait(wait: object) -> bool:
    """Return whether a put waits under a flush policy that makes puts wait; raises `MessageError` unless it is a bool."""
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
    taken = bytes(body)
    if len(taken) > body_bytes_max:
        raise MessageTooLargeError(
            "the body",
            len(taken),
            body_bytes_max,
            "use a shorter body, or increase log.body_bytes_max",
        )
    return taken


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
    """Return `text`; raises `MessageError` if it cannot be stored, together with the CRC property if that is enabled."""
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
    batch, given = Batch(encoder, seals=False), list(messages)
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
