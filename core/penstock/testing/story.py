"""The operations on a store before a crash, and the checks after it.

A story is a sequence of steps generated from a seed: puts, batches, flushes, rounds of background work, retention,
commits of offsets, clean closes. It maintains a minimal model of the store: the bodies in the order in which they
were sent, and how many of them must not be missing.
"""

from collections.abc import Iterator
from random import Random

import attrs

from penstock.contracts.base import Geometry
from penstock.errors import ReadOnlyError
from penstock.message import Durability, Message, StoredMessage
from penstock.store.store import Store
from penstock.testing.kit import InlineWorkers, ManualClock

TOPIC = "story"
GROUP = "group"
QUEUES = 2
HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
# Everything rolls within a story: segments, queue files, index files.
TINY = Geometry(segment_bytes=16 * 1024, queue_entries=20, index_slots=20, index_entries=40)


@attrs.frozen
class Promised:
    """The guarantees that the store has given at one moment.

    Attributes:
        sent: bodies in the order in which they were put; it may have grown since.
        count: how many had been put, including one in progress.
        kept: how many must survive a crash of the process.
        durable: how many must survive a crash of the machine.
        discarded: how many of the oldest may be deleted.
        offset: the consumer offset that was committed last; None for none.
        flushed: the log offset below which the store considers the log durable; the progress file must record it.
    """

    sent: list[bytes]
    count: int
    kept: int
    durable: int
    discarded: int
    offset: int | None
    flushed: int = 0


class Story:
    """Runs steps on a store and maintains the model; with `verifies`, it verifies the store before each close."""

    def __init__(self, seed: int, clock: ManualClock, *, verifies: bool = False) -> None:
        self._verifies = verifies
        self._chance = Random(seed)
        self._clock = clock
        self.sent: list[bytes] = []
        self._ends: list[int] = []
        self._acknowledged = 0
        self._discarded = 0
        self._offset: int | None = None
        self._store: Store | None = None
        self._workers = InlineWorkers()

    def begin(self, store: Store, workers: InlineWorkers) -> None:
        """Use this store from now on."""
        self._store, self._workers = store, workers

    @property
    def is_open(self) -> bool:
        """Whether the story has an open store."""
        return self._store is not None

    @property
    def store(self) -> Store:
        """The open store."""
        assert self._store is not None
        return self._store

    def promised(self) -> Promised:
        """Return the guarantees that must hold after a crash at this moment."""
        kept, durable, flushed = 0, self._acknowledged, 0
        engine = self._store._engine if self._store is not None else None
        if engine is not None:
            log = engine.log.log
            kept = self._count_below(log.committed_offset)
            # A retention policy deletes, too. It stays deleted while the store is closed.
            self._discarded = max(self._discarded, self._count_below(log.min_offset))
            # Everything that the store itself considers durable must survive.
            flushed = engine.flusher.flushed_offset
            durable = max(durable, self._count_below(flushed))
        return Promised(
            self.sent,
            len(self.sent),
            max(kept, durable),
            durable,
            self._discarded,
            self._offset,
            flushed,
        )

    def _count_below(self, offset: int) -> int:
        count = len(self._ends)
        while count and self._ends[count - 1] > offset:
            count -= 1
        return count

    # --- steps

    def steps(self, count: int) -> Iterator[str]:
        """Run `count` steps and yield after each; for "reopen" the caller must call `close` and `begin`."""
        for number in range(count):
            # Rarely, the clock jumps an hour back or ten years ahead.
            self._clock.now_ms += self._chance.choices(
                (0, 1, 7, 300, -HOUR, 10 * YEAR), (9, 9, 9, 9, 1, 1)
            )[0]
            name = self._chance.choices(
                ("put", "batch", "flush", "work", "submit", "commit", "discard", "reopen"),
                (30, 14, 8, 24, 6, 6, 12, 3),
            )[0]
            # The end of a story is a clean close.
            if number == count - 1:
                name = "reopen"
            if name != "reopen":
                getattr(self, f"_{name}")()
            yield name

    def close(self) -> None:
        """Verify the store if requested, and close it cleanly."""
        if self._verifies:
            self._workers.run_all()
            found = [finding.text for finding in self.store.verify()]
            assert not found, f"before a clean close, verify: {found[0]}"
        self.store.close()
        self._acknowledged = len(self.sent)
        self._store = None

    def _body(self) -> bytes:
        size = self._chance.choice((0, 40, 200, 611, 1500, 4000))
        return b"%d:" % len(self.sent) + bytes([len(self.sent) % 256]) * self._chance.randint(
            0, size
        )

    def _put(self) -> None:
        """Put one to five single messages."""
        for _ in range(self._chance.randint(1, 5)):
            number, body = len(self.sent), self._body()
            self.sent.append(body)
            try:
                receipt = self.store.put(TOPIC, body, queue=number % QUEUES, keys=[f"k{number}"])
            except ReadOnlyError:
                self.sent.pop()
                return
            self._ends.append(receipt.log_offset + receipt.size)
            if receipt.durability is Durability.ON_DISK:
                self._acknowledged = len(self.sent)

    def _batch(self) -> None:
        made = []
        for _ in range(self._chance.randint(2, 12)):
            number, body = len(self.sent), self._body()
            self.sent.append(body)
            made.append(Message(TOPIC, body, queue=number % QUEUES, keys=[f"k{number}"]))
        receipts = self.store.put_many(made)
        self._ends += [each.log_offset + each.size for each in receipts]
        if receipts[-1].durability is Durability.ON_DISK:
            self._acknowledged = len(self.sent)

    def _submit(self) -> None:
        """Submit one message, and wait for it if possible."""
        number, body = len(self.sent), self._body()
        self.sent.append(body)
        future = self.store.submit(TOPIC, body, queue=number % QUEUES, keys=[f"k{number}"])
        if not future.done():
            self._workers.run_all()
        if future.done():
            receipt = future.result()
            self._ends.append(receipt.log_offset + receipt.size)
            self._acknowledged = len(self.sent)
        else:
            self._ends.append(self.store.stats()["log_end_offset"])

    def _flush(self) -> None:
        self.store.flush()
        self._acknowledged = len(self.sent)

    def _work(self) -> None:
        self._clock.now_ms += 500
        self._workers.run_all()

    def _commit(self) -> None:
        offset = self.store.max_offset(TOPIC, 0)
        if offset:
            self.store.commit_offset(GROUP, TOPIC, 0, offset=offset)
            self._offset = offset

    def _discard(self) -> None:
        stats = self.store.stats()
        limit = stats["log_end_offset"] - self._chance.randint(1, 3) * TINY.segment_bytes
        # Set before the call, which may be killed halfway.
        self._discarded = max(self._discarded, self._count_below(limit))
        self.store.discard_before(log_offset=limit)


# --- afterwards


def bodies_of(store: Store) -> list[bytes]:
    """Return all messages, read through their queues."""
    return [message.body for message in messages_of(store)]


def messages_of(store: Store, queue: int | None = None) -> list[StoredMessage]:
    """Return the messages of the topic, or of one queue of it; none if the crash was before the first."""
    queues = store.topics(system=True).get(TOPIC, [])
    return [*store.scan(TOPIC, queue=queue)] if queues and queue in (None, *queues) else []


def wrong_with(found: list[bytes], promised: Promised, *, least: int) -> str:
    """Compare the messages of a store with those sent; returns the problem, "" if there is none."""
    sent = promised.sent[: promised.count]
    first = int(found[0].partition(b":")[0]) if found else 0
    if found != sent[first : first + len(found)]:
        return "messages are missing, duplicated, changed or out of order"
    if found and first > promised.discarded:
        return f"the first {first} messages are gone, although only {promised.discarded} may be"
    if not found and least > promised.discarded:
        return f"{least} messages were acknowledged, the store is empty"
    if found and first + len(found) < least:
        return f"{least} messages were acknowledged, the store ends at {first + len(found)}"
    return ""


def wrong_queue(store: Store, promised: Promised, queue: int, *, is_whole: bool) -> str:
    """Compare the messages of one queue with those sent; returns the problem, "" if there is none.

    Unless `is_whole`, messages may be missing.
    """
    found = [message.body for message in messages_of(store, queue)]
    numbers = [int(body.partition(b":")[0]) for body in found]
    if is_whole and numbers:
        numbers = list(range(numbers[0], numbers[0] + len(found) * QUEUES, QUEUES))
    if sorted(set(numbers)) != numbers or found != [promised.sent[n] for n in numbers]:
        return (
            f"a reader finds messages of queue {queue} missing, duplicated, changed or out of order"
        )
    return ""


def wrong_within(
    store: Store, found: list[bytes], promised: Promised, checkpoint_ms: int = 0
) -> str:
    """Compare a store's parts with each other; returns the problem, "" if there is none.

    `checkpoint_ms` is the checkpoint's time before the store was opened: RocketMQ does not scan older records.
    """
    for finding in store.verify():
        return f"verify: {finding.path.name} at {finding.position}: {finding.text}"
    times = [message.store_time_ms for message in messages_of(store)]
    if times != sorted(times):
        return "store times decrease"
    if times and checkpoint_ms > times[-1]:
        return f"the checkpoint says {checkpoint_ms}, the newest message is of {times[-1]}"
    for body in found[:: max(len(found) // 3, 1)]:
        number = int(body.partition(b":")[0])
        if [message.body for message in store.find(f"k{number}", TOPIC)] != [body]:
            return f"message {number} is not found by its key"
    wrong = _wrong_queues(store, found)
    return wrong or _wrong_offset(store, promised)


def _wrong_offset(store: Store, promised: Promised) -> str:
    """Check that a committed offset is present, or is the queue's end if its tail was lost; return the problem."""
    offset, end = store.committed_offset(GROUP, TOPIC, 0), store.max_offset(TOPIC, 0)
    if promised.offset is not None and (offset is None or offset < min(promised.offset, end)):
        return f"the consumer offset {promised.offset} was committed, but now it is {offset}"
    is_known = 0 in store.topics(system=True).get(TOPIC, [])
    if offset is not None and offset > end and is_known and not store.read_only:
        return f"the consumer offset is {offset}, greater than the end of its queue, {end}"
    return ""


def _wrong_queues(store: Store, found: list[bytes]) -> str:
    """Compare the bounds and first messages of the queues with the messages; returns the problem."""
    for queue in range(QUEUES):
        wanted = [body for body in found if int(body.partition(b":")[0]) % QUEUES == queue]
        first, stop = store.min_offset(TOPIC, queue), store.max_offset(TOPIC, queue)
        if stop - first != len(wanted):
            return f"queue {queue} has offsets {first} to {stop} for {len(wanted)} messages"
        if wanted and int(wanted[0].partition(b":")[0]) != first * QUEUES + queue:
            return f"queue {queue} begins at offset {first} with another message"
        got = store.read(TOPIC, queue, first, 1).messages if wanted else []
        if wanted and [message.body for message in got] != wanted[:1]:
            return f"queue {queue} at offset {first} has another message"
    return ""
