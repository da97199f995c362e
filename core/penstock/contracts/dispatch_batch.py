"""A range of the log as dispatchers receive it: one row a record, in log order."""

import re
from functools import cached_property

import attrs

from penstock.errors import PluginError
from penstock.format.arrays import Int64s
from penstock.format.columns import RecordColumns, ScannedColumns
from penstock.format.properties import DELAY
from penstock.format.text_columns import Indexed, Keys
from penstock.message import StoredMessage

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
# Any caller can set the property, and Python refuses to convert numbers of some thousand digits.
_LEVEL = re.compile(rb"[0-9]{1,9}")
# RocketMQ's messageDelayLevel, in seconds; level 1 is the first.
DELAY_SECONDS = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)


@attrs.frozen(eq=False, kw_only=True)
class IndexColumns:
    """The columns of many records from which queues and index are built, one row a record.

    Attributes:
        topics: the distinct topics, and for each row the index of its topic.
        tag_codes: the third field of each queue entry, delivery times included.
        keys: every key to be indexed.
    """

    log_offsets: Int64s
    sizes: Int64s
    queues: Int64s
    queue_offsets: Int64s
    store_times_ms: Int64s
    transaction_types: Int64s
    topics: tuple[list[bytes], Int64s]
    tag_codes: Int64s
    keys: Keys

    def __len__(self) -> int:
        return len(self.log_offsets)


@attrs.define(slots=False, eq=False)
class DispatchBatch:
    """Valid records of the log in [start_offset, end_offset), as columns of one row a record.

    `end_offset` may be after the end of the last record: filler at a segment's end counts as consumed.
    A dispatcher must not keep the batch or views of its columns: the memory is reused afterwards.
    """

    _rows: RecordColumns | IndexColumns = attrs.field(alias="columns")
    start_offset: int
    end_offset: int

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> RecordColumns:
        """All columns of the records, with their bytes; raises `PluginError` in a reindex, which sends no records around."""
        if isinstance(self._rows, IndexColumns):
            raise PluginError(
                "a dispatcher needs the records themselves, so reindex cannot rebuild its files; nothing was changed. "
                "Run reindex without that dispatcher in index.use, and rebuild its files with penstock repair"
            )
        return self._rows

    @property
    def log_offsets(self) -> Int64s:
        """Byte addresses in the commit log, ascending."""
        return self._rows.log_offsets

    @property
    def sizes(self) -> Int64s:
        """Record sizes in bytes."""
        return self._rows.sizes

    @property
    def queues(self) -> Int64s:
        """Queue numbers as the records state them; in a hostile log they may be any number."""
        return self._rows.queues

    @property
    def queue_offsets(self) -> Int64s:
        """Ordinals in the queues."""
        return self._rows.queue_offsets

    @property
    def store_times_ms(self) -> Int64s:
        """Store times, Unix milliseconds."""
        return self._rows.store_times_ms

    @cached_property
    def transaction_types(self) -> Int64s:
        """0, PREPARED, COMMIT or ROLLBACK of `penstock.format.record`."""
        return self._rows.transaction_types

    @property
    def topics(self) -> list[bytes]:
        """The distinct topics of the batch."""
        rows = self._rows
        return rows.topic_names if isinstance(rows, ScannedColumns) else rows.topics[0]

    @property
    def topic_rows(self) -> Int64s:
        """For each row the index of its topic in `topics`."""
        return self._rows.topics[1]

    @cached_property
    def _indexed(self) -> Indexed:
        return self.columns.indexed()

    @cached_property
    def tag_codes(self) -> Int64s:
        """The queue entry's third field: tag hash, or delivery time on the schedule topic."""
        if isinstance(self._rows, IndexColumns):
            return self._rows.tag_codes
        codes = self._indexed.tag_codes
        return self._with_delivery_times(codes) if SCHEDULE_TOPIC in self.topics else codes

    def _with_delivery_times(self, tag_codes: Int64s) -> Int64s:
        """Return the tag codes with delivery times for records of the schedule topic (spec section 3.2)."""
        codes = tag_codes.copy()
        scheduled = self.topic_rows == self.topics.index(SCHEDULE_TOPIC)
        delays = self.columns.properties.named(DELAY.encode())
        for row, text in zip(delays.rows.tolist(), delays.texts(), strict=True):
            if scheduled[row] and _LEVEL.fullmatch(text) and int(text) > 0:
                level = min(int(text), len(DELAY_SECONDS))
                codes[row] = int(self.store_times_ms[row]) + DELAY_SECONDS[level - 1] * 1000
        return codes

    @property
    def keys(self) -> Keys:
        """Every key to be indexed, with the index hash of `topic#key`, in log order."""
        rows = self._rows
        return rows.keys if isinstance(rows, IndexColumns | ScannedColumns) else self._indexed.keys

    @property
    def scanned(self) -> ScannedColumns | None:
        """The records as the kernel's scan found them; None if they come from elsewhere."""
        return self._rows if isinstance(self._rows, ScannedColumns) else None

    def message(self, row: int) -> StoredMessage:
        """Return one record as a message, copied out of the batch."""
        start = int(self.columns.positions[row])
        return StoredMessage(bytes(self.columns.window[start : start + int(self.sizes[row])]))
