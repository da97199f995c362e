"""One queue as the append path knows it, and the parts of a record that a caller gives."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import PluginError
from penstock.record import FIXED_SIZE, MAGIC_V1, MAGIC_V2, V1_TOPIC_BYTES_MAX, layout

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
        """Return what packs a record of these part lengths; kept for the next of its kind."""
        key = (born << 8 | store, body, properties)
        pack = self.shapes.get(key)
        if pack is None:
            if len(self.shapes) >= _SHAPES_MAX:
                self.shapes.clear()
            made = layout(born, store, body, len(self.topic_bytes), properties, is_v2=self.is_v2)
            pack = self.shapes[key] = made.pack
        return pack


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
