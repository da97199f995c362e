"""One record of the commit log: the bytes of one message, and nothing else.

Layout (big-endian; positions are for two IPv4 hosts, an IPv6 host adds 12 bytes)::

    0  TOTALSIZE i32      20 QUEUEOFFSET i64      48 BORNHOST 4|16 + port i32   76 PREPAREDOFFSET i64
    4  MAGIC i32          28 PHYSICALOFFSET i64   56 STORETIMESTAMP i64         84 BODYLENGTH i32, body
    8  BODYCRC i32        36 SYSFLAG i32          64 STOREHOST 4|16 + port i32     TOPICLENGTH i8|i16, topic
    12 QUEUEID i32        40 BORNTIMESTAMP i64    72 RECONSUMETIMES i32            PROPERTIESLENGTH i16, text
    16 FLAG i32

The topic's length takes 1 byte under magic V1 and 2 under V2. A blank record (size i32, magic i32)
fills the end of a segment. Zero is never a valid size or magic, so unwritten bytes are not a record.

BODYCRC covers the body alone. With the `__CRC32#` property, a second CRC covers the whole record except
the property itself. `validity` defines when a record is valid. Source: spec sections 2.1 to 2.8.
"""

import ipaddress
import struct
import zlib
from functools import lru_cache

import attrs

from penstock.errors import MessageTooLargeError

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

TRANSACTION_MASK = 0xC
PREPARED = 0x4
COMMIT = 0x8
ROLLBACK = 0xC
BORN_IPV6 = 0x10
STORE_IPV6 = 0x20

CRC_MASK = 0x7FFFFFFF
# TOTALSIZE of a V1 record with two IPv4 hosts and no body, topic or properties.
FIXED_SIZE = 91
IPV6_EXTRA = 12
# A blank record needs this many bytes, so at least as many are left after a segment's last record.
BLANK_SIZE = 8
V1_TOPIC_BYTES_MAX = 127
TOPIC_BYTES_MAX = 32767
PROPERTIES_BYTES_MAX = 32767

CRC_NAME = b"__CRC32#\x01"
CRC_PROPERTY_SIZE = 20

BLANK = struct.Struct(">ii")
SIZE_AND_MAGIC = struct.Struct(">ii")
assert BLANK.size == BLANK_SIZE
assert len(CRC_NAME) + 10 + 1 == CRC_PROPERTY_SIZE

crc32 = zlib.crc32


class MalformedRecordError(ValueError):
    """Bytes that are not a complete record; callers add file and position."""

    def __init__(self, expected: str, found: str) -> None:
        self.expected = expected
        self.found = found
        super().__init__(expected, found)

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


@attrs.define(slots=True, kw_only=True)
class RecordFields:
    """Every field of a record, as encoded or decoded. Hosts are address bytes and an i32 port."""

    topic: bytes
    body: bytes
    queue: int = 0
    flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    born_time_ms: int = 0
    born_host: bytes = b"\x7f\0\0\1\0\0\0\0"
    store_time_ms: int = 0
    store_host: bytes = b"\x7f\0\0\1\0\0\0\0"
    reconsume_times: int = 0
    prepared_offset: int = 0
    properties: bytes = b""
    crc: int = 0
    size: int = 0
    is_v2: bool = False


def encode_host(text: str) -> bytes:
    """Return address bytes and i32 port of `address:port` or `[address]:port`."""
    address, _, port = text.rpartition(":")
    return _packed(address.strip("[]")) + int(port).to_bytes(4, "big", signed=True)


def decode_host(host: bytes) -> str:
    """Return `address:port` of a host's bytes, an IPv6 address in brackets."""
    return f"{_address_text(bytes(host[:-4]))}:{int.from_bytes(host[-4:], 'big', signed=True)}"


@lru_cache(1024)
def _packed(address: str) -> bytes:
    """Return the bytes of an address; cached, since few addresses are used repeatedly."""
    return ipaddress.ip_address(address).packed


@lru_cache(1024)
def _address_text(packed: bytes) -> str:
    """Return the text of an address, an IPv6 address in brackets; cached like `_packed`."""
    address = ipaddress.ip_address(packed)
    return f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - IP version


def body_crc(body: bytes | memoryview) -> int:
    """Return BODYCRC: CRC-32 without its top bit; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the SYSFLAG bits of the two addresses."""
    born = BORN_IPV6 if len(born_host) == 20 else 0  # noqa: PLR2004 - 16 bytes and a port
    return born | (STORE_IPV6 if len(store_host) == 20 else 0)  # noqa: PLR2004 - as above


def record_size(fields: RecordFields) -> int:
    """Return TOTALSIZE of the record that `encode_record` makes."""
    hosts = len(fields.born_host) + len(fields.store_host) - 16
    texts = len(fields.body) + len(fields.topic) + len(fields.properties)
    return FIXED_SIZE + hosts + texts + fields.is_v2


@lru_cache(1024)
def layout(
    born: int, store: int, body: int, topic: int, properties: int, *, is_v2: bool
) -> struct.Struct:
    """Return the struct of a whole record whose parts have these lengths in bytes."""
    length = "h" if is_v2 else "B"
    return struct.Struct(f">iiiiiqqiq{born}sq{store}siqi{body}s{length}{topic}sH{properties}s")


def encode_record(fields: RecordFields, *, crc_property: bool = False) -> bytes:
    """Return the record's bytes; `size`, `crc` and the address bits are computed, not taken from `fields`.

    Raises `MessageTooLargeError` if the properties text is too long.
    """
    if crc_property:
        fields = attrs.evolve(fields, properties=reserve_crc_property(fields.properties))
    if len(fields.properties) > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "the properties text", len(fields.properties), PROPERTIES_BYTES_MAX, "shorten it"
        )
    is_v2 = fields.is_v2 or len(fields.topic) > V1_TOPIC_BYTES_MAX
    if is_v2 is not fields.is_v2:
        fields = attrs.evolve(fields, is_v2=is_v2)
    pack = layout(
        len(fields.born_host),
        len(fields.store_host),
        len(fields.body),
        len(fields.topic),
        len(fields.properties),
        is_v2=is_v2,
    ).pack
    data = pack(
        record_size(fields),
        MAGIC_V2 if is_v2 else MAGIC_V1,
        body_crc(fields.body),
        fields.queue,
        fields.flag,
        fields.queue_offset,
        fields.log_offset,
        fields.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
        | host_flags(fields.born_host, fields.store_host),
        fields.born_time_ms,
        fields.born_host,
        fields.store_time_ms,
        fields.store_host,
        fields.reconsume_times,
        fields.prepared_offset,
        len(fields.body),
        fields.body,
        len(fields.topic),
        fields.topic,
        len(fields.properties),
        fields.properties,
    )
    return seal_crc_property(data) if crc_property else data


def reserve_crc_property(properties: bytes) -> bytes:
    """Return the text with a placeholder for the CRC property at its end, and a 0x02 before it if needed.

    `seal_crc_property` replaces the placeholder. Until then it is a well-formed property, which passes checks.
    """
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + crc_property(0)


def crc_property(value: int) -> bytes:
    """Return the 20 bytes of the CRC property: ten digits, the least significant first."""
    return CRC_NAME + str(value)[::-1].ljust(10, "0").encode() + b"\x02"


def seal_crc_property(record: bytes) -> bytes:
    """Return the record with its last 20 bytes replaced by the CRC property of all bytes before them."""
    covered = record[:-CRC_PROPERTY_SIZE]
    return covered + crc_property(crc32(covered) & CRC_MASK)


_HEAD = struct.Struct(">iiiiiqqiq")
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_SYS_FLAG_AT = 36
_MAGIC_V2_BYTES = _I32.pack(MAGIC_V2)
_TAIL = struct.Struct(">iqi")
assert _HEAD.size == 48  # noqa: PLR2004 - BORNHOST's position in the layout above


def decode_record(record: bytes | memoryview) -> RecordFields:
    """Return the fields of exactly one record; raises `MalformedRecordError`. Lengths are checked, CRCs are not."""
    if len(record) < FIXED_SIZE:
        raise MalformedRecordError(f"at least {FIXED_SIZE} bytes", f"{len(record)}")
    size, magic, crc, queue, flag, queue_offset, log_offset, sys_flag, born = _HEAD.unpack_from(
        record
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MalformedRecordError("magic daa320a7 or daa320ab", f"{magic & 0xFFFFFFFF:08x}")
    if size != len(record):
        raise MalformedRecordError(f"a record of {len(record)} bytes", f"size {size}")
    try:
        at = 48
        born_host, at = _take(record, at, 20 if sys_flag & BORN_IPV6 else 8)
        stored = _I64.unpack_from(record, at)[0]
        store_host, at = _take(record, at + 8, 20 if sys_flag & STORE_IPV6 else 8)
        reconsume_times, prepared_offset, body_size = _TAIL.unpack_from(record, at)
        body, at = _take(record, at + _TAIL.size, body_size)
        length = 2 if magic == MAGIC_V2 else 1
        topic, at = _take(
            record, at + length, int.from_bytes(record[at : at + length], "big", signed=True)
        )
        properties, at = _take(
            record, at + 2, int.from_bytes(record[at : at + 2], "big", signed=True)
        )
    except struct.error as error:
        raise MalformedRecordError("a complete record", str(error)) from error
    if at != size:
        raise MalformedRecordError(f"parts of {size} bytes in total", f"{at}")
    return RecordFields(
        topic=topic, body=body, queue=queue, flag=flag, queue_offset=queue_offset,
        log_offset=log_offset, sys_flag=sys_flag, born_time_ms=born, born_host=born_host,
        store_time_ms=stored, store_host=store_host, reconsume_times=reconsume_times,
        prepared_offset=prepared_offset, properties=properties, crc=crc, size=size,
        is_v2=magic == MAGIC_V2,
    )  # fmt: skip


def properties_in(record: bytes) -> bytes:
    """Return the properties text of a valid record: the one of `decode_record`, in a fifth of its time."""
    (sys_flag,) = _I32.unpack_from(record, _SYS_FLAG_AT)
    at = _HEAD.size + 8 + (20 if sys_flag & BORN_IPV6 else 8) + (20 if sys_flag & STORE_IPV6 else 8)
    at += _TAIL.size + _TAIL.unpack_from(record, at)[2]
    if record[4:8] == _MAGIC_V2_BYTES:
        at += 2 + int.from_bytes(record[at : at + 2], "big")
    else:
        at += 1 + record[at]
    return record[at + 2 :]


def _take(record: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    stop = at + size
    if size < 0 or stop > len(record):
        raise MalformedRecordError(f"a part within {len(record)} bytes", f"{size} bytes at {at}")
    return bytes(record[at:stop]), stop
