"""Appends encoded batches to a store that is open for writing."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock._kernel import Batch
from penstock.errors import MessageError, MessageTooLargeError, TopicQueueError
from penstock.message import Durability, PutStatus
from penstock.store.engine import Engine


def append_encoded(
    engine: Engine,
    batch: Batch,
    *,
    atomic: bool = False,
    decision: int | None = None,
    wait: bool = False,
    first_mark: int = 0,
) -> tuple[int, tuple[PutStatus, Durability]]:
    """Append an encoded batch and apply the flush policy; returns its store time, and its status and durability."""
    size, room = batch.size, engine.log.log.segment_bytes - 8
    if atomic and size > room:
        raise MessageTooLargeError(
            "the batch", size, room,
            "an atomic batch must fit into one segment: use a smaller batch, or do not set atomic",
        )  # fmt: skip
    if atomic and batch.has_prepared:
        raise prepared_refused()
    try:
        time_ms = engine.log.append_batch(
            batch, atomic=atomic, decision=decision, first_mark=first_mark
        )
    except OSError as error:
        raise engine.failed_append(error) from error
    known = PutStatus.PUT_OK, Durability.ACCEPTED
    return time_ms, engine.settle(batch.end_offset, wait) if len(batch) else known


Result = TypeVar("Result")


def with_queues(
    add_queue: Callable[[str, int], None], places: Iterable[tuple[str, int | None]], append: Callable[[], Result]
) -> Result:  # fmt: skip
    """Return what `append` returns; adds the queues that it puts to, where messages have created the topic.

    For messages whose queues were picked elsewhere: imported ones, and those of a parallel job.
    """
    grown = set[str]()
    while True:
        try:
            return append()
        except TopicQueueError as error:
            if error.topic in grown:
                raise
            grown.add(error.topic)
            add_queue(
                error.topic, max(queue or 0 for topic, queue in places if topic == error.topic)
            )


def prepared_refused() -> MessageError:
    """Return the error for a message in an atomic batch that has a PREPAREDTRANSACTIONOFFSET of its own."""
    return MessageError(
        "a message with a prepared_offset cannot be part of an atomic batch, whose marks are in the same field: put it by "
        "itself; nothing was stored"
    )
