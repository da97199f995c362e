r"""A message as a row of a file, and a row as a message to be stored: every field, none of them guessed.

`row_of` returns the fields of a stored message. `put_of` returns the message that a row describes; then every field
that a put can set is equal to that of the message that was exported. The fields in `ASSIGNED_ANEW` are what a
store assigns by itself.

The properties text of a record is `name 0x01 value 0x02`, repeated (see `format.properties`). A row has it in three
parts: `tag`, `keys` (the value of KEYS, unchanged) and the `properties` without these two. A text that these parts
do not describe completely (a name that occurs twice, an empty value, bytes that are not UTF-8) is in
`properties_text`, byte by byte, and the three parts are then only for readers. The record's own CRC is never part of
a row, and the order of the pairs is kept except that TAGS and KEYS come first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ImportFileError, MessageError, PropertyError
from penstock.escape import shown
from penstock.format.names import is_system
from penstock.format.properties import (
    CRC32,
    DELAYS,
    KEYS,
    NAME_END,
    PAIR_END,
    TAGS,
    is_tag,
    without_crc,
)
from penstock.format.record import (
    BORN_IPV6,
    PREPARED,
    ROLLBACK,
    STORE_IPV6,
    TRANSACTION_MASK,
    decode_host,
    encode_host,
)
from penstock.message import Message, StoredMessage

ASSIGNED_ANEW = (
    "queue_offset",
    "log_offset",
    "message_id",
    "store_time_ms",
    "store_host",
    "size",
)
Row = TypeVar("Row")
# At most this many rows, or this many bytes of bodies and one more, are in memory at once and put together.
_ROWS, _BYTES = 2000, 4 << 20
_IPV6_BITS = BORN_IPV6 | STORE_IPV6
_PAIR_END = PAIR_END.encode()
# Names that `put` refuses as properties, or would leave out.
_NOT_PLAIN = frozenset({TAGS, KEYS, CRC32, *DELAYS})
_INT32, _INT64 = 1 << 31, 1 << 63
# The integers of a row that a put can set, and the limit of each.
NUMBERS = {
    "queue": _INT32,
    "flag": _INT32,
    "sys_flag": _INT32,
    "reconsume_times": _INT32,
    "prepared_offset": _INT64,
    "born_time_ms": _INT64,
}


class MessageRow(NamedTuple):
    """Every field of a stored message, in the order of the columns of a file.

    Attributes:
        keys: the value of KEYS: the keys, separated by spaces.
        properties: the properties without TAGS, KEYS and the record's own CRC.
        properties_text: the whole properties text, if the parts above do not describe it; else None.
        size: length of the record in bytes.
        body: the body as stored, still compressed if its producer compressed it.
    """

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    message_id: str
    store_time_ms: int
    store_host: str
    born_time_ms: int
    born_host: str
    tag: str
    keys: str
    properties: dict[str, str]
    properties_text: bytes | None
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_offset: int
    size: int
    body: bytes


COLUMNS = MessageRow._fields


class Put(NamedTuple):
    """A message to store; `text` is its properties text if the message's own properties do not describe it."""

    message: Message
    text: bytes | None


class ColumnError(MessageError):
    """A row that cannot be stored, because of one of its columns; `column` is empty if it is the whole row.

    The reader of the file adds where the row is.
    """

    def __init__(self, column: str, reason: str) -> None:
        self.column = column
        self.reason = reason
        super().__init__(f"column {column!r} {reason}" if column else reason)


# --- from a store


def row_of(message: StoredMessage) -> MessageRow:
    """Return every field of a message."""
    record, body, flags = message.record, message.body, message.sys_flag
    born_end = 48 + (20 if flags & BORN_IPV6 else 8)
    store_start = born_end + 8
    store_end = store_start + (20 if flags & STORE_IPV6 else 8)
    tag, keys, properties, text = parts_of(_text_in(record, store_end + 16 + len(body)))
    return MessageRow(
        message.topic, message.queue, message.queue_offset, message.log_offset, message.message_id,
        message.store_time_ms, decode_host(record[store_start:store_end]), message.born_time_ms,
        decode_host(record[48:born_end]), tag, keys, properties, text, message.flag, flags,
        message.reconsume_times, message.prepared_offset, len(record), body,
    )  # fmt: skip


def _text_in(record: bytes, topic_at: int) -> bytes:
    """Return the properties text of a record whose topic's length is at this position."""
    # The last byte of the magic tells how long the topic's length is.
    is_v2 = record[7] == 0xAB  # noqa: PLR2004 - MAGIC_V2
    size = int.from_bytes(record[topic_at : topic_at + 1 + is_v2], "big")
    return record[topic_at + 1 + is_v2 + size + 2 :]


def parts_of(text: bytes) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return tag, keys and other properties of a properties text; and the text itself, if these do not describe it."""
    pairs: dict[str, str] = {}
    is_described = True
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        decoded, is_described = text.decode("utf-8", "replace"), False
    for part in decoded.removesuffix(PAIR_END).split(PAIR_END) if decoded else ():
        name, _, value = part.partition(NAME_END)
        if name == CRC32:
            continue
        if not name or not value or name in pairs:
            is_described = False
        if name and value:
            pairs[name] = value
    exact = None if is_described else without_crc(text)
    return pairs.pop(TAGS, ""), pairs.pop(KEYS, ""), pairs, exact


def key_list(keys: str) -> list[str]:
    """Return the keys of a KEYS value, such that joining them with spaces returns the value."""
    found = [key for key in keys.split(" ") if key]
    return found if " ".join(found) == keys else [keys]


# --- to a store


def put_of(fields: Mapping[str, Any], topic: str | None = None) -> Put:
    """Return the message that a row describes; raises `ColumnError` if it cannot be stored.

    Args:
        fields: values by the names of `COLUMNS`; a missing one, or None, is not set. Each has the type that
            `MessageRow` gives it.
        topic: replaces the row's topic.
    """
    get = fields.get
    named, body = topic or get("topic"), get("body")
    if not named:
        raise ColumnError("topic", "is missing: give it for the whole file with --topic")
    if body is None:
        raise ColumnError("body", "is missing, and every message has a body (it may be empty)")
    numbers = {name: _number(name, value, limit) for name,
        limit in NUMBERS.items() if (value := get(name)) is not None}  # fmt: skip
    flags = numbers.pop("sys_flag", 0) & ~_IPV6_BITS
    if flags & TRANSACTION_MASK in (PREPARED, ROLLBACK):
        raise ColumnError(
            "sys_flag",
            f"is {flags}, a message of a transaction that is not committed: no queue would show it",
        )
    tag, keys, properties = _parts(get("tag") or "", get("keys") or "", get("properties"))
    text = get("properties_text")
    # A caller must not put to a system topic, but a copy of a store has its messages.
    if text is None and (is_system(named) or not _is_plain(tag, keys, properties)):
        text = text_of(tag, keys, properties)
    if text is not None:
        numbers.setdefault("queue", 0)
    message = Message(
        named, body, tag=tag, keys=key_list(keys), properties=properties, sys_flag=flags,
        born_host=_checked_host(get("born_host")), wait=False, partition_key=None, **numbers,
    )  # fmt: skip
    return Put(message, text)


def _number(name: str, value: Any, limit: int) -> int:
    if type(value) is not int:
        raise ColumnError(name, f"is {shown(value)}, and must be an integer")
    if not -limit <= value < limit:
        raise ColumnError(name, f"is {shown(value)}, and must be from {-limit} to {limit - 1}")
    return value


def _checked_host(host: str | None) -> str | None:
    if host:
        try:
            # In the one form that `StoredMessage` has, so that they can be compared.
            return decode_host(encode_host(host))
        except (ValueError, OverflowError, AttributeError) as error:
            raise ColumnError(
                "born_host", f"is {host!r}, and must be 'address:port' ({error})"
            ) from error
    return None


def _parts(
    tag: str, keys: str, properties: Mapping[str, str] | None
) -> tuple[str, str, dict[str, str]]:
    """Return tag, keys and the other properties; those may contain TAGS and KEYS as well, with the same values."""
    others = dict(properties or {})
    found_tag, found_keys = others.pop(TAGS, tag), others.pop(KEYS, keys)
    if tag and tag != found_tag:
        raise ColumnError("tag", f"is {tag!r}, but property TAGS is {found_tag!r}")
    if keys and keys != found_keys:
        raise ColumnError("keys", f"is {keys!r}, but property KEYS is {found_keys!r}")
    others.pop(CRC32, None)
    return found_tag, found_keys, others


def _is_plain(tag: str, keys: str, properties: Mapping[str, str]) -> bool:
    """Return whether `put` stores these as they are, or refuses what a record cannot hold."""
    return (
        not any(" " in key for key in key_list(keys))
        and (not tag or is_tag(tag))
        and _NOT_PLAIN.isdisjoint(properties)
        and not any(NAME_END in value for value in (tag, keys, *properties.values()))
    )


def text_of(tag: str, keys: str, properties: Mapping[str, str]) -> bytes:
    """Return the properties text of these parts, as it was in the exported record.

    Unlike `put`, it keeps properties that request a delayed delivery: the message was delivered before it was exported.
    """
    pairs = [(TAGS, tag)] if tag else []
    pairs += [(KEYS, keys)] if keys else []
    for name, value in (*pairs, *properties.items()):
        if not name or not value:
            raise PropertyError(name, "a property's name and value must not be empty")
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise PropertyError(name, "it contains 0x01 or 0x02, which separate properties")
    parts = (f"{name}{NAME_END}{value}{PAIR_END}" for name, value in (*pairs, *properties.items()))
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise PropertyError("properties", f"they cannot be written as UTF-8 ({error})") from error


def is_stored_as(put: Put, message: StoredMessage) -> bool:
    """Return whether a stored message is the one that was put for a row; compares all fields that the row sets."""
    wanted = put.message
    return (
        message.body == wanted.body
        and message.topic == wanted.topic
        and wanted.queue in (None, message.queue)
        and wanted.born_time_ms in (None, message.born_time_ms)
        and wanted.born_host in (None, message.born_host)
        and message.flag == wanted.flag
        and message.sys_flag & ~_IPV6_BITS == wanted.sys_flag
        and message.reconsume_times == wanted.reconsume_times
        and message.prepared_offset == wanted.prepared_offset
        and _has_text(put, message)
    )


def _has_text(put: Put, message: StoredMessage) -> bool:
    tag, keys, properties, exact = parts_of(row_text(message))
    if put.text is not None:
        expected: Sequence[object] = parts_of(put.text)
        if expected[3] is not None or exact is not None:
            return _ended(put.text) == _ended(without_crc(row_text(message)))
        return (tag, keys, properties, exact) == expected
    wanted = put.message
    return exact is None and (tag, keys, properties) == (
        wanted.tag, " ".join(wanted.keys), wanted.properties,
    )  # fmt: skip


def _ended(text: bytes) -> bytes:
    return text if not text or text.endswith(_PAIR_END) else text + _PAIR_END


def row_text(message: StoredMessage) -> bytes:
    """Return the properties text of a stored message."""
    flags = message.sys_flag
    hosts = (20 if flags & BORN_IPV6 else 8) + (20 if flags & STORE_IPV6 else 8)
    return _text_in(message.record, 72 + hosts + len(message.body))


def batches_of(rows: Iterable[Row], size_of: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Yield rows in batches of bounded size; a batch ends with the row that makes it too large.

    If an `ImportFileError` ends the rows, those before it come first: the source is not valid only from there on.
    """
    batch: list[Row] = []
    size = 0
    try:
        for row in rows:
            batch.append(row)
            size += size_of(row)
            if len(batch) >= _ROWS or size >= _BYTES:
                yield batch
                batch, size = [], 0
    except ImportFileError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
