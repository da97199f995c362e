"""How far the groups of a store are, from the committed offsets and from the journals; for the command line."""

from typing import NamedTuple

from penstock import Store
from penstock.errors import StorageError
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.paths import GroupPaths, check_group_name, groups_of
from penstock_messaging.groups.taking import Groups

Key = tuple[str, str, int]


class Overview(NamedTuple):
    """The groups of a store.

    Attributes:
        rows: group, topic, queue, offset and lag of each queue of each group, sorted.
        waiting: how many nacked messages wait to be retried, or are due and not yet acknowledged, by group.
        unreadable: a sentence for each queue whose journal cannot be read.
    """

    rows: list[tuple[str, str, int, int, int]]
    waiting: dict[str, int]
    unreadable: list[str]


def overview(store: Store, only: str | None = None) -> Overview:
    """Return how far each group is, or one of them."""
    positions, unreadable = _positions(store)
    offsets = _committed(store) | {key: position.base for key, position in positions.items()}
    waiting: dict[str, int] = {}
    for (group, _, _), position in positions.items():
        if position.nacked and only in (None, group):
            waiting[group] = waiting.get(group, 0) + len(position.nacked)
    rows = [
        (group, topic, queue, offset, store.lowlevel.max_offset(topic, queue) - offset)
        for (group, topic, queue), offset in sorted(offsets.items())
        if only in (None, group)
    ]
    for group, topic, _, _, lag in rows:
        if topic.startswith("%RETRY%") and lag > 0:
            waiting[group] = waiting.get(group, 0) + lag
    return Overview(rows, waiting, unreadable)


def known_groups(store: Store) -> list[str]:
    """Return the names of all groups, sorted: those with committed offsets, and those that consumers have begun."""
    files = _messaging(store).groups.context.files
    return sorted({*(group for group, _, _ in _committed(store)), *groups_of(files, store.path)})


def topics_of(store: Store, group: str) -> tuple[str, ...]:
    """Return the topics that a group has consumed, sorted."""
    positions, _ = _positions(store)
    return tuple(sorted({key[1] for key in (*_committed(store), *positions) if key[0] == group}))


def groups_of_store(store: Store, group: str) -> Groups:
    """Return the groups of a store; raises `ArgumentError` if `group` is not the name of one."""
    check_group_name("groups", group)
    return _messaging(store).groups


def _messaging(store: Store) -> MessagingExtension:
    extension = store.lowlevel.extension("messaging")
    assert isinstance(extension, MessagingExtension)
    return extension


def _committed(store: Store) -> dict[Key, int]:
    return {each[:3]: each.offset for each in store.groups(system=True)}


def _positions(store: Store) -> tuple[dict[Key, Position], list[str]]:
    """Return the positions of groups that have journals, and what is wrong with others."""
    known = _messaging(store).groups
    files = known.context.files
    found: dict[Key, Position] = {}
    unreadable = []
    for group in groups_of(files, store.path):
        for topic, queue in GroupPaths(store.path, group).journals(files):
            try:
                position = known.position(group, topic, queue)
            except StorageError as error:
                unreadable.append(f"group {group}, queue {topic}/{queue}: {error}")
                continue
            if position is not None:
                found[group, topic, queue] = position
    return found, unreadable
