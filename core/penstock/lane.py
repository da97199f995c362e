"""One queue as the append path knows it, the parts of a record that a caller gives, and how both become bytes."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import PluginError
from penstock.record import (
    CRC_MASK,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    V1_TOPIC_BYTES_MAX,
    crc32,
    host_flags,
    layout,
)

# Structs of record shapes are kept for each queue, until so many came together.
_SHAPES_MAX = 4096


class Lane:
    """One queue as the append path knows it: its next offset and the constant parts of its records."""

    __slots__ = (
        "base_size",
        "is_v2",
        "magic",
        "next_offset",
        "queue",
        "shapes",
        "topic",
        "topic_bytes",
    )

    def __init__(self, topic: str, queue: int, next_offset: object) -> None:
        # The queue index is a plugin; what it says goes into the log for good.
        if not (isinstance(next_offset, int) and 0 <= next_offset < 1 << 63):
            raise PluginError(
                f"the queue index says that queue {topic}/{queue} goes on at {next_offset!r}, which no queue "
                f"can: nothing was put; mend or replace that plugin, see penstock plugins"
            )
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue = queue
        self.next_offset = next_offset
        self.shapes: dict[tuple[int, int, int], Callable[..., bytes]] = {}
        # V2 is for topics too long for the one byte that V1 has for their length.
        self.is_v2 = len(self.topic_bytes) > V1_TOPIC_BYTES_MAX
        self.magic = MAGIC_V2 if self.is_v2 else MAGIC_V1
        # TOTALSIZE without body, properties and the hosts' share.
        self.base_size = FIXED_SIZE - 16 + len(self.topic_bytes) + self.is_v2

    def shape(self, born: int, store: int, body: int, properties: int) -> Callable[..., bytes]:
        """Make what packs a record of these part lengths; kept in `shapes` for the next of its kind."""
        if len(self.shapes) >= _SHAPES_MAX:
            self.shapes.clear()
        made = layout(born, store, body, len(self.topic_bytes), properties, is_v2=self.is_v2)
        self.shapes[born << 8 | store, body, properties] = made.pack
        return made.pack


class RecordParts(NamedTuple):
    """What a caller gives of a record; the commit log adds the rest."""

    body: bytes
    properties: bytes
    flag: int = 0
    born_time_ms: int | None = None
    born_host: bytes | None = None
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


class RecordForm:
    """What records of one store have in common, whoever makes them: the store's host, and whether they are sealed.

    Safe from any thread.
    """

    def __init__(
        self, store_host: bytes, *, crc_property: bool, time_ms: Callable[[], int]
    ) -> None:
        self.store_host = store_host
        self._host_size = len(store_host)
        self._own_flags = host_flags(store_host, store_host)
        self.crc_property = crc_property
        self._now = time_ms

    def now_ms(self) -> int:
        """Return the wall-clock time, which a message gets that brings none of its own."""
        return self._now()

    def encode(
        self,
        lane: Lane,
        parts: RecordParts,
        size: int,
        queue_offset: int,
        log_offset: int,
        now_ms: int,
    ) -> bytes:
        """Return the bytes of one record of `size` bytes, its CRC property still empty."""
        body, properties, flag, born, born_host, sys_flag, reconsume_times, prepared_offset = parts
        host = self.store_host
        if born_host is None:
            born_host, flags = host, sys_flag | self._own_flags
        else:
            flags = sys_flag | host_flags(born_host, host)
        topic, body_size, properties_size = lane.topic_bytes, len(body), len(properties)
        # What `shape` does, without calling it.
        pack = lane.shapes.get((len(born_host) << 8 | self._host_size, body_size, properties_size))
        if pack is None:
            pack = lane.shape(len(born_host), len(host), body_size, properties_size)
        return pack(
            size, lane.magic, crc32(body) & CRC_MASK, lane.queue, flag, queue_offset, log_offset, flags,
            now_ms if born is None else born, born_host, now_ms, host, reconsume_times, prepared_offset,
            body_size, body, len(topic), topic, properties_size, properties,
        )  # fmt: skip

    def encode_unsealed(self, lane: Lane, parts: RecordParts, now_ms: int) -> bytes:
        """Return a record for a batch: its offsets and store time are stamped when it is appended."""
        return self.encode(lane, parts, self.size_of(lane, parts), 0, 0, now_ms)

    def size_of(self, lane: Lane, parts: RecordParts) -> int:
        """Return TOTALSIZE of the record that these parts make."""
        born_host = parts.born_host
        born_size = self._host_size if born_host is None else len(born_host)
        return (
            lane.base_size + born_size + self._host_size + len(parts.body) + len(parts.properties)
        )
