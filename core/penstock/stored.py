"""A message as it was read back: the record's bytes, decoded only where asked."""

from typing import NamedTuple

from penstock.lazy import lazy
from penstock.message import ReadStatus
from penstock.properties import KEYS, TAGS, decode_properties
from penstock.record import BORN_IPV6, MAGIC_V2, RecordFields, decode_host, decode_record

_MAGIC_END, _V2_END = 8, MAGIC_V2 & 0xFF
_SYS_FLAG_AT = 39  # its last byte


class StoredMessage:
    """One message of the store.

    Holds a copy of its record, so it stays good after the store is closed or the segment deleted.
    Decoding is done at the first use of a field and may raise `MalformedRecordError` on damage.
    A body that was looked at is kept beside the record.
    Safe from any thread.
    """

    # Made at the first use; two threads may both make them.
    _decoded: RecordFields | None = None
    _pairs: dict[str, str] | None = None

    def __init__(
        self, record: bytes, place: slice | None = None, body: bytes | None = None
    ) -> None:
        self.record = record
        # Whoever checked the record knows where its body is, and may have cut it out.
        self._place = place
        if body is not None:
            self.body = body

    @property
    def _fields(self) -> RecordFields:
        decoded = self._decoded
        if decoded is None:
            decoded = self._decoded = decode_record(self.record)
        return decoded

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self.record[at : at + size], "big", signed=True)

    @property
    def _topic(self) -> slice:
        """Where the topic stands, in a record that is known to be sound."""
        record, at = self.record, self._place.stop  # type: ignore[union-attr] # it is known
        if record[_MAGIC_END - 1] == _V2_END:
            return slice(at + 2, at + 2 + int.from_bytes(record[at : at + 2], "big"))
        return slice(at + 1, at + 1 + record[at])

    @property
    def topic(self) -> str:
        """The topic's name."""
        topic = self._fields.topic if self._place is None else self.record[self._topic]
        return topic.decode("utf-8", "replace")

    @lazy
    def body(self) -> bytes:
        """The body as stored; still compressed if its writer compressed it."""
        return self._fields.body if self._place is None else self.record[self._place]

    @property
    def queue(self) -> int:
        """The queue's number."""
        return self._fields.queue if self._place is None else self._number(12, 4)

    @property
    def queue_offset(self) -> int:
        """Ordinal in the queue."""
        return self._fields.queue_offset if self._place is None else self._number(20, 8)

    @property
    def log_offset(self) -> int:
        """Byte address of the record in the commit log."""
        return self._fields.log_offset if self._place is None else self._number(28, 8)

    @property
    def flag(self) -> int:
        """The caller's own 32 bits."""
        return self._fields.flag if self._place is None else self._number(16, 4)

    @property
    def sys_flag(self) -> int:
        """RocketMQ's SYSFLAG bits."""
        return self._fields.sys_flag

    @property
    def born_time_ms(self) -> int:
        """When the producer made it, Unix milliseconds."""
        return self._fields.born_time_ms if self._place is None else self._number(40, 8)

    @property
    def store_time_ms(self) -> int:
        """When it was stored, Unix milliseconds."""
        if self._place is None:
            return self._fields.store_time_ms
        return self._number(68 if self.record[_SYS_FLAG_AT] & BORN_IPV6 else 56, 8)

    @property
    def born_host(self) -> str:
        """The producer's `address:port`."""
        return decode_host(self._fields.born_host)

    @property
    def store_host(self) -> str:
        """The store's `address:port`."""
        return decode_host(self._fields.store_host)

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered again."""
        return self._fields.reconsume_times

    @property
    def prepared_offset(self) -> int:
        """Log offset of the half message of a transaction; 0 for none."""
        return self._fields.prepared_offset

    @property
    def crc(self) -> int:
        """The stored CRC of the body."""
        return self._fields.crc

    @property
    def size(self) -> int:
        """Length of the record in bytes."""
        return len(self.record)

    @property
    def all_properties(self) -> dict[str, str]:
        """Every property of the record, TAGS and KEYS and RocketMQ's own among them."""
        pairs = self._pairs
        if pairs is None:
            text = (
                self._fields.properties
                if self._place is None
                else self.record[self._topic.stop + 2 :]
            )
            pairs = self._pairs = decode_properties(text)
        return pairs

    @property
    def properties(self) -> dict[str, str]:
        """The properties without TAGS and KEYS, which have fields of their own."""
        return {k: v for k, v in self.all_properties.items() if k not in (TAGS, KEYS)}

    @property
    def tag(self) -> str:
        """The tag; empty for none."""
        return self.all_properties.get(TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, split at spaces as the format does."""
        return tuple(key for key in self.all_properties.get(KEYS, "").split(" ") if key)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id."""
        host = self._fields.store_host
        return (host + self.log_offset.to_bytes(8, "big")).hex().upper()

    def __repr__(self) -> str:
        return (
            f"StoredMessage(topic={self.topic!r}, queue={self.queue}, "
            f"queue_offset={self.queue_offset}, log_offset={self.log_offset}, {len(self.body)} bytes)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredMessage) and other.record == self.record

    def __hash__(self) -> int:
        return hash(self.record)


class ReadResult(NamedTuple):
    """The answer of `read`: RocketMQ's status, the messages, and where to go on.

    `next_offset` is the queue offset to read next; `min_offset` and `max_offset` (exclusive) bound
    what the queue holds.
    """

    status: ReadStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
