# What `_kernel.pyx` and its parts offer to Python. Columns go in and out as bytes in native order.

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

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
    is_covered: bool,
    topic: bytes,
    key: bytes,
    begin_ms: int,
    end_ms: int,
) -> tuple[bytes, int, int] | Literal[False] | None: ...
def record_time(
    window: _Buffer,
    position: int,
    log_offset: int,
    size: int,
    topic: bytes,
    queue: int,
    queue_offset: int,
) -> int | None: ...
