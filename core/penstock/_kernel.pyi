# The types of the compiled kernel; the docstrings are in its sources, `_kernel.pyx` and `_kernel/`.
# Columns are passed and returned as bytes in native order.

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from penstock.message import Durability, PutStatus

def abi() -> str: ...

# --- scan.pxi, texts.pxi

ROW_BYTES: int
ROW_FIELDS: list[list[str]]  # each [name, type of numpy], in order
CRC: int
TORN: int
MORE: int
BLANK: int
NONE: int
INVALID: int

_Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
_Rows: TypeAlias = NDArray[np.void] | bytes
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
def indexed(window: _Buffer, rows: _Rows) -> tuple[bytearray, bytes, bytes]: ...
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
    ranges: bytes | None = None,
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
    base: int,
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

# --- deliveries.pxi

class Delivery:
    stored: StoredMessage
    topic: str
    flight: Any
    offset: int
    attempt: int
    since_ns: int
    state: int
    by: object
    def __init__(
        self, stored: StoredMessage, topic: str, attempt: int, flight: Any, offset: int
    ) -> None: ...
    @property
    def body(self) -> bytes: ...

_D = TypeVar("_D", bound=Delivery)

def deliver(
    kind: type[_D], messages: list[StoredMessage], topic: str, flight: object, opened: dict[int, _D]
) -> list[_D]: ...
def hand_out(
    deliveries: list[_D],
    before: int,
    after: int,
    by: object,
    since_ns: int,
    out: dict[_D, int],
    until_ns: int,
) -> bool: ...
def of_one_flight(deliveries: list[_D], kind: type[_D]) -> Any | None: ...
def open_offsets(deliveries: list[_D], opened: dict[int, _D]) -> Sequence[int]: ...
def finish(deliveries: list[_D], opened: dict[int, _D], out: dict[_D, int], state: int) -> None: ...

# --- messages

class Message:
    topic: str
    body: bytes
    queue: Any  # int, or None for the queues of the topic in turn
    tag: str
    keys: Sequence[str]
    properties: Mapping[str, str]
    flag: int
    delay_level: int
    born_time_ms: int | None
    born_host: str | None
    wait: bool
    sys_flag: int
    reconsume_times: int
    prepared_offset: int
    partition_key: str | None
    delay: float | timedelta
    deliver_at: float | datetime | None
    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        queue: int | None = None,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        born_time_ms: int | None = None,
        born_host: str | None = None,
        wait: bool = True,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        partition_key: str | None = None,
        delay: float | timedelta = 0,
        deliver_at: float | datetime | None = None,
    ) -> None: ...
    def __replace__(self, **changes: Any) -> Self: ...
    __hash__: None  # type: ignore[assignment] # it can be changed

class Receipt:
    _fields: Final[tuple[str, ...]]
    @property
    def status(self) -> PutStatus: ...
    @property
    def log_offset(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_time_ms(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def durability(self) -> Durability: ...
    @property
    def store_host(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...
    @property
    def is_durable(self) -> bool: ...
    def __init__(
        self,
        status: PutStatus,
        log_offset: int,
        queue: int,
        queue_offset: int,
        store_time_ms: int,
        size: int,
        durability: Durability,
        store_host: bytes,
    ) -> None: ...
    def _replace(self, **changes: Any) -> Self: ...
    def _asdict(self) -> dict[str, Any]: ...
    def __replace__(self, **changes: Any) -> Self: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> Literal[8]: ...
    def __getitem__(self, which: SupportsIndex | slice) -> Any: ...
    def __lt__(self, other: tuple[Any, ...] | Receipt) -> bool: ...
    def __le__(self, other: tuple[Any, ...] | Receipt) -> bool: ...
    def __gt__(self, other: tuple[Any, ...] | Receipt) -> bool: ...
    def __ge__(self, other: tuple[Any, ...] | Receipt) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Receipts(Sequence[Receipt]):
    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int: ...
    def count(self, value: Any) -> int: ...
    @overload
    def __getitem__(self, which: int) -> Receipt: ...
    @overload
    def __getitem__(self, which: slice) -> list[Receipt]: ...
    def __len__(self) -> int: ...

# --- encoding

class QueueCursor:
    next_offset: int
    @property
    def topic(self) -> str: ...
    @property
    def topic_bytes(self) -> bytes: ...
    @property
    def queue(self) -> int: ...
    def __init__(self, topic: str, queue: int, next_offset: int) -> None: ...

class Turns: ...

class RecordEncoder:
    make_cursor: Callable[[str, int], QueueCursor] | None
    make_copy_cursor: Callable[[str, int], QueueCursor] | None
    rewrite: Callable[[Message], Message | tuple[Message, bytes]] | None
    turns_of: Callable[[str], tuple[int, int]] | None

    @property
    def store_host(self) -> bytes: ...
    @property
    def crc_property(self) -> bool: ...
    @property
    def body_bytes_max(self) -> int: ...
    def __init__(
        self,
        store_host: bytes,
        *,
        crc_property: bool,
        body_bytes_max: int,
        make_cursor: Callable[[str, int], QueueCursor] | None = None,
        time_ms: Callable[[], int] | None = None,
    ) -> None: ...
    def now_ms(self) -> int: ...
    def forget(self, topic: str) -> None: ...
    def cursor_of(self, topic: str, queue: int | None) -> QueueCursor: ...
    def take_turns(self, topic: str, count: int) -> tuple[int, int]: ...

class Batch:
    @property
    def encoder(self) -> RecordEncoder: ...
    @property
    def cursors(self) -> tuple[QueueCursor, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def largest(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def has_prepared(self) -> bool: ...
    def __init__(self, encoder: RecordEncoder, *, seals: bool = True) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def columns(self) -> tuple[memoryview, memoryview, memoryview, memoryview]: ...
    def add(self, message: Message) -> int: ...
    def add_all(self, messages: list[Message]) -> None: ...
    def add_columns(self, columns: ArrowRows, start: int = 0) -> int: ...
    def add_record(self, cursor: QueueCursor, record: _Buffer, *, has_crc: bool) -> None: ...
    def fit(self, start: int, room: int) -> tuple[int, int]: ...
    def sizes(self, start: int, stop: int) -> Sequence[int]: ...
    def set_born_time(self) -> None: ...
    def shorten(self, count: int) -> None: ...
    def stamp(
        self,
        pieces: list[tuple[int, int]],
        store_ms: int,
        first_mark: int = 0,
        rest_mark: int = 0,
    ) -> None: ...
    def count_up(self) -> None: ...
    def receipts(self, store_ms: int, status: PutStatus, durability: Durability) -> Receipts: ...

_Texts: TypeAlias = tuple[Any, Any, int]

class ArrowRows:
    def __init__(
        self,
        encoder: RecordEncoder,
        count: int,
        topic: _Texts,
        body: _Texts,
        *,
        queue: _Int64s | None = None,
        tag: _Texts | None = None,
        keys: _Texts | None = None,
        flag: _Int64s | None = None,
        born_ms: _Int64s | None = None,
        pairs: tuple[Any, int, _Texts, _Texts, int] | None = None,
    ) -> None: ...

# --- appending

class AppendLock:
    @property
    def waits(self) -> int: ...
    @property
    def refused(self) -> int: ...
    def __init__(self, limit_ms: int, now_ns: Callable[[], int]) -> None: ...
    def is_owned(self) -> bool: ...
    def refuse_within(self) -> None: ...
    def acquire(self, *, for_ever: bool = False) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def stats(self) -> dict[str, int]: ...

FLUSHED: int
LATE: int
WRITE: int
SYNC: int
GONE: int
LOST: int
MARK: int

class GatherBuffer:
    @property
    def room(self) -> int: ...
    def put(self, position: int, data: _Buffer) -> bool: ...
    def commit(self, descriptor: int) -> None: ...
    def peek(self) -> tuple[int, bytes]: ...
    def drop(self, stop: int) -> None: ...

class SyncGate:
    @property
    def failure(self) -> tuple[int, str, int] | None: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def flushed_time_ms(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def since_ns(self) -> int: ...
    def __init__(
        self,
        appender: Appender,
        refusal: int,
        flushed: int,
        flushed_ms: int,
        sequence: int,
        mark_descriptor: int,
    ) -> None: ...
    def cover(self, ranges: bytes) -> None: ...
    def add(
        self,
        base_offset: int,
        capacity: int,
        descriptor: int,
        view: memoryview,
        path: bytes,
        folder: bytes,
        gathered: GatherBuffer | None,
        extent: Extent,
        owner: object,
    ) -> None: ...
    def forget(self) -> None: ...
    def wait(
        self,
        end_offset: int,
        newest_ms: int,
        latest_ms: int,
        *,
        checks: bool,
        timeout_ms: int = ...,
    ) -> int: ...
    def write_mark(self, slot: bytes) -> None: ...
    def mark_visible(self, visible_offset: int) -> None: ...
    def fail(self, log_offset: int) -> None: ...
    def await_sync(self, began_ns: int, timeout_ms: int = ...) -> bool: ...
    def close(self, timeout_ms: int = ...) -> bool: ...

class Extent:
    wrote: int
    committed: int
    def __init__(self, position: int) -> None: ...
    def commit_to(self, position: int) -> None: ...

class Draft:
    @property
    def cursor(self) -> QueueCursor: ...
    @property
    def size(self) -> int: ...
    @property
    def log_offset(self) -> int: ...
    def encode(self, log_offset: int, now_ms: int) -> bytes: ...

class Appender:
    last_time_ms: int
    is_idle: bool
    is_pausing: bool
    @property
    def encoder(self) -> RecordEncoder: ...
    @property
    def refusals(self) -> int: ...
    @property
    def is_in_child(self) -> bool: ...
    def __init__(
        self, encoder: RecordEncoder, lock: AppendLock, append_slowly: Callable[[Draft], None]
    ) -> None: ...
    def connect(
        self,
        settle: Callable[[int, bool], tuple[PutStatus, Durability]],
        accepted: PutStatus,
        durability: Durability,
        *,
        settles: bool,
    ) -> None: ...
    def refuse(self, reason: int) -> None: ...
    def allow(self, reason: int) -> None: ...
    def attach(
        self,
        extent: Extent,
        base_offset: int,
        capacity: int,
        memory: memoryview | None = None,
        end: int = 0,
        gathered: GatherBuffer | None = None,
    ) -> None: ...
    def wait_at(
        self,
        gate: SyncGate | None,
        timeout_ms: int,
        on_disk: tuple[PutStatus, Durability],
        late: tuple[PutStatus, Durability],
        on_durable: Callable[[], None],
    ) -> None: ...
    def pause(self) -> None: ...
    def detach(self) -> None: ...

class WakeWord:
    def __init__(self, memory: mmap.mmap, position: int, aside: int, file: int = -1) -> None: ...
    def ask(self) -> None: ...
    def sleep(self, seen: int, at_most_ns: int) -> bool: ...
    def wake(self, *, always: bool = False) -> bool: ...
    def read(self) -> int: ...

class Producer:
    def _produce_by(self, appender: Appender | None) -> None: ...
    def _check_writable(self) -> None: ...
    def _put_rewritten(self, message: Message) -> Receipt: ...
    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue: int | None = None,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        wait: bool = True,
        born_time_ms: int | None = None,
        born_host: str | None = None,
        partition_key: str | None = None,
        delay: float | timedelta = 0,
        deliver_at: float | datetime | None = None,
    ) -> Receipt: ...

class BatchProducer:
    _waits: bool
    def _produce_into(self, batch: Batch, appender: Appender, room: int) -> None: ...
    def _hold(self) -> None: ...
    def _release(self) -> None: ...
    def add(self, message: Message) -> None: ...
    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue: int | None = None,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        wait: bool = True,
        born_time_ms: int | None = None,
        born_host: str | None = None,
        partition_key: str | None = None,
        delay: float | timedelta = 0,
        deliver_at: float | datetime | None = None,
    ) -> None: ...

def store_records(
    memory: memoryview, position: int, data: _Buffer, sizes: Sequence[int]
) -> None: ...

# --- dispatch.pxi

# Integers of 4 or 8 bytes, of any stride.
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
def row_entries(
    rows: _Rows,
    topic_rows: _Buffer,
    tag_codes: _Buffer,
    topics: int,
    queue_max: int,
    queue_offset_max: int,
) -> tuple[list[tuple[int, int, int, int, bytes, bytes]], bytes]: ...
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
