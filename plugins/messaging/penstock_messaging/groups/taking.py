"""The groups of one open store: positions, and taking queues. Shared by its consumers, the intake and the commands."""

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.contracts import Context, OpenStore
from penstock.errors import CorruptionError, LostQueueError, StorageError
from penstock.escape import get_logger
from penstock_messaging.groups.entries import EPOCH_MAX, NUMBER_MAX
from penstock_messaging.groups.fold import Fold, Position, Range
from penstock_messaging.groups.journal import Head, Journal
from penstock_messaging.groups.marks import Mark, usable_marks
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.paths import GroupPaths, make_group_folder
from penstock_messaging.groups.position import (
    MOVED,
    VOIDED_BITS,
    GroupProgress,
    level_of,
    read_resolved,
)
from penstock_messaging.groups.queue_lock import holder_of, take_lock
from penstock_messaging.groups.starts import read_start
from penstock_messaging.groups.store_id import ensure_store_id, read_store_id

logger = get_logger(__name__)

# Room for the events of an owner.
_NUMBER_LIMIT = NUMBER_MAX // 2


class Neighbour(Protocol):
    """A member in this process: it is woken when another one joins or leaves the same group."""

    group: str
    wake: Callable[[], None]


DecidedRanges = Callable[[str, str, int, GroupProgress], Sequence[Range] | None]


class Groups:
    """The groups of one store. Safe from any thread.

    Attributes:
        context: of the extension.
        store: the open store.
        generation: returns how often a topic was deleted.
        decided: returns the ranges of a queue that a transaction has acknowledged and its journal lacks; None if that
            is not known now. By default, nothing.
        joining: held by a member of this process that joins a group.
        on_refused: called after a consumer of this process has refused a message; by default, wakes the writer.
    """

    def __init__(
        self,
        context: Context,
        store: OpenStore,
        *,
        generation: Callable[[str], int] = lambda _topic: 0,
    ) -> None:
        self.context = context
        self.store = store
        self.generation = generation
        # Wakes the writer, which is most often another process.
        self._wake = store.work_wakes().wake
        self.on_refused: Callable[[], None] = self._wake
        self.decided: DecidedRanges = lambda _group, _topic, _queue, _resolved: ()
        self._store_id = 0
        self._lock, self.joining = threading.Lock(), threading.Lock()
        # Those whose names this process has made durable.
        self._folders: set[Path] = set()
        self._members: weakref.WeakSet[Neighbour] = weakref.WeakSet()
        if not context.read_only:
            self._store_id = ensure_store_id(context.files, context.root)

    @property
    def store_id(self) -> int:
        """The store's id; raises `StorageError` if no process has made one."""
        if not self._store_id:
            self._store_id = read_store_id(self.context.files, self.context.root)
        return self._store_id

    def paths(self, group: str) -> GroupPaths:
        """Return the files of a group."""
        return GroupPaths(self.context.root, group)

    def check_local(self) -> None:
        """Raise `StorageError` if the store is on a file system whose locks and syncs are not those of this machine."""
        kind = self.context.files.remote_kind(self.context.root)
        if kind is not None:
            raise StorageError(
                f"{self.context.root} is on a file system of type {kind}; consumers need a local one, such as ext4, "
                "XFS, Btrfs or tmpfs, since they rely on its locks. Nothing was changed. Copy the store to a local disk"
            )

    # --- positions

    def resolved(self, group: str, topic: str, queue: int, end: int | None = None) -> GroupProgress:  # fmt: skip
        """Return what is known about a group's position in a queue; see `resolve_position` for `end`."""
        return read_resolved(
            self.context.files, self.paths(group), topic, queue,
            committed=lambda: self.store.committed_offset(group, topic, queue),
            store_id=self.store_id, topic_generation=self.generation(topic), end=end,
        )  # fmt: skip

    def position(self, group: str, topic: str, queue: int) -> Position | None:
        """Return how far a group has consumed a queue, whether or not a writer runs; None if it never has."""
        resolved = self.resolved(group, topic, queue)
        known = resolved.position()
        if known is None:
            starts = read_start(self.context.files, self.paths(group), topic, self.generation(topic))  # fmt: skip
            if starts is not None:
                known = Position(starts.get(queue, self.store.min_offset(topic, queue)))
        return known

    def holder(self, group: str, topic: str, queue: int) -> str | None:
        """Return a phrase that names who has a queue; None if nobody has."""
        return holder_of(self.context.files, self.paths(group).queue_lock(topic, queue))

    # --- taking

    def claim(
        self, group: str, topic: str, queue: int, *, member: str, begin: Callable[[], int], end: int | None = None,
        on_handed_back: Callable[[OwnedQueue], None] = lambda _queue: None,
    ) -> OwnedQueue | None:  # fmt: skip
        """Take the right to a queue; return None if another consumer has it, or if a transaction's decision is unknown.

        Args:
            group: the group.
            topic: the topic.
            queue: the queue's number.
            member: the name of the new owner, for messages.
            end: the end of the queue, if this process knows it for sure: nothing beyond it is taken over.
            begin: returns the offset of the first message for a group that has never consumed the queue.
            on_handed_back: called when the queue was handed back.
        """
        files, paths = self.context.files, self.paths(group)
        self._make_folder(paths.topic(topic))
        lock = take_lock(files, paths.queue_lock(topic, queue), member)
        if lock is None:
            return None
        try:
            resolved = self._usable(group, topic, queue, end)
            decided = self.decided(group, topic, queue, resolved)
            if decided is None:
                lock.release()
                return None
            head = Head(
                self.store_id, resolved.generation, resolved.epoch + 1, resolved.committed, resolved.moved
            )  # fmt: skip
            state = resolved.fold or Fold(head.store, head.generation, head.epoch, head.seen)
            state.acked += decided
            state.raise_base(begin() if resolved.base is None else resolved.base)
            if end is not None:
                state.clip(end)
            state.end_deliveries()
            state.number = resolved.number
            position = state.position()
            journal = Journal(
                files, paths.journal(topic, queue), (topic, queue), head, state,
                lambda: taken_in(self.mark(group, topic, queue), head.generation, topic, queue),
            )  # fmt: skip
        except BaseException:
            lock.release()
            raise
        return OwnedQueue(
            topic, queue, lock, journal, position, on_handed_back, self.on_refused, self._wake,
            lambda: self.generation(topic) == head.generation >> VOIDED_BITS,
        )  # fmt: skip

    def _usable(self, group: str, topic: str, queue: int, end: int | None) -> GroupProgress:
        """Return what is known of a queue, and log what is dropped; raises `CorruptionError` for impossible numbers."""
        resolved = self.resolved(group, topic, queue, end)
        _check_counts(resolved, self.paths(group).journal(topic, queue))
        if resolved.note:
            logger.log(
                level_of(resolved.note),
                "group %s, queue %s/%d: what its journal had recorded since the last committed offset is dropped: %s",
                group, topic, queue, resolved.note,
            )  # fmt: skip
        return resolved

    def _make_folder(self, folder: Path) -> None:
        """Create a folder durably; once that is done, a later call only looks whether it is still there."""
        files = self.context.files
        if folder not in self._folders or not files.is_folder(folder):
            make_group_folder(files, self.context.root, folder)
            self._folders.add(folder)

    def mark(self, group: str, topic: str, queue: int) -> Mark | None:
        """Return what the writer has taken in of a queue's journals; None if nothing."""
        return usable_marks(self.context.files, self.paths(group)).get((topic, queue))

    # --- the members in this process

    def enter(self, member: Neighbour) -> None:
        """Add a member of this process, and let the others know at once."""
        with self._lock:
            self._members.add(member)
        self._wake_others(member)
        self._wake()

    def exit(self, member: Neighbour) -> None:
        """Remove a member of this process, and let the others know at once."""
        with self._lock:
            self._members.discard(member)
        self._wake_others(member)

    def _wake_others(self, member: Neighbour) -> None:
        with self._lock:
            others = list(self._members)
        for each in others:
            if each is not member and each.group == member.group:
                each.wake()


def _check_counts(resolved: GroupProgress, path: Path) -> None:
    """Raise `CorruptionError` for numbers that no owner can reach: a file with greater ones would not be read."""
    if max(resolved.committed or 0, resolved.base or 0) > NUMBER_MAX:
        raise CorruptionError(
            path, 0, "a committed offset that a queue can have", str(resolved.committed),
            "correct it in config/consumerOffset.json, or open the store once for writing: that sets it back to the "
            "queue's end",
        )  # fmt: skip
    if resolved.epoch >= EPOCH_MAX or resolved.number >= _NUMBER_LIMIT:
        raise CorruptionError(
            path, 0, "an epoch that was counted up from 1", str(resolved.epoch),
            "delete the group, or remove the file: it then goes on from its committed offset",
        )  # fmt: skip


def taken_in(mark: Mark | None, generation: int, topic: str, queue: int) -> int:
    """Return the last event that the writer has taken in; raises `LostQueueError` if that journal is void."""
    if mark is None or mark.generation >> VOIDED_BITS < generation >> VOIDED_BITS:
        return 0
    if mark.generation != generation:
        raise LostQueueError(topic, queue, MOVED)
    return mark.taken
