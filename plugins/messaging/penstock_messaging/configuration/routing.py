"""Picks the queue of a message that has none: the next in turn, or by the hash of its partition key.

A key goes to the queue to which RocketMQ's producer sends it (`SelectMessageQueueByHash`): Java's hash of the key, without
its sign, modulo the number of queues for new messages. So the queue of a key changes when that number does.
"""

import itertools
from collections.abc import Iterator

from penstock import Message
from penstock.errors import MessageError, shown
from penstock.format.java_hash import java_hash
from penstock.format.names import check_topic
from penstock_messaging.configuration.topics import TopicConfigs


class Routing:
    """Picks queues; one for each store. Safe from any thread."""

    def __init__(self, topics: TopicConfigs) -> None:
        self._topics = topics
        self._turns: dict[str, Iterator[int]] = {}

    def routed(self, message: Message) -> Message:
        """Return a message with a queue number and without a partition key; raises `MessageError` to refuse it."""
        key, queue = message.partition_key, message.queue
        if key is None:
            if queue is not None:
                return message
            return message.__replace__(queue=self._next(message.topic))
        if queue is None:
            raise MessageError("a message with a partition_key and queue=None is refused: the key picks the queue; leave queue out. Nothing was stored")  # fmt: skip
        if queue != 0:
            raise MessageError(f"a message with a partition_key and queue {shown(queue)} is refused: the key picks the queue; leave one of them out. Nothing was stored")  # fmt: skip
        if not isinstance(key, str):
            raise MessageError(f"partition_key {shown(key)} is refused: it must be a string; nothing was stored")  # fmt: skip
        number = abs(java_hash(key)) % self._queues(message.topic)
        return message.__replace__(queue=number, partition_key=None)

    def _queues(self, topic: str) -> int:
        """Return how many queues new messages of a topic are distributed to; at least one."""
        config = self._topics.get(check_topic(topic))
        return max(1, config.write_queues) if config else self._topics.queues_of_new(topic)

    def _next(self, topic: str) -> int:
        count = self._queues(topic)
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns.setdefault(topic, itertools.count())
        return next(turns) % count
