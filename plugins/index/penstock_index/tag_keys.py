"""Tags in the key index, as RocketMQ writes them since 5.4: one more entry, of the text `topic#T#tag`.

Penstock does not write them. It recognises them, so that they do not count as corruption, nor as entries that a put
must maintain.
"""

from collections.abc import Iterable

from penstock import StoredMessage
from penstock.contracts import DispatchBatch, LogView
from penstock.errors import OffsetError
from penstock.format.arrays import Int32s, np
from penstock.format.hashes import index_hash
from penstock.format.record import FIXED_SIZE, SIZE_AND_MAGIC
from penstock.format.validity import is_valid
from penstock_index.index_file import Peek

_MARK = "#T#"
# Maximum of records read, and of those with a tag: a broker gives every tag an entry, or none.
_RECORDS_MAX, _TAGGED_MAX = 256, 16
_BYTES_MAX = 8 << 20


def tag_key_hashes(batch: DispatchBatch) -> "tuple[np.ndarray, Int32s]":
    """Return the rows that have a tag, and the index hash of each one's tag key."""
    rows, hashes = batch.columns.properties.tag_keys()
    return rows, hashes


def has_tag_keys(peeks: Iterable[Peek], log: LogView) -> bool:
    """Return whether the newest records with a tag have tag keys in the index; `peeks`, newest first."""
    records = tagged = size_read = 0
    for peek in peeks:
        hashes: dict[int, set[int]] = {}
        for at, key_hash in reversed(peek.newest(_RECORDS_MAX * 4)):
            hashes.setdefault(at, set()).add(key_hash)
        for at, there in hashes.items():
            message = _message(log, at)
            if message is None:
                continue
            records, size_read = records + 1, size_read + message.size
            if message.tag:
                if index_hash(f"{message.topic}{_MARK}{message.tag}") in there:
                    return True
                tagged += 1
            if records >= _RECORDS_MAX or tagged >= _TAGGED_MAX or size_read >= _BYTES_MAX:
                return False
    return False


def _message(log: LogView, at: int) -> StoredMessage | None:
    """Return the record at a log offset, None if there is no valid one."""
    if at < log.min_offset:
        return None
    try:
        size = int(SIZE_AND_MAGIC.unpack(log.read(at, SIZE_AND_MAGIC.size))[0])
        record = log.read(at, max(size, FIXED_SIZE))
    except OffsetError:
        return None
    return StoredMessage(bytes(record)) if is_valid(record, at) else None
