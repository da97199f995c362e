"""The configuration of a topic as programs see it; an extension that provides "topic_configs" keeps it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# Bits of `TopicConfig.perm`.
READ, WRITE = 4, 2
# The sum of all bits that a new configuration may have; 1 is for topics after which a broker creates others.
PERM_MAX = 7


class TopicConfig(NamedTuple):
    """The configuration of a topic, as in `config/topics.json`.

    Attributes:
        topic: its name.
        read_queues: how many queues consumers read: 0 up to this number.
        write_queues: how many queues new messages are distributed to; less than `read_queues` while queues are drained.
        perm: the sum of 4 (may be read), 2 (may be put to) and, in a broker's topics, 1 (topics are created after it) and 8.
        order: clients of a broker use the name server's order of queues; without effect in Penstock.
        attributes: attributes of RocketMQ 5, such as `message.type`; empty in files of 4.x.
        is_auto: the topic was created by its first message; imports and Spark sinks add the queues that they put to.
    """

    topic: str
    read_queues: int
    write_queues: int
    perm: int = READ | WRITE
    order: bool = False
    attributes: Mapping[str, str] = MappingProxyType({})
    is_auto: bool = False

    @property
    def queues(self) -> int:
        """The number of queues."""
        return max(self.read_queues, self.write_queues)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read the topic."""
        return bool(self.perm & READ)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be put to the topic."""
        return bool(self.perm & WRITE)
