"""The open half messages of the writing process: prepares, commits, rolls back, and saves the queues' progress.

Invariants:
    * The copy of a commit and its removal are one batch. If a crash cuts it between the two, the next opening finds the
      copy and writes the removal: a message is committed once.
    * Progress is saved only after the log was flushed, so it never counts a commit that a crash can take away; and only
      if every half message is known here.
    * A half message is finished once. While that is being written, a second attempt is refused.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock import Message, Receipt, StoredMessage
from penstock.contracts import Context, OpenStore
from penstock.errors import (
    ConfigError,
    ForkedStoreError,
    MessageError,
    OffsetError,
    PenstockError,
    PreparedFinishedError,
    StoreClosedError,
    UnknownTopicError,
)
from penstock.escape import get_logger
from penstock_messaging.prepared.half_message import (
    CHECKS,
    DISCARD_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PROGRESS_GROUP,
    UNIQUE,
    Copy,
    checked_again,
    committed,
    discarded,
    half_message,
    is_commit_of,
    removal,
)
from penstock_messaging.prepared.half_queue import (
    OpenHalf,
    half_of,
    messages_from,
    progress,
    read_open,
    removals_done,
)
from penstock_messaging.properties_text import check_later, pairs_of

logger = get_logger(__name__)

COMMITTED, ROLLED_BACK, DISCARDED = "committed", "rolled back", "discarded"
_IN_WORK = "finished or checked by another call, or one that was interrupted,"
_FOUND_MAX = 1000


class OpenHalves:
    """The half messages of one store that are not finished. Safe from any thread.

    Args:
        context: of the extension.
        store: the open store.
        check: raises a `MessageError` if nothing may be put to a topic's queue any more.
        ensure: lists a topic of the broker's in the configuration.
    """

    def __init__(
        self,
        context: Context,
        store: OpenStore,
        *,
        check: Callable[[str, int], None],
        ensure: Callable[[str], object],
    ) -> None:
        self._context = context
        self._store: OpenStore | None = store
        self._check = check
        self._ensure = ensure
        # A signal handler may prepare or commit while its thread does.
        self._guard = threading.RLock()
        self._process = context.files.process_id()
        # By queue offset, which grows: the first one is the oldest copy.
        self._open: dict[int, OpenHalf] = {}
        # The end of the queue if all in it is known here: what was read at the beginning, and what this object has put.
        self._known_end = 0
        self._saved = (0, 0)
        self.counts = {COMMITTED: 0, ROLLED_BACK: 0, DISCARDED: 0}

    @property
    def guard(self) -> threading.RLock:
        """The lock; raises `ForkedStoreError` in a forked child: a thread of the parent may have held it."""
        if self._context.files.process_id() != self._process:
            raise ForkedStoreError(self._context.root, self._process)
        return self._guard

    @property
    def store(self) -> OpenStore:
        """The open store; raises `StoreClosedError` after its end."""
        if self._store is None:
            raise StoreClosedError
        return self._store

    # --- begin and end

    def load(self) -> None:
        """Read what is open, and complete commits that a crash cut."""
        store = self.store
        self._saved = progress(store, HALF_TOPIC), progress(store, OP_TOPIC)
        self._known_end = store.max_offset(HALF_TOPIC, 0)
        for half in read_open(store):
            if self._was_committed(half):
                logger.warning(
                    "prepared message %s was committed, and a crash kept the note of it away: it is written now",
                    half.facts.transaction_id,
                )
                store.put_copies([removal(half.offset)])
            else:
                self._open[half.offset] = half

    def _was_committed(self, half: OpenHalf) -> bool:
        """Return whether the copy of a commit is in the message's queue, without its removal."""
        try:
            message = self._read(half)
            copy, text = committed(message)
        except (MessageError, OffsetError):
            return False
        key = pairs_of(text).get(UNIQUE, b"").decode("utf-8", "replace")
        with suppress(ConfigError, UnknownTopicError):
            found = self.store.find(key, copy.topic, limit=_FOUND_MAX)
            if any(is_commit_of(each, half.log_offset) for each in found):
                return True
            # Keys are single words, and anybody may store any number of messages with this one.
            if key and " " not in key and len(found) < _FOUND_MAX:
                return False
        start = self.store.offset_at(copy.topic, copy.queue, message.store_time_ms / 1000)
        later = messages_from(self.store, copy.topic, start, copy.queue)
        return any(is_commit_of(each, half.log_offset) for each in later)

    def end(self) -> None:
        """Save the progress; nothing can be finished from now on."""
        with self.guard:
            store, self._store = self._store, None
        if store is not None:
            try:
                self._save(store)
            except (PenstockError, OSError) as error:
                logger.warning(
                    "how far prepared messages are done could not be saved (%s); the next opening reads more of them",
                    error,
                )

    def save(self) -> None:
        """Save how far both queues are done, if that has changed."""
        self._save(self.store)

    def _save(self, store: OpenStore) -> None:
        with self.guard:
            end = store.max_offset(HALF_TOPIC, 0)
            if end != self._known_end:
                # A prepare was interrupted, or half messages were imported: the next opening finds them from here.
                return
            half = next(iter(self._open), end)
            if half < end and half <= self._saved[0]:
                return
            done = (
                removals_done(store, self._saved[1], half)
                if half < end
                else store.max_offset(OP_TOPIC, 0)
            )
        if (half, done) == self._saved:
            return
        store.flush()
        moves = {
            (PROGRESS_GROUP, topic, 0): (store.committed_offset(PROGRESS_GROUP, topic, 0), offset)
            for topic, offset in ((HALF_TOPIC, half), (OP_TOPIC, done))
            if store.max_offset(topic, 0)
        }
        store.move_offsets(moves)
        self._saved = half, done

    # --- what is open

    def all(self) -> list[OpenHalf]:
        """Return the open half messages, oldest copy first."""
        with self.guard:
            return list(self._open.values())

    def message(self, half: OpenHalf) -> StoredMessage:
        """Return a half message as it is stored; raises `OffsetError` if retention has deleted it."""
        with self.guard:
            return self._read(half)

    def _read(self, half: OpenHalf) -> StoredMessage:
        return self.store.at(half.log_offset)

    # --- prepare and finish

    def prepare(self, message: Message, group: str, transaction_id: str) -> OpenHalf:
        """Store a half message, which the caller flushes; the message must be valid for a put, with a queue number."""
        copy, text = half_message(message, group, transaction_id)
        store = self.store
        check_later(store.check, copy, text, (HALF_TOPIC, DISCARD_TOPIC, message.topic), CHECKS)
        self._ensure(HALF_TOPIC)
        self._ensure(OP_TOPIC)
        with self.guard:
            return self._put_half(store, copy, text)

    def _put_half(self, store: OpenStore, copy: Message, text: bytes) -> OpenHalf:
        """Append a half message; after an interrupt within, no progress is saved, so the next opening finds it."""
        (receipt,) = store.put_copies([(copy, text)])
        half = half_of(store.at(receipt.log_offset))
        self._open[half.offset] = half
        self._known_end += 1
        return half

    def finish(self, half: OpenHalf, outcome: str, *, wait: bool) -> Receipt | None:
        """Commit, roll back or discard a half message; returns the receipt of the commit's copy."""
        with self.guard:
            copies = self._copies(half, outcome)
            receipts = self._put(half, [*copies, removal(half.offset)])
            self._open.pop(half.offset)
            self.counts[outcome] += 1
            half.outcome = outcome
        if not copies:
            return None
        # The removal comes after the copy.
        known = self.store.awaited(receipts[-1]) if wait else receipts[0]
        return receipts[0]._replace(status=known.status, durability=known.durability)

    def _copies(self, half: OpenHalf, outcome: str) -> list[Copy]:
        """Return what is stored beside the removal; raises `PreparedFinishedError` if the message is finished."""
        store = self.store
        if half.outcome:
            raise PreparedFinishedError(half.facts.transaction_id, half.outcome)
        if outcome == ROLLED_BACK:
            return []
        message = store.at(half.log_offset)
        if outcome == DISCARDED:
            copy = discarded(message)
            self._ensure(copy[0].topic)
        else:
            copy = committed(message)
            self._check(copy[0].topic, copy[0].queue)
        return [copy]

    def check_again(self, half: OpenHalf) -> None:
        """Write a half message again at the end of its queue, with one check more; later, the new copy is committed."""
        with self.guard:
            if half.outcome:
                raise PreparedFinishedError(half.facts.transaction_id, half.outcome)
            checks = half.facts.checks + 1
            again = checked_again(self._read(half), checks)
            receipt = self._put(half, [again, removal(half.offset)])[0]
            self._open[receipt.queue_offset] = half
            self._known_end += 1
            self._open.pop(half.offset)
            half.facts = half.facts._replace(checks=checks)
            half.offset, half.log_offset = receipt.queue_offset, receipt.log_offset
            half.outcome = ""

    def _put(self, half: OpenHalf, copies: list[Copy]) -> Sequence[Receipt]:
        """Append copies; the caller sets the outcome last, so that an interrupt stores nothing twice."""
        half.outcome = _IN_WORK
        try:
            return self.store.put_copies(copies)
        except (PenstockError, OSError):
            half.outcome = ""
            raise

    def stats(self) -> dict[str, Any]:
        """Return figures since the store was opened."""
        return {"open": len(self._open), **self.counts}
