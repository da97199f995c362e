"""Copies of messages: encodes a message with a properties text that is taken over byte by byte.

`put` makes the properties text from tag, keys and properties, and refuses some of them, for example a request for a
delayed delivery. A copy of a message that is stored elsewhere keeps the text that it has there.
"""

import struct
from collections.abc import Iterable

from penstock._kernel import Batch, Message, RecordEncoder
from penstock.config.model import BODY_BYTES_MAX
from penstock.errors import MessageError
from penstock.format.record import RecordFields, encode_record
from penstock.write.validation import NumberError, check_body, check_text, host_bytes


def encode_copies(encoder: RecordEncoder, copies: Iterable[tuple[Message, bytes]]) -> Batch:
    """Return messages as one batch; raises at the first that cannot be stored, and writes nothing.

    Args:
        encoder: of the store.
        copies: messages, each with its properties text in place of its own tag, keys and properties.
    """
    batch = Batch(encoder, seals=False)
    for message, text in copies:
        add_copy(batch, message, text)
    return batch


def add_copy(batch: Batch, message: Message, text: bytes) -> None:
    """Add one copy to a batch; raises `MessageError` if it cannot be stored, and adds nothing.

    Extensions are not asked whether puts to its queue are allowed: a copy may belong to a topic that callers must not put to.
    """
    encoder = batch.encoder
    is_plain = message.queue is not None and message.partition_key is None
    if not is_plain or (message.delay_level, message.delay, message.deliver_at) != (0, 0, None):
        raise MessageError(
            "a copy with a delay, a partition_key or no queue is refused: its properties text and queue are stored as "
            "they are; nothing was stored"
        )
    cursor = (encoder.make_copy_cursor or encoder.cursor_of)(message.topic, message.queue)
    # The limit of the store is one for callers: what is stored already may be larger, by an earlier limit or a broker's.
    body = check_body(message.body, BODY_BYTES_MAX)
    if message.prepared_offset < 0:
        # Negative numbers are marks of atomic batches.
        raise NumberError("prepared_offset", message.prepared_offset)
    check_text(text, crc_property=encoder.crc_property)
    born, host = message.born_time_ms, message.born_host
    fields = RecordFields(
        topic=cursor.topic_bytes, body=body, queue=cursor.queue, flag=message.flag,
        sys_flag=message.sys_flag, born_time_ms=encoder.now_ms() if born is None else born,
        born_host=encoder.store_host if host is None else host_bytes(host),
        store_host=encoder.store_host, reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset, properties=text,
    )  # fmt: skip
    batch.add_record(cursor, _record(fields), has_crc=False)


def _record(fields: RecordFields) -> bytes:
    try:
        return encode_record(fields)
    except (struct.error, TypeError) as error:
        raise MessageError(
            f"a number of the message does not fit into its field: {error}"
        ) from error
