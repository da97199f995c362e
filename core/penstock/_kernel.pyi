# What `_kernel.pyx` and its parts offer to Python. Columns go in and out as bytes in native order.

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

# --- scan.pxi, texts.pxi

ROW_BYTES: int
CRC: int
TORN: int
MORE: int
BLANK: int
NONE: int
INVALID: int

_Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
_Rows: TypeAlias = NDArray[np.void]
_Int64s: TypeAlias = NDArray[np.int64]

def scan(
    window: _Buffer,
    base: int,
    checks: int,
    ranges: bytes,
    torn_from: int = ...,
    sector_bytes: int = ...,
) -> tuple[bytes, int, int, int]: ...
def parse(window: _Buffer, positions: _Int64s) -> bytearray: ...
def valid_rows(
    window: _Buffer,
    rows: _Rows,
    log_offsets: _Int64s,
    checks: int,
    ranges: bytes,
    torn_from: int = ...,
    sector_bytes: int = ...,
) -> bytearray: ...
def tails(window: _Buffer, starts: _Int64s, sizes: _Int64s, head_bytes: int) -> bytearray: ...
def own_crcs(window: _Buffer, rows: _Rows) -> bytearray: ...
def is_valid(record: _Buffer, log_offset: int, is_covered: bool) -> bool: ...
def crc32(data: _Buffer, value: int = ...) -> int: ...
def named(window: _Buffer, rows: _Rows, name: bytes) -> tuple[bytes, bytes, bytes]: ...
def tag_codes(window: _Buffer, rows: _Rows) -> bytearray: ...
def keys(window: _Buffer, rows: _Rows) -> tuple[bytes, bytes]: ...
def tag_keys(window: _Buffer, rows: _Rows) -> tuple[bytes, bytes]: ...
def topics(window: _Buffer, rows: _Rows) -> tuple[list[bytes], bytearray]: ...
def java_hash(text: str) -> int: ...
def hash_pieces(data: _Buffer, starts: _Int64s, sizes: _Int64s) -> bytearray: ...

# --- columns.pxi

def body_column(window: _Buffer, rows: _Rows) -> tuple[bytes, bytes]: ...
def topic_column(window: _Buffer, rows: _Rows) -> tuple[bytes, bytes]: ...
def property_column(
    window: _Buffer, rows: _Rows, name: bytes
) -> tuple[bytes | None, bytes, bytes]: ...
def pair_columns(
    window: _Buffer, rows: _Rows, but: bytes
) -> tuple[bytes, tuple[bytes, bytes], tuple[bytes, bytes]]: ...
def message_ids(window: _Buffer, rows: _Rows) -> tuple[bytes, bytes]: ...
def entry_rows(
    window: _Buffer,
    positions: _Int64s,
    log_offsets: _Int64s,
    sizes: _Int64s,
    ordinals: _Int64s,
    numbers: _Int64s,
    places: Sequence[tuple[bytes | None, int]],
) -> tuple[bytearray, int]: ...

# --- stored.pxi

class StoredMessage:
    def __init__(self, record: bytes) -> None: ...
    @property
    def record(self) -> bytes: ...
    @property
    def size(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def topic(self) -> str: ...
    @property
    def crc(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def log_offset(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_time_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_time_ms(self) -> int: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_offset(self) -> int: ...
    @property
    def all_properties(self) -> dict[str, str]: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def tag(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def message_id(self) -> str: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def message(
    window: _Buffer, log_offset: int, topic: bytes | None, queue: int, ordinal: int, ranges: bytes
) -> StoredMessage | None: ...
def messages(
    window: _Buffer,
    positions: _Int64s,
    log_offsets: _Int64s,
    sizes: _Int64s,
    ordinals: _Int64s,
    topic: bytes | None,
    queue: int,
    ranges: bytes,
) -> list[StoredMessage]: ...
def run_of(
    log_offsets: _Int64s, sizes: _Int64s, limit: int, room: int, gap: int
) -> tuple[int, int]: ...

# --- dispatch.pxi

# Whole numbers of 4 or 8 bytes, of any stride.
_Column: TypeAlias = NDArray[Any]

def queue_entries(
    log_offsets: _Column,
    sizes: _Column,
    queues: _Column,
    queue_offsets: _Column,
    transaction_types: _Column,
    tag_codes: _Column,
    topic_rows: _Column,
    store_times_ms: _Column,
    topics: int,
    queue_max: int,
    queue_offset_max: int,
) -> tuple[bytes, bytes, bytes, bytes]: ...
def entry_columns(
    entries: _Buffer,
) -> tuple[bytearray, bytearray, bytearray, int]: ...
def key_hash(topic: str, key: str) -> int: ...
def index_file_add(
    memory: _Buffer | Any,
    slots: int,
    entries: int,
    rows: _Column,
    hashes: _Column,
    log_offsets: _Column,
    store_times_ms: _Column,
    first: int = ...,
) -> int: ...
def index_file_links(entries: _Buffer, slots: int) -> tuple[bytearray, bytearray]: ...
def index_file_find(
    memory: _Buffer | Any,
    slots: int,
    entries: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    number: int = ...,
) -> tuple[list[int], int]: ...
def record_with_key(
    window: _Buffer,
    position: int,
    log_offset: int,
    topic: bytes,
    key: bytes,
    begin_ms: int,
    end_ms: int,
    ranges: bytes,
) -> StoredMessage | Literal[False] | None: ...
def record_time(
    window: _Buffer,
    position: int,
    log_offset: int,
    size: int,
    topic: bytes | None,
    queue: int,
    ordinal: int,
) -> int | None: ...
