"""Stores the messages of a transaction and acknowledges others: both or neither, also after a crash.

In this order:

    1. the decision is written to `penstock/decisions`, and synced
    2. the messages are appended as one batch that names the decision, and synced
    3. the acknowledgements are recorded in the journals of their queues, which are synced later
    4. the decision is removed, together with others, when the journals are on disk, or the queues were taken anew

A crash before the end of 2 leaves a decision whose batch is not in the log: it is dropped. After it, the next opening
for writing finds the batch, and adds the acknowledgements that the journals lack, before any consumer gets them.

Locks: `_lock` protects which decisions are open and which file is written; it is held while a new file is begun, and
never while a queue is taken.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from enum import Enum

import attrs

from penstock import Receipt
from penstock.contracts import Context, MessageBatch, OpenStore, synced
from penstock.errors import (
    BusyError,
    DiskFullError,
    MessageError,
    PenstockError,
    ReadOnlyError,
    StorageError,
    StoreClosedError,
    SystemLimitError,
)
from penstock.escape import get_logger
from penstock_messaging.consuming.transaction_acks import TransactionAcks
from penstock_messaging.groups.fold import Range
from penstock_messaging.groups.position import GroupProgress
from penstock_messaging.groups.taking import Groups
from penstock_messaging.transactions.decided_acks import about, is_passed, lacking
from penstock_messaging.transactions.decision_file import (
    AckDecision,
    DecisionFile,
    FoundDecisions,
    QueueAcks,
    read_decisions,
)

logger = get_logger(__name__)

_ID_BITS = 30
_ID_MASK = (1 << _ID_BITS) - 1
# After these, nothing was appended.
_REFUSED = (
    MessageError,
    BusyError,
    DiskFullError,
    SystemLimitError,
    ReadOnlyError,
    StoreClosedError,
)


# Before it is known what is decided.
_NONE = AckDecision(0, 0, ())


class Outcome(Enum):
    """Whether the batch of a decision is in the log, durably."""

    UNKNOWN = "unknown"
    STORED = "stored"
    DROPPED = "dropped"


@attrs.define(eq=False)
class OpenDecision:
    """A decision that is not over.

    Attributes:
        decision: what was decided.
        pending: the messages that it acknowledges; None if an earlier process decided.
        is_busy: a thread is carrying it out.
        outcome: of its batch.
        waits: what returns when the journals are on disk.
        is_recorded: all acknowledgements were recorded by the owners of the queues; otherwise the next owners add them.
    """

    decision: AckDecision
    pending: TransactionAcks | None = None
    is_busy: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    waits: Sequence[Callable[[], None]] = ()
    is_recorded: bool = False


class Deciding:
    """The decisions of one store that is open for writing. Safe from any thread."""

    def __init__(
        self, context: Context, store: OpenStore, groups: Callable[[], Groups], wake: Callable[[], None] = lambda: None,
        first_id: Callable[[], int] = lambda: secrets.randbits(_ID_BITS) + 1,
    ) -> None:  # fmt: skip
        """`wake` is called when `step` has something to do."""
        self._context = context
        self._store = store
        self._groups = groups
        self._wake = wake
        self._first_id = first_id
        self._lock = threading.RLock()
        self._open: dict[int, OpenDecision] = {}
        self._last_id = 0
        self._file: DecisionFile | None = None
        self._trouble = ""
        # Whether the file says more than is open.
        self._is_stale = False

    def _open_file(self) -> DecisionFile:
        if self._file is None:
            context = self._context
            self._file = DecisionFile(context.files, context.root, self._groups().store_id)
        return self._file

    # --- a transaction ends

    def commit(self, batch: MessageBatch, pending: TransactionAcks) -> Sequence[Receipt]:
        """Store the messages of a batch and acknowledge others; returns the receipts, when all of it is certain.

        Raises:
            LostQueueError: a queue was lost meanwhile; nothing was stored, and nothing acknowledged.
            StorageError: nothing was stored and acknowledged, or, as the text says, the next opening decides.
        """
        if not len(batch):
            self._ack(pending)
            return ()
        made = OpenDecision(_NONE, pending, is_busy=True)
        receipts: Sequence[Receipt] = ()
        is_decided = is_appended = False
        try:
            self._decide(made, batch)
            is_decided = True
            receipts = batch.append(decision=made.decision.id)
            is_appended = True
            self._store.flush()
            made.outcome = Outcome.STORED
            receipts = [synced(each) for each in receipts]
        except BaseException as error:
            if not is_decided or (not is_appended and isinstance(error, _REFUSED)):
                made.outcome = Outcome.DROPPED
            else:
                self._find_outcomes([made])
            if made.outcome is Outcome.UNKNOWN:
                error.add_note(
                    "whether the transaction is stored is known when the store is opened again: then its messages are "
                    "there and those that it acknowledges are consumed, or neither"
                )
            raise
        finally:
            try:
                self._carry_out(made)
            finally:
                made.is_busy = False
                if not made.is_recorded:
                    self._wake()
        return receipts

    def _ack(self, pending: TransactionAcks) -> None:
        """Acknowledge without messages to store, as consumers do."""
        waits, failures = pending.record()
        for wait in waits:
            try:
                wait()
            except (OSError, StorageError) as error:
                failures.append(error)
        if failures:
            pending.give_back()
            raise failures[0]

    def _decide(self, made: OpenDecision, batch: MessageBatch) -> None:
        """Write a decision durably; after this, who takes a queue waits for its outcome."""
        pending = made.pending
        assert pending is not None
        acks = tuple(
            QueueAcks(group, each.topic, each.queue, *each.turn, _as_ranges(each.offsets))
            for group, each in pending.acks()
        )
        # Before anything is written: it is refused in a forked child, and if the store is closed.
        log_end = batch.log_end
        try:
            with self._lock:
                file = self._open_file()
                if not file.is_open or file.is_full:
                    file.replace(self._kept())
                self._last_id = (self._last_id or self._first_id()) + 1
                made.decision = AckDecision(self._last_id, log_end, acks)
                self._open[self._last_id] = made
            file.append(made.decision)
        except OSError as error:
            raise StorageError(
                f"what a transaction acknowledges could not be written to {self._context.root}/penstock/decisions "
                f"({error}); nothing was stored and nothing acknowledged: free space or check the disk, and begin the "
                "transaction again"
            ) from error
        # The next owner of a queue sees the decision from now on. A queue that was lost before is another's.
        pending.acks()

    def _carry_out(self, made: OpenDecision) -> None:
        """Record the acknowledgements of a decision, or give the messages back; neither if its outcome is open.

        If an interrupt cuts it short, `step` calls it again.
        """
        if made.outcome is Outcome.DROPPED:
            self._drop(made)
        elif made.outcome is Outcome.STORED and made.pending is not None:
            waits, failures = made.pending.record()
            made.waits, made.pending, made.is_recorded = waits, None, not failures
            if failures:
                logger.info(
                    "the next owner of a queue gets what a transaction has acknowledged: %s", failures[0]
                )  # fmt: skip

    def _drop(self, made: OpenDecision) -> None:
        """Take back a decision of which nothing was stored."""
        if made.decision.id in self._open:
            try:
                self._open_file().drop(made.decision.id)
            except OSError:
                self._is_stale = True
            with self._lock:
                self._open.pop(made.decision.id, None)
        if made.pending is not None:
            made.pending.give_back()
            made.pending = None

    def _find_outcomes(self, some: Sequence[OpenDecision]) -> None:
        """Look in the log whether the batches of decisions are there, after a crash, a failure or an interrupt."""
        try:
            self._store.flush()
            found = self._store.decided_batches(min(each.decision.log_offset for each in some))
        except (PenstockError, OSError):
            # The store has failed: what is in memory may not be on disk.
            return
        for each in some:
            is_there = each.decision.id & _ID_MASK in found
            each.outcome = Outcome.STORED if is_there else Outcome.DROPPED

    # --- what the next owner of a queue must know

    def ranges(
        self, group: str, topic: str, queue: int, resolved: GroupProgress
    ) -> Sequence[Range] | None:
        """Return what is decided about a queue and its journal lacks; None if that is not known now."""
        found: list[Range] = []
        with self._lock:
            for each in self._open.values():
                if each.outcome is Outcome.DROPPED:
                    continue
                for acks in about(each.decision.acks, group, topic, queue):
                    ranges = lacking(acks, resolved)
                    if ranges and each.outcome is Outcome.UNKNOWN:
                        return None
                    found += ranges
        return found

    @property
    def undecided(self) -> int:
        """The number of transactions whose outcome is unknown until the store is opened again."""
        with self._lock:
            return sum(
                each.outcome is Outcome.UNKNOWN and not each.is_busy for each in self._open.values()
            )

    # --- after a crash

    def recover(self) -> None:
        """Take up what an earlier process has decided: before a consumer of this process can get a message.

        A failure is logged, and tried again by `step`; until then, no queue is taken whose state is not known.
        """
        files, root = self._context.files, self._context.root
        try:
            found = read_decisions(files, root)
        except OSError as error:
            found = FoundDecisions(trouble=f"it cannot be read ({error})")
        is_foreign = found.store not in (0, self._groups().store_id)
        if is_foreign:
            found = FoundDecisions(found.store, (), "it was written for another store")
        if found.trouble:
            self._note_trouble(found.trouble)
        with self._lock:
            for decision in found.decisions:
                self._open[decision.id] = OpenDecision(decision)
                self._last_id = max(self._last_id, decision.id)
            self._is_stale = True
        self.step()

    def _note_trouble(self, trouble: str) -> None:
        try:
            place = str(self._open_file().set_aside())
        except OSError as error:
            place = f"its old place ({error})"
        logger.error(
            "%s/penstock/decisions: %s; what can be read of it is used, and the file is kept as %s. Messages that a "
            "transaction had acknowledged just before the crash may be redelivered although its messages are stored",
            self._context.root, trouble, place,
        )  # fmt: skip

    def step(self) -> bool:
        """Carry out what is left, and remove what is over; return whether any is left. No disk error is raised."""
        with self._lock:
            some = [each for each in self._open.values() if not each.is_busy]
        try:
            # First of all of them: the queue of one may be that of another one as well.
            self._find_open_outcomes(some)
            for each in some:
                self._carry_out(each)
                self._hand_on(each)
            if self._is_stale:
                self._remove_stale()
            self._trouble = ""
        except (PenstockError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning(
                    "what transactions have acknowledged is not settled now: %s; this is tried again", error
                )  # fmt: skip
        with self._lock:
            return self._is_stale or any(not each.is_recorded for each in self._open.values())

    def _find_open_outcomes(self, some: Sequence[OpenDecision]) -> None:
        unknown = []
        for each in some:
            if each.outcome is Outcome.UNKNOWN:
                if each.pending is None and not self._those(each, lacking):
                    # The messages are stored before the acknowledgements are recorded.
                    each.outcome = Outcome.STORED
                else:
                    unknown.append(each)
        if unknown:
            self._find_outcomes(unknown)

    def _hand_on(self, each: OpenDecision) -> None:
        """Let the next owners of its queues take over what a decision says, if its owners have not recorded it."""
        if each.outcome is Outcome.STORED and not each.is_recorded:
            # Also what a journal has: it may not be on disk.
            for acks in self._those(each, _counts):
                self._record(acks)
            each.is_recorded = not self._those(each, _counts)
            self._is_stale |= each.is_recorded

    def _those(
        self, each: OpenDecision, holds: Callable[[QueueAcks, GroupProgress], object]
    ) -> list[QueueAcks]:
        """Return the acknowledgements for which something holds as their queues are now."""
        resolved = self._groups().resolved
        return [
            acks
            for acks in each.decision.acks
            if holds(acks, resolved(acks.group, acks.topic, acks.queue))
        ]

    def _record(self, acks: QueueAcks) -> None:
        """Record acknowledgements of a queue that nobody has, by taking it; its owner has recorded them otherwise."""
        end = self._store.max_offset(acks.topic, acks.queue)
        owned = self._groups().claim(
            acks.group, acks.topic, acks.queue, member="the writer", begin=lambda: 0, end=end
        )
        if owned is not None:
            owned.hand_back()

    # --- the file

    def _kept(self) -> list[AckDecision]:
        """Forget the decisions that are over, and return the others; the caller has the lock."""
        self._open = {
            number: each for number, each in self._open.items() if not self._is_over(each)
        }
        self._is_stale = False
        return [each.decision for each in self._open.values()]

    def _remove_stale(self) -> None:
        with self._lock:
            kept, file = self._kept(), self._open_file()
            try:
                if kept:
                    file.replace(kept)
                else:
                    file.remove()
            except BaseException:
                self._is_stale = True
                raise

    def _is_over(self, each: OpenDecision) -> bool:
        """Return whether a decision is carried out, durably; waits for the journals."""
        if each.is_busy or each.outcome is not Outcome.STORED or not each.is_recorded:
            return False
        waits, each.waits = each.waits, ()
        try:
            for wait in waits:
                wait()
        except (OSError, StorageError):
            # Whether the journal is on disk is not known: the next owner of the queue writes a new one.
            each.is_recorded = not self._those(each, _counts)
        return each.is_recorded

    def end(self) -> None:
        """Remove the file if all is carried out, else leave it to the next opening; called when no consumer is left."""
        self.step()
        with self._lock:
            file = self._file
            if file is None:
                return
            try:
                if self._kept():
                    file.close()
                else:
                    file.remove()
            except (PenstockError, OSError) as error:
                logger.warning(
                    "the decisions of transactions are left for the next opening: %s", error
                )


def _counts(acks: QueueAcks, resolved: GroupProgress) -> bool:
    return not is_passed(acks, resolved)


def _as_ranges(offsets: Sequence[int]) -> tuple[Range, ...]:
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)
