"""A batch to which messages are added one by one, and that is stored whole or not at all; see `log.atomic_batches`."""

from collections.abc import Callable, Iterable, Sequence

from penstock._kernel import Batch
from penstock.errors import MessageError, MessageTooLargeError
from penstock.format.record import BLANK_SIZE
from penstock.message import Message, Receipt
from penstock.store.engine import Engine
from penstock.store.put_batch import append_encoded
from penstock.write.copies import add_copy
from penstock.write.rewriting import is_plain, rewritten
from penstock.write.validation import check_messages, check_wait, listed


class StoreBatch:
    """Implements `contracts.MessageBatch`. Not thread-safe."""

    def __init__(self, writer: Callable[[], Engine]) -> None:
        """`writer` returns the store's writing half, or raises if messages may not be put."""
        log = writer().log
        self._writer = writer
        self._batch = Batch(log.encoder, seals=False)
        self._room = log.log.segment_bytes - BLANK_SIZE
        self._waits = False
        # To which callers have put; an extension may refuse these until the batch is appended.
        self._queues = set[tuple[str, int]]()

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._batch.size

    def add(self, message: Message) -> None:
        """See `MessageBatch.add`."""
        self._writer()
        waits = check_wait(message.wait)
        self._add(message)
        self._waits = self._waits or waits

    def add_many(self, messages: Iterable[Message]) -> None:
        """See `MessageBatch.add_many`."""
        self._writer()
        given = listed(messages)
        check_messages(given)
        waits = True in [check_wait(each.wait) for each in given]
        count = len(self._batch)
        try:
            for message in given:
                self._add(message)
        except BaseException as error:
            number = len(self._batch) - count
            self._batch.shorten(count)
            if isinstance(error, MessageError):
                error.add_note(f"it is message {number} of the call; none of them was added")
            raise
        self._waits = self._waits or waits

    def _add(self, message: Message) -> None:
        batch, count = self._batch, len(self._batch)
        batch.set_born_time()
        made = message if is_plain(message) else rewritten(batch, message)
        if isinstance(made, tuple):
            add_copy(batch, *made)
        else:
            batch.add(made)
            self._queues.add((str(made.topic), int(made.queue)))
        if batch.size > self._room:
            size = batch.size
            batch.shorten(count)
            raise MessageTooLargeError(
                f"the batch with message {count}", size, self._room,
                "messages that are stored together must fit into one segment: store fewer or shorter ones together, or use a "
                "store with a larger geometry.segment_bytes; this message was not added",
            )  # fmt: skip

    def append(self, *, wait: bool | None = None, decision: int | None = None) -> Sequence[Receipt]:
        """See `MessageBatch.append`."""
        engine, batch = self._writer(), self._batch
        for topic, queue in self._queues:
            # Asks the extensions again if the topic was changed or deleted since.
            engine.log.encoder.cursor_of(topic, queue)
        wait = self._waits if wait is None else wait
        time_ms, known = append_encoded(engine, batch, atomic=True, decision=decision, wait=wait)
        return batch.receipts(time_ms, *known)
