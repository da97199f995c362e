"""Everything of this folder for one store, as the extension uses it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from penstock import Message
from penstock.contracts import Context, OpenStore, TopicConfig
from penstock.errors import MessageError
from penstock.escape import shown
from penstock.format.hashes import java_hash
from penstock.format.names import check_topic
from penstock_messaging.configuration.checks import check_put
from penstock_messaging.configuration.groups import GroupConfigs
from penstock_messaging.configuration.saving import Saving
from penstock_messaging.configuration.topics import TopicConfigs

if TYPE_CHECKING:
    from penstock_messaging.configuration.topics import TopicRemover


class Configuration:
    """The topics and groups of one store. Safe from any thread.

    Attributes:
        topics: the configurations of topics.
        groups: the configurations of consumer groups.
    """

    def __init__(self, context: Context, store: OpenStore, *, default_queues: int,
        auto_create: bool) -> None:  # fmt: skip
        """Read nothing yet; `store` is open."""
        self._context, self._store = context, store
        self._saving = Saving(context, self._save)
        self.topics = TopicConfigs(
            context, default_queues=default_queues, auto_create=auto_create,
            on_change=self._saving.request, on_recheck=store.recheck_puts,
        )  # fmt: skip
        self.groups = GroupConfigs(context, self._saving.request)

    def begin(self) -> None:
        """Read the topics of a store that is open for writing, and add those that only the queue index has."""
        self.topics.load()
        self.topics.adopt(self._store, self._context.read_history)

    def _save(self) -> None:
        self.topics.save()
        self.groups.save()

    def end(self) -> None:
        """Save what has changed, and stop the thread that saves; does not raise if the disk fails."""
        self._saving.end()

    def check_put(self, topic: str, queue: int, *, grows: bool = False) -> None:
        """Raise a `MessageError` if messages may not be put to a queue; see `checks`."""
        check_put(self.topics, topic, queue, grows=grows)

    def queues_of(self, topic: str) -> int:
        """Return how many queues new messages of a topic are distributed to; at least one."""
        config = self.topics.get(topic)
        return max(1, config.write_queues) if config else self.topics.queues_of_new(topic)

    def routed(self, message: Message) -> Message:
        """Return a message with a queue number and without a partition key; raises `MessageError` to refuse it.

        A key goes to the queue to which RocketMQ's producer sends it (`SelectMessageQueueByHash`): Java's hash of the
        key, without its sign, modulo the number of queues for new messages. It changes when that number does.
        """
        key = message.partition_key
        if key is None:
            return message
        if message.queue is not None:
            raise MessageError(f"a message with a partition_key and queue {shown(message.queue)} is refused: the key "
                "picks the queue; leave one of them out. Nothing was stored")  # fmt: skip
        if not isinstance(key, str):
            raise MessageError(
                f"partition_key {shown(key)} is refused: it must be a string; nothing was stored")  # fmt: skip
        number = abs(java_hash(key)) % self.queues_of(check_topic(message.topic))
        return message.__replace__(queue=number, partition_key=None)

    def create_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Declare a topic; see `Store.create_topic`."""
        return self.topics.create(topic, **given)

    def alter_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Change a topic; see `Store.alter_topic`."""
        return self.topics.alter(topic, **given)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; see `Store.delete_topic`."""
        self.topics.delete(topic, cast("TopicRemover", self._store))

    def topic_configs(self) -> Mapping[str, TopicConfig]:
        """Return the configuration of every topic; see `Store.topic_configs`."""
        return self.topics.all()

    def stats(self) -> dict[str, Any]:
        """Return the number of topics and groups with a configuration, and what is wrong with the files."""
        return {
            "topics": len(self.topics.all()),
            "groups": len(self.groups.all()),
            "config_remarks": [*self.topics.remarks(), *self.groups.remarks()],
            "config_error": self._saving.error,
        }
