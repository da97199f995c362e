"""What is refused of a message, and in which words; and batches of messages.

The kernel takes what is plain by itself (see `RecordEncoder`), and calls these for all else: they return what is to
be stored, or raise.
"""

from collections.abc import Mapping, Sequence

from penstock._kernel import Batch, Message, RecordEncoder
from penstock.errors import MessageError, MessageTooLargeError, NotYetError
from penstock.format.properties import check_zeros, encode_properties
from penstock.format.record import CRC_PROPERTY_SIZE, PROPERTIES_BYTES_MAX, encode_host

# Messages that are encoded before another thread may run, well under a millisecond.
_AT_ONCE = 512


def check_body(body: object, delay_level: int, body_bytes_max: int) -> bytes:
    """Return a body as bytes; refuse one too large, and a delay."""
    if not isinstance(body, bytes | bytearray | memoryview):
        # Text is refused, since its encoding would be a guess.
        raise MessageError(f"the body must be bytes, not {type(body).__name__}: encode it first")
    taken = bytes(body)
    if len(taken) > body_bytes_max:
        raise MessageTooLargeError(
            "the body", len(taken), body_bytes_max, "shorten it, or raise log.body_bytes_max"
        )
    if delay_level:
        raise NotYetError(
            f"delay_level {delay_level} is refused: delayed delivery does not exist yet; use 0"
        )
    return taken


def text_of(
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    *,
    crc_property: bool,
) -> bytes:
    """Return the properties text, without a CRC; refuse what cannot be stored."""
    return check_text(encode_properties(tag, keys, properties), crc_property=crc_property)


def check_text(text: bytes, *, crc_property: bool) -> bytes:
    """Return a properties text that has room for the CRC property, if that is on; refuse what cannot be stored."""
    room = CRC_PROPERTY_SIZE if crc_property else 0
    if len(text) + room > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "the properties text", len(text), PROPERTIES_BYTES_MAX - room, "shorten it"
        )
    if not crc_property:
        check_zeros(text)
    return text


def host_bytes(text: str) -> bytes:
    """Return a host's bytes; `MessageError` for what is no `address:port`."""
    try:
        return encode_host(text)
    except (ValueError, OverflowError, AttributeError) as error:
        raise MessageError(
            f"host {text!r} is refused: it must be 'address:port' ({error})"
        ) from error


class NumberError(MessageError):
    """A number of a message is none, or does not fit its field."""

    def __init__(self, name: str, value: object) -> None:
        self.detail = f"does not fit its field: {name} {value!r}"
        super().__init__(f"a number of the message {self.detail}")


def transaction_refused() -> MessageError:
    """Return the error for a batch that part of a transaction was to go into."""
    return MessageError("a prepared or rolled back message cannot be part of a batch")


def encode_messages(encoder: RecordEncoder, messages: Sequence[Message]) -> Batch:
    """Return messages as one batch; the first that cannot be stored stops it, nothing is written."""
    batch, given = Batch(encoder, seals=False), list(messages)
    while len(batch) < len(given):
        # Some at a time: within a call no other thread runs, and no signal is seen.
        first = len(batch)
        try:
            batch.add_all(given[first : first + _AT_ONCE])
        except NumberError as error:
            raise MessageError(f"message {len(batch)}: a number {error.detail}") from error
        except MessageError as error:
            error.add_note(f"it is message {len(batch)} of the batch; nothing was stored")
            raise
    return batch
