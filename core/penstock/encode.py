"""From what a caller puts to bytes: checks of a message, and batches encoded before the lock is taken.

Every way in makes the same checks and the same bytes; a property test holds them to it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, Protocol

import attrs
import numpy as np

from penstock.commitlog import Appended, AppendedBatch
from penstock.errors import MessageError, MessageTooLargeError, NotYetError, PenstockError
from penstock.javatext import Int64s, java_hash
from penstock.lane import Lane, RecordForm, RecordParts
from penstock.message import Durability, Message, PutStatus, Receipt, new_receipt
from penstock.properties import check_zeros, encode_properties, texts_of
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

# What a NamedTuple's own constructor does, in half the time.
_new_parts: Callable[[type[RecordParts], tuple[Any, ...]], RecordParts] = tuple.__new__


# From here on a text is looked at for more than its names and values.
_LONG_TEXT = 512


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
    """Records one behind the other, their stamps still zero; they are stamped in place.

    With `tag_codes` none of them is part of a transaction.
    """

    data: bytearray | memoryview
    sizes: Int64s
    lanes: list[Lane]
    lane_rows: Int64s
    store_time_at: Int64s | int
    tag_codes: Int64s | None = None


def parts_of(
    body: bytes,
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    flag: int,
    delay_level: int,
    born_time_ms: int | None,
    born_host: str | None,
    body_bytes_max: int,
    crc_property: bool,
) -> RecordParts:
    """Return a message's parts, checked."""
    # The checks are called only where they have something to say: this is the path of every put.
    if type(body) is not bytes or len(body) > body_bytes_max or delay_level:
        body = check_body(body, delay_level, body_bytes_max)
    text = encode_properties(tag, keys, properties) if tag or keys or properties else b""
    if crc_property or len(text) >= _LONG_TEXT:
        text = check_text(text, crc_property=crc_property)
    host = host_bytes(born_host) if born_host is not None else None
    return _new_parts(RecordParts, (body, text, flag, born_time_ms, host, 0, 0, 0))


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
    """Return the properties text, with room for the CRC property if that is on; refuse what cannot be stored."""
    room = CRC_PROPERTY_SIZE if crc_property else 0
    if len(text) + room > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "the properties text", len(text), PROPERTIES_BYTES_MAX - room, "shorten it"
        )
    if crc_property:
        return reserve_crc_property(text)
    check_zeros(text)
    return text


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
        message.delay_level, message.born_time_ms, message.born_host, body_bytes_max, crc_property,
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

    bodies: Sequence[bytes]
    tags: Sequence[str]
    texts: Sequence[bytes]
    lanes: list[Lane]
    lane_rows: Int64s
    flags: Sequence[int]
    born_times_ms: Sequence[int | None]


_COLUMNS = attrgetter(
    "topic", "queue", "body", "tag", "keys", "properties", "flag", "delay_level", "born_time_ms",
    "born_host", "sys_flag", "reconsume_times", "prepared_offset",
)  # fmt: skip


def _plain_columns(target: Target, messages: Sequence[Message]) -> _Plain | None:
    """Return the checked columns of messages, or None where one needs a shape, or an error, of its own."""
    if not messages:
        return None
    columns = zip(*map(_COLUMNS, messages), strict=True)
    (topics, queues, bodies, tags, keys, properties, flags, delays, born, hosts, sys_flags, tries,
     prepared) = columns  # fmt: skip
    if (
        any(properties) or any(delays) or any(sys_flags) or any(tries) or any(prepared)
        or hosts.count(None) < len(hosts) or set(map(type, bodies)) != {bytes}
        or max(map(len, bodies)) > target.body_bytes_max or set(map(type, flags)) != {int}
        or not set(map(type, born)) <= {int, NoneType}
    ):  # fmt: skip
        return None
    try:
        texts = texts_of(tags, keys)
        if target.log.crc_property or max(map(len, texts)) >= _LONG_TEXT:
            texts = [check_text(text, crc_property=target.log.crc_property) for text in texts]
        lanes, lane_rows = _lanes_of(target, list(zip(topics, queues, strict=True)))
    except (PenstockError, TypeError):
        return None
    if any(lane.is_v2 for lane in lanes):
        return None
    return _Plain(bodies, tags, texts, lanes, lane_rows, flags, born)


def _lanes_of(target: Target, places: list[tuple[str, int]]) -> tuple[list[Lane], Int64s]:
    """Return the lanes of topics and queues, in the order of the first message to each, and each one's index."""
    first = places[0]
    if places.count(first) == len(places):
        return [target.lane(*first)], np.zeros(len(places), np.int64)
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    rows = np.fromiter(map(numbers.__getitem__, places), np.int64, len(places))
    return [target.lane(*place) for place in numbers], rows


def _join(log: RecordForm, plain: _Plain) -> EncodedBatch:
    """Return columns as records: all pieces are one join, and what differs in the headers goes in as columns."""
    now = log.now_ms()
    count = len(plain.bodies)
    body_sizes = np.fromiter(map(len, plain.bodies), np.int64, count)
    base_sizes = np.array([lane.base_size for lane in plain.lanes], np.int64)[plain.lane_rows]
    sizes = base_sizes + 2 * len(log.store_host) + body_sizes
    sizes += np.fromiter(map(len, plain.texts), np.int64, count)
    header = header_of(log.store_host, plain.lanes[0].queue, now)
    topics = [bytes([len(lane.topic_bytes)]) + lane.topic_bytes for lane in plain.lanes]
    lengths = [len(text).to_bytes(2, "big") for text in plain.texts]
    pieces = zip(
        repeat(header, count), plain.bodies, map(topics.__getitem__, plain.lane_rows.tolist()),
        lengths, plain.texts, strict=True,
    )  # fmt: skip
    data = bytearray().join(chain.from_iterable(pieces))
    starts = np.cumsum(sizes) - sizes
    queues = np.array([lane.queue for lane in plain.lanes], np.int64)
    born = None
    if plain.born_times_ms.count(None) < count:
        born = np.array([now if time is None else time for time in plain.born_times_ms], object)
    fill_headers(
        data, starts, len(log.store_host), sizes=sizes,
        crcs=np.fromiter(map(crc32, plain.bodies), np.int64, count), body_sizes=body_sizes,
        queues=queues[plain.lane_rows] if len(plain.lanes) > 1 else None,
        flags=plain.flags if any(plain.flags) else None, born_times_ms=born,
    )  # fmt: skip
    return EncodedBatch(
        data=data, sizes=sizes, lanes=plain.lanes, lane_rows=plain.lane_rows,
        store_time_at=STORE_TIME_AT + len(log.store_host), tag_codes=_codes_of(plain.tags),
    )  # fmt: skip


def _codes_of(tags: Sequence[str]) -> Int64s:
    """Return what queue entries say of tags."""
    if tags.count(tags[0]) == len(tags):
        return np.full(len(tags), java_hash(tags[0] or ""), np.int64)
    codes = {tag: java_hash(tag or "") for tag in set(tags)}
    return np.fromiter(map(codes.__getitem__, tags), np.int64, len(tags))


def header_of(host: bytes, queue: int, now_ms: int) -> bytes:
    """Return everything before the body of a V1 record, without what `fill_headers` and the append put in."""
    pack = struct.Struct(f">iiiiiqqiq{len(host)}sq{len(host)}siqi").pack
    flags = host_flags(host, host)
    return pack(0, MAGIC_V1, 0, queue, 0, 0, 0, flags, now_ms, host, 0, host, 0, 0, 0)


def fill_headers(
    data: bytearray | memoryview,
    starts: Int64s,
    host_size: int,
    *,
    sizes: Int64s,
    crcs: Int64s,
    body_sizes: Int64s,
    queues: Int64s | None = None,
    flags: Sequence[int] | Int64s | None = None,
    born_times_ms: Any = None,
) -> None:
    """Write into records that begin at `starts` what differs from their common header; None does not."""
    narrow = np.ndarray((len(data) - 3,), ">i4", data, 0, (1,))
    wide = np.ndarray((len(data) - 7,), ">i8", data, 0, (1,))
    narrow[starts] = sizes
    narrow[starts + 8] = crcs & CRC_MASK
    narrow[starts + (68 + 2 * host_size)] = body_sizes
    try:
        if queues is not None:
            narrow[starts + 12] = queues
        if flags is not None:
            narrow[starts + 16] = np.asarray(flags, ">i4")
        if born_times_ms is not None:
            wide[starts + 40] = np.asarray(born_times_ms, ">i8")
    except OverflowError as error:
        raise MessageError(f"a number of the batch does not fit its field: {error}") from error


# Flag, times, host and the rest of `RecordParts`, as they are when nobody gave them.
_NOTHING_GIVEN = RecordParts(b"", b"")[2:]


def records_of(target: Target, messages: Sequence[Message]) -> list[tuple[Lane, RecordParts]]:
    """Return the lane and the checked parts of each message of a batch."""
    log, records = target.log, []
    for number, message in enumerate(messages):
        try:
            parts = message_parts(message, target.body_bytes_max, crc_property=log.crc_property)
            _check_batchable(parts)
            lane = target.lane(message.topic, message.queue)
            if parts[2:] != _NOTHING_GIVEN or type(parts.flag) is not int:
                # Only what a caller gave may not fit: tried here, where it is known whose it is.
                log.encode_unsealed(lane, parts, 0)
        except struct.error as error:
            raise MessageError(
                f"message {number}: a number does not fit its field: {error}"
            ) from error
        except MessageError as error:
            error.add_note(f"it is message {number} of the batch; nothing was stored")
            raise
        records.append((lane, parts))
    return records


def _encode_each(target: Target, messages: Sequence[Message]) -> EncodedBatch:
    """Return messages as one batch, each packed by itself."""
    log = target.log
    now = log.now_ms()
    records = records_of(target, messages)
    pieces = [log.encode_unsealed(lane, parts, now) for lane, parts in records]
    rows = {lane: row for row, lane in enumerate(dict.fromkeys(lane for lane, _ in records))}
    host_sizes = [len(parts.born_host or log.store_host) for _, parts in records]
    return EncodedBatch(
        data=bytearray().join(pieces),
        sizes=np.array(list(map(len, pieces)), np.int64),
        lanes=list(rows),
        lane_rows=np.array([rows[lane] for lane, _ in records], np.int64),
        store_time_at=STORE_TIME_AT + np.array(host_sizes, np.int64),
    )


def receipts_of(
    done: AppendedBatch, batch: EncodedBatch, known: tuple[PutStatus, Durability], host: bytes
) -> list[Receipt]:
    """Return the receipt of each message of a batch."""
    status, durability = known
    queues = [lane.queue for lane in batch.lanes]
    columns = zip(
        repeat(status), done.log_offsets.tolist(), map(queues.__getitem__, batch.lane_rows.tolist()),
        done.queue_offsets.tolist(), repeat(done.store_time_ms), done.sizes.tolist(), repeat(durability),
        repeat(host), strict=False,
    )  # fmt: skip
    return list(map(new_receipt, repeat(Receipt), columns))


def few_receipts(
    done: Sequence[Appended], records: Sequence[tuple[Lane, RecordParts]],
    known: tuple[PutStatus, Durability], host: bytes,
) -> list[Receipt]:  # fmt: skip
    """Return the receipt of each message of a batch that was appended as few are."""
    status, durability = known
    return [
        new_receipt(
            Receipt, (status, log_offset, lane.queue, queue_offset, time_ms, size, durability, host)
        )
        for (log_offset, queue_offset, time_ms, size), (lane, _) in zip(done, records, strict=True)
    ]
