"""Dispatch columns of a log range, without record bodies, serialised to be sent between processes.

A file of them is numpy's `.npz` of plain arrays::

    log_offsets i64  sizes i32  queues i32  queue_offsets i64  store_times_ms i64
    transaction_types i32  tag_codes i64  topic_rows i32        one row a record, in log order
    key_rows i32  key_hashes i32                                one row a key
    topics u8                                                   JSON list of the topics, latin-1
    bounds i64                                                  first and end log offset

Not checksummed: deleted once the files built from it are in place.
"""

import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from penstock.contracts.dispatcher import DispatchBatch, IndexColumns
from penstock.format.arrays import Int64s
from penstock.format.java_hash import distinct_of
from penstock.format.text_columns import Keys

_KINDS = {
    "log_offsets": np.int64, "sizes": np.int32, "queues": np.int32, "queue_offsets": np.int64,
    "store_times_ms": np.int64, "transaction_types": np.int32, "tag_codes": np.int64,
    "topic_rows": np.int32,
}  # fmt: skip
_TOPIC_TEXT = "latin-1"


def condense(batch: DispatchBatch, rows: Int64s | None = None, *, keys: bool) -> bytes:
    """Return rows of a batch (all if None) as the content of a file, with or without their keys."""
    picked = np.arange(len(batch)) if rows is None else rows
    arrays: dict[str, Any] = {
        name: getattr(batch, name)[picked].astype(kind) for name, kind in _KINDS.items()
    }
    key_rows, hashes = batch.keys if keys else Keys(np.zeros(0, np.int64), np.zeros(0, np.int32))
    if rows is not None and keys:
        raise ValueError("keys can only be stored with all rows of the batch: rows must be None")
    topics = json.dumps([topic.decode(_TOPIC_TEXT) for topic in batch.topics])
    out = io.BytesIO()
    np.savez(
        out, **arrays, key_rows=key_rows.astype(np.int32), key_hashes=hashes.astype(np.int32),
        topics=np.frombuffer(topics.encode(), np.uint8),
        bounds=np.array([batch.start_offset, batch.end_offset], np.int64),
    )  # fmt: skip
    return out.getvalue()


def restore(data: bytes) -> DispatchBatch:
    """Return the rows of such a file as a batch that has only these columns."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = json.loads(arrays["topics"].tobytes())
    rows = {name: arrays[name].astype(np.int64) for name in _KINDS}
    topics = [name.encode(_TOPIC_TEXT) for name in names], rows.pop("topic_rows")
    keys = Keys(arrays["key_rows"].astype(np.int64), arrays["key_hashes"])
    first, stop = arrays["bounds"].tolist()
    return DispatchBatch(IndexColumns(**rows, topics=topics, keys=keys), first, stop)


def shard_rows(batch: DispatchBatch, shards: int) -> Iterator[tuple[int, Int64s]]:
    """Yield each non-empty shard with the rows of its queues, in log order."""
    seeds = np.array([zlib.crc32(topic) for topic in batch.topics], np.int64)
    cursors = (seeds[batch.topic_rows] + batch.queues) % shards
    for shard in distinct_of(cursors):
        yield shard, np.nonzero(cursors == shard)[0]


@attrs.frozen
class Stretch:
    """The result of scanning one segment.

    Attributes:
        base: base offset of the segment.
        records: number of valid records.
        keys: number of their keys that are indexed.
        end: log offset after the last record, or after the filler; 0 if there are none.
        stop: where the records end without a blank record; -1 if a blank record ends them.
        damages: ranges within the segment that are not valid records.
    """

    base: int
    records: int
    keys: int
    end: int
    stop: int
    damages: tuple[tuple[int, int], ...]
