"""The sizes of a store's files. They are fixed when a store is created."""

import attrs
from attrs import validators

from penstock.errors import ConfigError, shown

QUEUE_ENTRY_SIZE = 20
INDEX_HEADER_SIZE = 40
INDEX_SLOT_SIZE = 4
INDEX_ENTRY_SIZE = 20


@attrs.frozen(kw_only=True)
class Geometry:
    """File sizes of one store.

    The defaults suit embedding: files are sparse, and a store of 200 topics with a message each has an
    apparent size under 150 MB. `ROCKETMQ` has the Java defaults. The format is the same with any sizes; a Java broker
    only needs them in its configuration.

    Attributes:
        segment_bytes: size of a commit-log file, a multiple of 4096.
        queue_entries: entries of 20 bytes in one consume-queue file.
        index_slots: hash slots of one index file.
        index_entries: entries of one index file; the first is never used.
    """

    segment_bytes: int = attrs.field(default=64 << 20, validator=validators.instance_of(int))
    queue_entries: int = attrs.field(default=10_000, validator=validators.instance_of(int))
    index_slots: int = attrs.field(default=500_000, validator=validators.instance_of(int))
    index_entries: int = attrs.field(default=2_000_000, validator=validators.instance_of(int))

    def __attrs_post_init__(self) -> None:
        for name, low, high in (
            ("segment_bytes", 4096, 1 << 30),
            ("queue_entries", 1, 100_000_000),
            ("index_slots", 1, 1 << 30),
            ("index_entries", 2, 100_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {shown(value)}; it must be {low} to {high}")
        # A page of 4096 bytes must not span two segments: maps, erasing and syncs rely on that.
        if self.segment_bytes % 4096:
            raise ConfigError(
                f"segment_bytes is {self.segment_bytes}; it must be a multiple of 4096"
            )

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume-queue file."""
        return self.queue_entries * QUEUE_ENTRY_SIZE

    @property
    def index_file_bytes(self) -> int:
        """Size of an index file: header, slots, entries."""
        slots = self.index_slots * INDEX_SLOT_SIZE
        return INDEX_HEADER_SIZE + slots + self.index_entries * INDEX_ENTRY_SIZE


ROCKETMQ = Geometry(
    segment_bytes=1 << 30, queue_entries=300_000, index_slots=5_000_000, index_entries=20_000_000
)
