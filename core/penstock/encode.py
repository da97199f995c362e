"""From what a caller puts to bytes: checks of a message, and batches encoded before the lock is taken.

Every way in makes the same checks and the same bytes; a property test holds them to it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import attrs
import numpy as np

from penstock.commitlog import AppendedBatch
from penstock.errors import MessageError, MessageTooLargeError, NotYetError
from penstock.javatext import Int64s
from penstock.lane import Lane, RecordForm, RecordParts
from penstock.message import Durability, Message, PutStatus, Receipt
from penstock.properties import encode_properties
from penstock.record import (
    BORN_IPV6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    MAGIC_V1,
    PREPARED,
    PROPERTIES_BYTES_MAX,
    ROLLBACK,
    STORE_IPV6,
    TRANSACTION_MASK,
    crc32,
    encode_host,
    host_flags,
    reserve_crc_property,
)
from penstock.stamps import STORE_TIME_AT


class Target(Protocol):
    """What encoding needs to know of a store: the engine of one that is open, or what is known of it elsewhere."""

    body_bytes_max: int

    @property
    def log(self) -> RecordForm:
        """How the store's records are made."""

    @property
    def lane(self) -> Callable[[str, int], Lane]:
        """Return the lane of a topic and queue."""


@attrs.frozen(kw_only=True, eq=False)
class EncodedBatch:
    """Records one behind the other, their stamps still zero."""

    data: bytearray | memoryview
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
    body = check_body(body, delay_level, body_bytes_max)
    text = encode_properties(tag, keys, properties) if tag or keys or properties else b""
    text = check_text(text, crc_property=crc_property)
    host = host_bytes(born_host) if born_host is not None else None
    return RecordParts(
        body=body, properties=text, flag=flag, born_time_ms=born_time_ms, born_host=host
    )


def check_body(body: bytes, delay_level: int, body_bytes_max: int) -> bytes:
    """Return a body as bytes; refuse one too large, and a delay."""
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
    return body


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
    plain = _plain_columns(target, messages)
    return _encode_each(target, messages) if plain is None else _join(target.log, plain)


class _Plain(NamedTuple):
    """Messages as columns, all of one shape: V1, born here, of no transaction."""

    bodies: list[bytes]
    texts: list[bytes]
    lanes: list[Lane]
    lane_rows: list[int]
    flags: list[int]
    born_times_ms: list[int | None]


def _plain_columns(target: Target, messages: Sequence[Message]) -> _Plain | None:
    """Return the checked columns of messages, or None where one needs a shape of its own."""
    crc_property = target.log.crc_property
    limit = target.body_bytes_max
    lanes: dict[tuple[str, int], int] = {}
    plain = _Plain([], [], [], [], [], [])
    for number, message in enumerate(messages):
        flag, born = message.flag, message.born_time_ms
        if (
            message.born_host is not None or message.sys_flag or message.reconsume_times
            or message.prepared_offset or type(flag) is not int
            or (born is not None and type(born) is not int)
        ):  # fmt: skip
            return None
        try:
            plain.bodies.append(check_body(message.body, message.delay_level, limit))
            tag, keys, properties = message.tag, message.keys, message.properties
            text = encode_properties(tag, keys, properties) if tag or keys or properties else b""
            if text or crc_property:
                text = check_text(text, crc_property=crc_property)
            row = lanes.get((message.topic, message.queue))
            if row is None:
                row = lanes[message.topic, message.queue] = len(plain.lanes)
                plain.lanes.append(target.lane(message.topic, message.queue))
        except MessageError as error:
            error.add_note(f"it is message {number} of the batch; nothing was stored")
            raise
        plain.texts.append(text)
        plain.lane_rows.append(row)
        plain.flags.append(flag)
        plain.born_times_ms.append(born)
    return None if any(lane.is_v2 for lane in plain.lanes) else plain


def _join(log: RecordForm, plain: _Plain) -> EncodedBatch:
    """Return columns as records: headers are one numpy array, and all pieces one join."""
    now = log.now_ms()
    count = len(plain.bodies)
    lane_rows = np.array(plain.lane_rows, np.int64)
    body_sizes = np.fromiter(map(len, plain.bodies), np.int64, count)
    base_sizes = np.array([lane.base_size for lane in plain.lanes], np.int64)[lane_rows]
    sizes = base_sizes + 2 * len(log.store_host) + body_sizes
    sizes += np.fromiter(map(len, plain.texts), np.int64, count)
    queues = np.array([lane.queue for lane in plain.lanes], np.int64)[lane_rows]
    born = np.array([now if time is None else time for time in plain.born_times_ms], object)
    crcs = np.fromiter(map(crc32, plain.bodies), np.int64, count)
    header = headers(log.store_host, sizes, crcs, queues, plain.flags, born, body_sizes)
    topics = [bytes([len(lane.topic_bytes)]) + lane.topic_bytes for lane in plain.lanes]
    tails = [
        topics[row] + len(text).to_bytes(2, "big") + text
        for row, text in zip(plain.lane_rows, plain.texts, strict=True)
    ]
    heads = header.view(f"V{header.itemsize}").tolist()
    return EncodedBatch(
        data=bytearray().join(chain.from_iterable(zip(heads, plain.bodies, tails, strict=True))),
        sizes=sizes,
        lanes=plain.lanes,
        lane_rows=lane_rows,
        store_time_at=STORE_TIME_AT + len(log.store_host),
    )


def headers(
    host: bytes,
    sizes: Int64s,
    crcs: Int64s,
    queues: Int64s,
    flags: Int64s | list[int],
    born_times_ms: Any,
    body_sizes: Int64s,
) -> np.ndarray:
    """Return everything before the bodies of V1 records; offsets and store time are stamped later."""
    width = len(host)
    fields = np.dtype([
        ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"),
        ("born_host", f"V{width}"), ("stored", ">i8"), ("store_host", f"V{width}"),
        ("reconsume", ">i4"), ("prepared", ">i8"), ("body", ">i4"),
    ])  # fmt: skip
    header = np.zeros(len(sizes), fields)
    try:
        header["flag"], header["born"] = flags, born_times_ms
    except OverflowError as error:
        raise MessageError(f"a number of the batch does not fit its field: {error}") from error
    header["size"], header["magic"] = sizes, MAGIC_V1
    header["crc"] = crcs & CRC_MASK
    header["queue"], header["sys_flag"] = queues, host_flags(host, host)
    header["born_host"] = header["store_host"] = np.void(host)
    header["body"] = body_sizes
    return header


def _encode_each(target: Target, messages: Sequence[Message]) -> EncodedBatch:
    """Return messages as one batch, each packed by itself."""
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


def receipts_of(
    done: AppendedBatch, batch: EncodedBatch, known: tuple[PutStatus, Durability], host: bytes
) -> list[Receipt]:
    """Return the receipt of each message of a batch."""
    status, durability = known
    now = done.store_time_ms
    queues = [lane.queue for lane in batch.lanes]
    return [
        Receipt(status, log_offset, queues[row], queue_offset, now, size, durability, host)
        for log_offset, row, queue_offset, size in zip(
            done.log_offsets.tolist(),
            batch.lane_rows.tolist(),
            done.queue_offsets.tolist(),
            done.sizes.tolist(),
            strict=True,
        )
    ]
