"""Appends encoded batches to a store that is open for writing."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from penstock._kernel import Batch
from penstock.contracts import TopicConfig
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


class _Topics(Protocol):
    def topic_configs(self) -> Mapping[str, TopicConfig]: ...
    def alter_topic(self, topic: str, *, queues: int) -> Any: ...


def with_queues(
    store: _Topics, places: Iterable[tuple[str, int | None]], append: Callable[[], Result]
) -> Result:
    """Return what `append` returns; adds the queues that it puts to, where messages have created the topic.

    For messages whose queues were picked elsewhere: imported ones, and those of a parallel job.
    """
    while True:
        try:
            return append()
        except TopicQueueError as error:
            config = store.topic_configs().get(error.topic)
            if config is None or not config.is_auto:
                raise
            numbers = [
                queue for topic, queue in places if topic == error.topic and queue is not None
            ]
            store.alter_topic(error.topic, queues=max(numbers) + 1)


def prepared_refused() -> MessageError:
    """Return the error for a message in an atomic batch that has a PREPAREDTRANSACTIONOFFSET of its own."""
    return MessageError(
        "a message with a prepared_offset cannot be part of an atomic batch, whose marks are in the same field: put it by "
        "itself; nothing was stored"
    )
