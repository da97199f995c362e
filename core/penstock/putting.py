"""Batches on their way into a store that is open for writing: appended, settled, and their receipts."""

from collections.abc import Sequence

from penstock.commitlog import AppendedBatch
from penstock.encode import (
    EncodedBatch,
    encode_messages,
    few_receipts,
    receipts_of,
    records_of,
)
from penstock.engine import Engine
from penstock.errors import MessageTooLargeError
from penstock.message import Message, Receipt
from penstock.stamps import Marks

# So few messages are encoded one by one: over them, columns cost more than they save.
FEW = 48


def put_messages(engine: Engine, messages: Sequence[Message], *, atomic: bool) -> list[Receipt]:
    """Do what `Store.put_many` does."""
    if not messages:
        return []
    wait = any(message.wait for message in messages)
    if len(messages) <= FEW:
        records = records_of(engine, messages)
        try:
            few = engine.log.append_few(records)
        except OSError as error:
            raise engine.failed_append(error) from error
        if few is not None:
            known = engine.settle(few[-1].log_offset + few[-1].size, wait)
            return few_receipts(few, records, known, engine.log.store_host)
    batch = encode_messages(engine, messages)
    done = append_encoded(engine, batch, atomic=atomic)
    known = engine.settle(int(done.log_offsets[-1] + done.sizes[-1]), wait)
    return receipts_of(done, batch, known, engine.log.store_host)


def append_encoded(
    engine: Engine, batch: EncodedBatch, *, atomic: bool = False, marks: Marks | None = None
) -> AppendedBatch:
    """Append an encoded batch; see `CommitLog.append_batch`."""
    size, room = len(batch.data), engine.log.log.segment_bytes - 8
    if atomic and size > room:
        raise MessageTooLargeError(
            "the batch", size, room,
            "an atomic batch must fit into one segment: make it smaller, or leave atomic out",
        )  # fmt: skip
    try:
        return engine.log.append_batch(
            batch.data, batch.sizes, batch.lanes, batch.lane_rows, store_time_at=batch.store_time_at,
            atomic=atomic, marks=marks, tag_codes=batch.tag_codes,
        )  # fmt: skip
    except OSError as error:
        raise engine.failed_append(error) from error
