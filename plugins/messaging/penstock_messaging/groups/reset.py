"""Moving a group from outside: its position in queues that no consumer has, and its deletion."""

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
        to: "earliest", "latest", or Unix milliseconds: the first message stored at or after that time; None for `shift`.
        shift: how many messages forward; backward if negative.
    """
    store, moves = groups.store, []
    known = store.topics()
    for topic in topics:
        for queue in known.get(topic, ()):
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            position = groups.position(group, topic, queue)
            before = None if position is None else position.base
            if isinstance(to, int):
                after = store.offset_at(topic, queue, time_ms=to)
            elif to is None:
                after = (low if before is None else before) + shift
            else:
                after = low if to == "earliest" else high
            moves.append(Move(topic, queue, before, min(max(after, low), high)))
    return moves


def reset(groups: Groups, group: str, moves: Iterable[Move]) -> None:
    """Move a group durably, in queues that no consumer has; messages that wait to be retried are retried nevertheless.

    Raises `QueueHeldError` if a consumer has one of the queues; then none of them was changed, except for those that another
    program takes and returns at the same moment.
    """
    listed = list(moves)
    paths, files = groups.paths(group), groups.context.files
    for move in listed:
        holder = holder_of(files, paths.queue_lock(move.topic, move.queue))
        if holder is not None:
            raise QueueHeldError(group, move.topic, move.queue, holder)
    for move in listed:
        topic, queue, after = move.topic, move.queue, move.after
        owned = groups.take(group, topic, queue, member=_BY, begin=partial(int, after))
        if owned is None:
            raise QueueHeldError(group, topic, queue, groups.holder(group, topic, queue) or "which has just taken it")  # fmt: skip
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

    Raises `QueueHeldError` if a consumer lives. Then nothing was deleted, unless the consumer joined at this very moment: then the
    group goes on from its committed offsets.
    """
    paths, files = groups.paths(group), groups.context.files
    if not files.is_folder(paths.folder):
        return
    held: list[QueueLock] = []
    try:
        for topic, queue in paths.journals(files):
            lock = take_lock(files, paths.queue_lock(topic, queue), _BY)
            if lock is None:
                raise QueueHeldError(group, topic, queue, groups.holder(group, topic, queue) or "a process")  # fmt: skip
            held.append(lock)
        # After the locks: a member that comes later takes none of these queues.
        for member in living_members(files, paths):
            raise QueueHeldError(group, "*", 0, f"process {member.pid}, member {member.id}")
        _remove_folder(files, paths.folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise QueueHeldError(group, "*", 0, "a consumer that has just joined") from error
    finally:
        for lock in held:
            lock.release()


def _remove_folder(files: Files, folder: Path) -> None:
    for item in files.entries(folder):
        if item.is_folder:
            _remove_folder(files, item.path)
        else:
            files.remove(item.path)
    files.remove_folder(folder)
    files.sync_folder(folder.parent)
