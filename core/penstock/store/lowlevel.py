"""The calls of a store for extensions, Spark and tools: `Store.lowlevel`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.contracts import (
    Extension,
    MessageWaiter,
    QueueBounds,
    QueueEntries,
    SummaryLine,
    WorkWakes,
)
from penstock.contracts.foreign import Foreign
from penstock.errors import ArgumentError, ArgumentTypeError, PenstockError, UnknownStrategyError
from penstock.files import Files
from penstock.format import arguments
from penstock.format.names import check_queue, check_topic
from penstock.message import Message, Receipt, StoredMessage
from penstock.read.filters import RowFilter, checked_columns
from penstock.read.reader import ROWS_MAX
from penstock.read.spans import (
    BATCH_BYTES_MAX,
    Limits,
    Lost,
    QueueSpan,
    checked_span,
    checked_spans,
    refuse_lost,
    span_messages,
)
from penstock.retention.runner import DAYS_MAX, SegmentForecast
from penstock.runtime.waking import Waiter, WorkWaiter
from penstock.store.batches import StoreBatch, append_encoded, decided_batches, with_queues
from penstock.store.consumer_offsets import check_group, check_known, check_offset
from penstock.store.store import Store
from penstock.write.staged_file import StagedBatch, count_marked
from penstock.write.validation import encode_copies, encode_messages

if TYPE_CHECKING:
    import pyarrow as pa


class LowLevelStore(Store):
    """The calls of a store for extensions, Spark and tools, besides those of `Store`; get it as `store.lowlevel`.

    It is the same open store: closing either closes both.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store, *, keeps_open: bool) -> None:
        """Share all state of a store, and with `keeps_open` keep it from being dropped."""
        self.__dict__ = store.__dict__
        self._store = store if keeps_open else None
        if self._engine is not None:
            self._produce_by(self._engine.log.appender)

    def __repr__(self) -> str:
        return super().__repr__().replace("<Store", "<LowLevelStore", 1)

    @property
    def keeps_open(self) -> bool:
        """Whether the store stays open while this object is in use; not so for the one that extensions have."""
        return self._store is not None

    @property
    def lowlevel(self) -> "LowLevelStore":
        """This object."""
        return self

    def __del__(self) -> None:
        """Do nothing: it is the program's object that must be closed."""

    @property
    def damaged_reads(self) -> int:
        """The number of corrupt records that reads have skipped since the store was opened."""
        return self._damaged_reads

    @property
    def not_understood(self) -> tuple[Foreign, ...]:
        """The files that Penstock does not understand, found at a read-only opening; see docs/broker-directories.md."""
        return self._not_understood

    def extension(self, name: str) -> Extension:
        """Return the extension with that name; raises `UnknownStrategyError` if it is not in `extensions.use`."""
        self._check_open()
        arguments.text("extension", "name", name, "the name of an extension")
        for each in self._extensions:
            if each.name == name:
                return each
        raise UnknownStrategyError("extensions", name, [each.name for each in self._extensions])

    def _check_is_known(self, call: str, topic: str, queue: int | None = None) -> None:
        """Do nothing: the topics that an extension keeps for itself come with their first message."""

    def topic_generation(self, topic: str) -> int:
        """Return how often a topic was removed; a queue offset of one generation means nothing in another."""
        self._check_open()
        return self._removed_topics.read().count(check_topic(topic))

    def remove_topic(self, topic: str) -> None:
        """Remove a topic with its queues, its messages and the groups' offsets in it, durably; it need not exist.

        The records stay in the log until retention deletes their segments, but no queue, no key and no recovery shows
        them again. A topic of the same name that is created later begins at queue offset 0. Configuration is not
        changed: see `delete_topic`.

        Raises:
            ConfigError: the configured queue index cannot remove topics; nothing was changed.
            StoreFailedError: the queues, or the offsets of groups, could not be removed; the next open completes that.
        """
        self._owner().remove_topic(check_topic(topic))

    def recheck_puts(self, topic: str) -> None:
        """Make the extensions check again, before the next put to each queue of a topic, whether it is allowed."""
        self._owner().log.encoder.forget(check_topic(topic))

    def waiter(self) -> MessageWaiter:
        """Return an object with which one thread waits for new messages, of this or another process."""
        self._check_open()
        return Waiter(self._wakes)

    def work_wakes(self) -> WorkWakes:
        """Return an object with which any process wakes background work of an extension in the writing process."""
        self._check_open()
        return WorkWaiter(self._wakes)

    @property
    def files(self) -> Files:
        """The file system that a store opened for writing uses, for files beside its own."""
        return self._owner().files

    # --- puts

    @property
    def body_bytes_max(self) -> int:
        """Maximum size in bytes of the body of a message that this store takes."""
        return self._writer().log.encoder.body_bytes_max

    @property
    def puts_wait(self) -> bool:
        """Whether `put` returns only when the message is durable, by the flush policy, or has copies.

        False if opened read-only.
        """
        engine = self._engine
        return engine is not None and (engine.policy.waits or engine.waits_for_copies)

    def check(self, message: Message, properties_text: bytes | None = None) -> None:
        """Raise the `MessageError` that `put_many` would raise for a message; nothing is stored.

        With a properties text, the one that `put_copies` would raise.
        """
        log = self._owner().log
        encoder = log.encoder
        expected = "a penstock.Message, for example Message(topic, body)"
        arguments.instance("check", "message", message, Message, expected)
        if message.queue is None and message.partition_key is None:
            # Its topic's next turn is not taken.
            message = message.__replace__(queue=0)
        if properties_text is None:
            log.check_put(encode_messages(encoder, [message]).largest)
        else:
            text = arguments.instance("check", "properties_text", properties_text, bytes, "bytes")
            log.check_size(encode_copies(encoder, [(message, text)]).largest)

    def add_queue(self, topic: str, queue: int) -> None:
        """Give a topic that messages have created a queue, for messages whose queues were picked elsewhere.

        A declared topic stays as it is, and refuses them.
        """
        self._writer()
        topic, queue = check_topic(topic), check_queue(queue)
        for each in self._extensions:
            each.add_queue(topic, queue)

    def message_batch(self) -> StoreBatch:
        """Return a batch that takes messages one by one, and is stored whole or not at all; for extensions."""
        return StoreBatch(self._writer)

    def decided_batches(self, log_offset: int) -> set[int]:
        """Return the decisions of the whole atomic batches that begin at `log_offset` or after it; for extensions.

        A decision is known by the low 30 bits of its number. A record must begin at `log_offset`, or the log end there.
        """
        offset = arguments.whole("decided_batches", "log_offset", log_offset)
        return decided_batches(self._owner().log, offset)

    def put_copies(self, copies: Iterable[tuple[Message, bytes]]) -> Sequence[Receipt]:
        """Append copies of messages of another store under one lock; one receipt each.

        Each message comes with its properties text, which is stored byte by byte in place of the message's own tag,
        keys and properties, including properties that `put` refuses. Does not wait for a flush. Stores all messages or
        none, like `put_many`.
        """
        engine, given = self._writer(), _listed_copies(copies)
        batch = encode_copies(engine.log.encoder, given)
        time_ms, known = append_encoded(engine, batch)
        return batch.receipts(time_ms, *known)

    def awaited(self, receipt: Receipt) -> Receipt:
        """Wait as a put with `wait=True` does, for the flush policy and copies; return the receipt with what is known.

        Args:
            receipt: of a message that was put without waiting, by `put_copies`.
        """
        engine = self._writer()
        arguments.instance("awaited", "receipt", receipt, Receipt, "a Receipt")
        end = receipt.log_offset + receipt.size
        if end > engine.log.end_offset:
            raise ArgumentError("awaited", "receipt", receipt, "that of a message of this store")
        status, durability = engine.apply_policy(end, wait=True, is_new=False)
        return receipt._replace(status=status, durability=durability)

    def put_staged(self, batch: StagedBatch, *, first_mark: int = 0) -> int:
        """Append a batch that was encoded elsewhere (see `penstock.staged`); returns the log offset after it.

        With `first_mark`, a number of at least 2**62, its records are numbered upwards from it in a field that
        only transactions use, so that `count_marked` can later count those in the log. Does not wait for a flush: call
        `flush`. Stores all records or none, like `put_many`.
        """
        engine = self._writer()
        expected = "a penstock.staged.StagedBatch"
        arguments.instance("put_staged", "batch", batch, StagedBatch, expected)
        first_mark = arguments.whole("put_staged", "first_mark", first_mark, high=1 << 64)
        if first_mark:
            batch.check_mark(first_mark)
        encoded = with_queues(self.add_queue, batch.cursors, lambda: batch.encoded(engine.log.encoder))  # fmt: skip
        append_encoded(engine, encoded, first_mark=first_mark)
        return encoded.end_offset

    def check_puts(self, topic: str, queue: int) -> None:
        """Raise the `MessageError` with which `put_staged` would refuse messages to a queue; nothing is stored.

        A topic, or a queue of it, that messages may create is created.
        """
        encoder = self._writer().log.encoder
        topic, queue = check_topic(topic), check_queue(queue)
        with_queues(self.add_queue, [(topic, queue)], lambda: encoder.cursor_of(topic, queue))

    def count_marked(self, log_offset: int, first_mark: int, most: int) -> int:
        """Return how many records numbered from `first_mark` are in the log from `log_offset` on, at most `most`.

        Steps over records of others, before, between and after them. Reads the log until it has found `most`, else to
        its end, so take a `log_offset` near the first of them. Raises `StorageError` if the count cannot be determined:
        one of them is out of order, or the log does not have `log_offset`.
        """
        call = "count_marked"
        return count_marked(
            self._owner().log,
            arguments.whole(call, "log_offset", log_offset, arguments.INT64_MIN),
            arguments.whole(call, "first_mark", first_mark),
            arguments.whole(call, "most", most),
        )

    # --- reads

    def scan_spans(
        self, spans: Iterable[QueueSpan], *, tags: Iterable[str] = (), lost: Lost = refuse_lost
    ) -> Iterator[StoredMessage]:
        """Yield the messages of ranges of queues of any topics, in the order in which they were stored.

        Reads the log once, however many queues are interleaved in it, and a few MiB at a time. Corrupt records are
        skipped, logged and counted in `damaged_reads`.

        Args:
            spans: ranges [start, stop) of queues, as returned by `bounds`.
            tags: only messages with one of these tags; all messages if empty.
            lost: called with messages that retention deleted meanwhile; see `arrow_spans`.
        """
        self._make_readable()
        call = "scan_spans"
        wanted = arguments.texts(call, "tags", tags, one_too=True)
        messages = span_messages(
            self._log, self._queue_index, self._records, checked_spans(call, spans), RowFilter(wanted).may_match,
            arguments.function(call, "lost", lost), self._count_corrupt,
        )  # fmt: skip
        return (message for message in messages if not wanted or message.tag in wanted)

    def arrow_spans(
        self,
        spans: Sequence[QueueSpan],
        columns: Sequence[str] | None = None,
        *,
        rows: int = 65_536,
        size: int = BATCH_BYTES_MAX,
        verify: bool = True,
        tags: Iterable[str] = (),
        keys: Iterable[str] = (),
        lost: Lost = refuse_lost,
    ) -> "Iterator[pa.RecordBatch]":
        """Return the messages of ranges of multiple queues, in the order in which they were stored.

        Reads the log once, however many queues are interleaved in it.

        Args:
            spans: ranges [start, stop) of queues, as returned by `bounds`.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            rows: maximum number of rows in a batch.
            size: maximum size in bytes of the records of a batch; a batch always has at least one record.
            verify: check every record's CRC; without, one that has the right lengths counts as valid. A corrupt one is
                an error.
            tags: only messages with one of these tags; all messages if empty.
            keys: only messages with one of these keys; all messages if empty.
            lost: called with messages that retention deleted meanwhile, and with the error, or None if only their
                queue entries are missing; the messages are skipped unless it raises.
        """
        self._make_readable()
        call = "arrow_spans"
        limits = Limits(
            arguments.whole(call, "rows", rows, 1, ROWS_MAX),
            arguments.whole(call, "size", size, 1, 1 << 62),
        )
        wanted = RowFilter(
            arguments.texts(call, "tags", tags, one_too=True),
            arguments.texts(call, "keys", keys, one_too=True),
        )
        return self._columns.span_batches(
            checked_spans(call, spans), checked_columns(call, columns), limits,
            verify=arguments.flag(call, "verify", verify), wanted=wanted,
            lost=arguments.function(call, "lost", lost),
        )  # fmt: skip

    def bounds(
        self, wanted: Callable[[str], bool] = lambda _: True, *, published: bool = True
    ) -> list[QueueBounds]:
        """Return the bounds of every queue, in one pass, sorted by topic and queue.

        Args:
            wanted: returns whether a topic is included.
            published: if another process writes the store, return only messages that it has published; a crash of
                that process may cut off the messages after them.
        """
        self._make_readable()
        arguments.function("bounds", "wanted", wanted)
        return self._columns.bounds(
            wanted, published=arguments.flag("bounds", "published", published)
        )

    def queue_entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries of a queue from queue offset `start` to before `stop`, without reading the messages.

        Fewer if the queue ends, or a file of it is missing; an entry that is missing in between has size 0.
        """
        self._make_readable()
        span = checked_span("queue_entries", QueueSpan(topic, queue, start, stop))
        return self._queue_index.entries(*span)

    def sample(
        self, topic: str, queue: int, start: int, stop: int, count: int
    ) -> list[tuple[int, int, float]]:
        """Sample `count` positions of a queue; returns ordinals, log offsets, and the mean record size at each."""
        self._make_readable()
        span = checked_span("sample", QueueSpan(topic, queue, start, stop))
        return self._columns.sample(*span, arguments.whole("sample", "count", count, 0, ROWS_MAX))

    # --- groups and figures

    def move_offsets(
        self, moves: Mapping[tuple[str, str, int], tuple[int | None, int]]
    ) -> set[tuple[str, str, int]]:
        """Commit multiple offsets in one durable write, each only if the group's offset is still the expected one.

        For programs that compute an offset from the last one, such as a consumer's acknowledgements, and must not
        overwrite a `commit_offset` that came in between.

        Args:
            moves: (group, topic, queue) to (expected offset, or None if the group never committed one; new offset).

        Returns:
            Those that were not moved, since their offset was another one.

        Raises:
            MessageError: a group, topic or queue is not valid, or an offset is after the queue's end (`CommitError`);
                nothing was written.
        """
        self._owner()
        expected = "a mapping of (group, topic, queue) to (expected offset or None, new offset)"
        if not isinstance(moves, Mapping):
            raise ArgumentTypeError("move_offsets", "moves", moves, expected)
        for pair in moves.items():
            if not all(isinstance(each, tuple) for each in pair):
                raise ArgumentTypeError("move_offsets", "moves", pair, expected)
            if [len(each) for each in pair] != [3, 2]:
                raise ArgumentError("move_offsets", "moves", pair, expected)
        self._make_readable()
        for (group, topic, queue), (_, new) in moves.items():
            check_group(group)
            end = check_known(self._queue_index, group, check_topic(topic), check_queue(queue), new)
            check_offset(group, topic, queue, new, end)
        return self._offsets.move(moves)

    def remove_offsets(self, group: str) -> None:
        """Remove the committed offsets of a group in all topics, durably; a group without any, too."""
        self._owner()
        self._offsets.remove_group(check_group(group))

    def forecast(self, days: float = 14) -> list[SegmentForecast]:
        """Return when each segment would be deleted, and why, by the policies' current answers; changes nothing.

        `days`, from 0 to 3660, is how far the forecast reaches.
        """
        self._check_open()
        days = arguments.number("forecast", "days", days, 0, DAYS_MAX)
        return self._outlook.forecast(days)

    def summary(self) -> list[SummaryLine]:
        """Return what the extensions say about the store, as in `penstock stat`: for example what waits, and how long.

        A line whose facts cannot be read says why; this does not raise for it. Works for a store opened read-only, too.
        """
        self._check_open()
        lines: list[SummaryLine] = []
        for each in self._extensions:
            try:
                lines.extend(each.summary())
            except (PenstockError, OSError) as error:
                lines.append(SummaryLine(each.name, each.name, f"not known: {error}", None))
        return lines


def _listed_copies(copies: object) -> list[tuple[Message, bytes]]:
    """Return the messages and texts of `put_copies` as a list; refuses anything else."""
    expected = "a list of pairs: a penstock.Message and its properties text in bytes"
    if isinstance(copies, str | bytes | bytearray) or not isinstance(copies, Iterable):
        raise ArgumentTypeError("put_copies", "copies", copies, expected)
    given = []
    for number, pair in enumerate(copies):
        match pair:
            case (Message() as message, bytes() as text):
                given.append((message, text))
            case _:
                raise ArgumentTypeError("put_copies", f"copies[{number}]", pair, expected)
    return given
