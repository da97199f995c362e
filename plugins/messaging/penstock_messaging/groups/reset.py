"""Moving a group from outside: its position in queues that no consumer has, and its deletion."""

import contextlib
import errno
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.errors import QueueHeldError
from penstock.files import Files
from penstock_messaging.groups.members import living_members
from penstock_messaging.groups.queue_lock import QueueLock, holder_of, take_lock
from penstock_messaging.groups.taking import Groups

_BY = "penstock groups"
# How often a folder is emptied again: a member that is refused leaves at once.
_TRIES_MAX = 100


class Move(NamedTuple):
    """A new position of a group in a queue.

    Attributes:
        topic: the topic.
        queue: the queue's number.
        before: where the group was; None if it has never consumed the queue.
        after: where it goes on.
    """

    topic: str
    queue: int
    before: int | None
    after: int


def planned(
    groups: Groups, group: str, topics: Iterable[str], *, to: str | int | None, shift: int = 0
) -> list[Move]:
    """Return where a group would go on in every queue of some topics; changes nothing.

    Args:
        groups: those of the open store.
        group: the group's name.
        topics: the topics; those that the store does not have are passed over.
        to: "earliest", "latest", or Unix milliseconds: the first message stored then or later; None for `shift`.
        shift: how many messages forward; backward if negative.
    """
    store, moves = groups.store, []
    known = store.topics(system=True)
    for topic in topics:
        for queue in known.get(topic, ()):
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            position = groups.position(group, topic, queue)
            before = None if position is None else position.base
            if isinstance(to, int):
                after = store.offset_at(topic, queue, to / 1000)
            elif to is None:
                after = (low if before is None else before) + shift
            else:
                after = low if to == "earliest" else high
            moves.append(Move(topic, queue, before, min(max(after, low), high)))
    return moves


def reset(groups: Groups, group: str, moves: Iterable[Move]) -> None:
    """Move a group durably, in queues that no consumer has; messages that wait to be retried are retried nevertheless.

    Raises `QueueHeldError` if a consumer has one of the queues; then none of them was changed, except for those that
    another program takes and returns at the same moment.
    """
    listed = list(moves)
    paths, files = groups.paths(group), groups.context.files
    for move in listed:
        holder = holder_of(files, paths.queue_lock(move.topic, move.queue))
        if holder is not None:
            raise QueueHeldError(group, move.topic, move.queue, holder)
    for move in listed:
        topic, queue, after = move.topic, move.queue, move.after
        owned = groups.claim(group, topic, queue, member=_BY, begin=partial(int, after))
        if owned is None:
            raise QueueHeldError(group, topic, queue,
                groups.holder(group, topic, queue) or "which has just taken it")  # fmt: skip
        try:
            owned.sync(owned.reset(after))
        finally:
            owned.hand_back()


def delete_group(groups: Groups, group: str) -> None:
    """Delete a group: its journals, then its committed offsets. The store must be open for writing.

    Raises `QueueHeldError` if a consumer lives; then nothing was deleted.
    """
    delete_files(groups, group)
    groups.store.remove_offsets(group)


def delete_files(groups: Groups, group: str) -> None:
    """Delete what Penstock keeps of a group; its committed offsets and its retry topics are not changed.

    Nobody can join the group meanwhile. Raises `QueueHeldError` if a consumer lives; then nothing was deleted.
    """
    paths, files = groups.paths(group), groups.context.files
    if not files.is_folder(paths.folder):
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_locked(files, paths.deleting, group, "*", 0).release)
        stack.callback(files.remove, paths.deleting)
        # Only now: a member that has joined before is there, and one that joins later sees the lock.
        for member in living_members(files, paths):
            raise QueueHeldError(group, "*", 0, f"process {member.pid}, member {member.id}")
        # One at a time: there may be more than a process may have open. Without members, nobody takes one again.
        for topic, queue in paths.journals(files):
            _locked(files, paths.queue_lock(topic, queue), group, topic, queue).release()
        _remove_folder(files, paths.folder)


def _locked(files: Files, path: Path, group: str, topic: str, queue: int) -> QueueLock:
    lock = take_lock(files, path, _BY)
    if lock is None:
        raise QueueHeldError(group, topic, queue, holder_of(files, path) or "a process")
    return lock


def _remove_folder(files: Files, folder: Path) -> None:
    """Remove a folder with everything in it, also what is put there meanwhile by a member that is refused."""
    for left in reversed(range(_TRIES_MAX)):
        for item in files.entries(folder):
            if item.is_folder:
                _remove_folder(files, item.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(item.path)
        try:
            files.remove_folder(folder)
            break
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise
    files.sync_folder(folder.parent)
