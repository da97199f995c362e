"""From what a caller puts to bytes: checks of a message, and batches encoded before the lock is taken.

Every way in makes the same checks and the same bytes; a property test holds them to it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from penstock.commitlog import CommitLog
from penstock.errors import MessageError, MessageTooLargeError, NotYetError
from penstock.javatext import Int64s
from penstock.lane import Lane, RecordParts
from penstock.message import Message
from penstock.properties import encode_properties
from penstock.record import (
    BORN_IPV6,
    CRC_PROPERTY_SIZE,
    PREPARED,
    PROPERTIES_BYTES_MAX,
    ROLLBACK,
    STORE_IPV6,
    TRANSACTION_MASK,
    encode_host,
    reserve_crc_property,
)
from penstock.stamps import STORE_TIME_AT


class Target(Protocol):
    """What encoding needs of the engine."""

    body_bytes_max: int
    log: CommitLog

    @property
    def lane(self) -> Callable[[str, int], Lane]:
        """Return the lane of a topic and queue."""


@attrs.frozen(kw_only=True, eq=False)
class EncodedBatch:
    """Records one behind the other, their stamps still zero."""

    data: bytearray
    sizes: Int64s
    lanes: list[Lane]
    lane_rows: Int64s
    store_time_at: Int64s | int


def parts_of(
    body: bytes,
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str],
    flag: int,
    delay_level: int,
    born_time_ms: int | None,
    born_host: str | None,
    body_bytes_max: int,
    *,
    crc_property: bool,
) -> RecordParts:
    """Return a message's parts, checked."""
    if type(body) is not bytes:
        body = as_bytes(body)
    if len(body) > body_bytes_max:
        raise MessageTooLargeError(
            "the body", len(body), body_bytes_max, "shorten it, or raise log.body_bytes_max"
        )
    if delay_level:
        raise NotYetError(
            f"delay_level {delay_level} is refused: delayed delivery does not exist yet; use 0"
        )
    text = encode_properties(tag, keys, properties) if tag or keys or properties else b""
    text = check_text(text, crc_property=crc_property)
    host = host_bytes(born_host) if born_host is not None else None
    return RecordParts(
        body=body, properties=text, flag=flag, born_time_ms=born_time_ms, born_host=host
    )


def as_bytes(body: object) -> bytes:
    """Return a body as bytes; text is refused, since its encoding would be a guess."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise MessageError(f"the body must be bytes, not {type(body).__name__}: encode it first")


def check_text(text: bytes, *, crc_property: bool) -> bytes:
    """Return the properties text, with room for the CRC property if that is on; refuse one too long."""
    room = CRC_PROPERTY_SIZE if crc_property else 0
    if len(text) + room > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "the properties text", len(text), PROPERTIES_BYTES_MAX - room, "shorten it"
        )
    return reserve_crc_property(text) if crc_property else text


def host_bytes(text: str) -> bytes:
    """Return a host's bytes; `MessageError` for what is no `address:port`."""
    try:
        return encode_host(text)
    except (ValueError, OverflowError) as error:
        raise MessageError(
            f"host {text!r} is refused: it must be 'address:port' ({error})"
        ) from error


def message_parts(message: Message, body_bytes_max: int, *, crc_property: bool) -> RecordParts:
    """Return the parts of a `Message`, checked."""
    parts = parts_of(
        message.body, message.tag, message.keys, message.properties, message.flag,
        message.delay_level, message.born_time_ms, message.born_host, body_bytes_max,
        crc_property=crc_property,
    )  # fmt: skip
    if message.sys_flag or message.reconsume_times or message.prepared_offset:
        return parts._replace(
            sys_flag=message.sys_flag & ~(BORN_IPV6 | STORE_IPV6),
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
        )
    return parts


def _check_batchable(parts: RecordParts) -> None:
    if parts.sys_flag & TRANSACTION_MASK in (PREPARED, ROLLBACK):
        raise MessageError("a prepared or rolled back message cannot be part of a batch")


def encode_messages(target: Target, messages: Sequence[Message]) -> EncodedBatch:
    """Return messages as one batch; the first that cannot be stored stops it, nothing is written."""
    log = target.log
    now = log.now_ms()
    lanes: dict[tuple[str, int], int] = {}
    found: list[Lane] = []
    rows, sizes, pieces, times = [], [], [], []
    for number, message in enumerate(messages):
        try:
            parts = message_parts(message, target.body_bytes_max, crc_property=log.crc_property)
            _check_batchable(parts)
            lane = target.lane(message.topic, message.queue)
            row = lanes.setdefault((message.topic, message.queue), len(found))
            if row == len(found):
                found.append(lane)
            piece = log.encode_unsealed(lane, parts, now)
        except struct.error as error:
            raise MessageError(
                f"message {number}: a number does not fit its field: {error}"
            ) from error
        except MessageError as error:
            error.add_note(f"it is message {number} of the batch; nothing was stored")
            raise
        rows.append(row)
        sizes.append(len(piece))
        pieces.append(piece)
        times.append(
            STORE_TIME_AT + (len(parts.born_host) if parts.born_host else len(log.store_host))
        )
    return EncodedBatch(
        data=bytearray().join(pieces),
        sizes=np.array(sizes, np.int64),
        lanes=found,
        lane_rows=np.array(rows, np.int64),
        store_time_at=np.array(times, np.int64),
    )
