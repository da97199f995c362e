"""Which member of a group gets which queues: RocketMQ's average allocation, computed by each member alone.

All members that subscribe to the same topics share the queues of these topics: the first members get one queue more
where they cannot be shared evenly. Two members that see different members for a moment compute different shares; that
decides only who tries to take a queue, since the right to it is its lock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

Queue = tuple[str, int]


def average_share(member: str, members: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Return a member's share of the sorted queues, as RocketMQ's `AllocateMessageQueueAveragely` computes it."""
    if member not in members:
        return []
    index = members.index(member)
    size, more = divmod(len(queues), len(members))
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def assigned(
    member: str,
    subscribes: Mapping[str, Callable[[str], bool]],
    topics: Mapping[str, Iterable[int]],
) -> set[Queue]:
    """Return the queues of a member.

    Args:
        member: its id.
        subscribes: the id of each living member to what decides whether it subscribes to a topic.
        topics: each topic of the store to its queues.
    """
    shared: dict[tuple[str, ...], list[Queue]] = {}
    for topic, queues in sorted(topics.items()):
        members = tuple(each for each in sorted(subscribes) if subscribes[each](topic))
        if member in members:
            shared.setdefault(members, []).extend((topic, queue) for queue in sorted(queues))
    return {
        queue
        for members, queues in shared.items()
        for queue in average_share(member, members, queues)
    }
