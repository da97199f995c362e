"""The extension `messaging`: puts together what this package adds to a store."""

import threading
from typing import TYPE_CHECKING, Any

import attrs

from penstock import Message
from penstock.contracts import Context, Extension, OpenStore, TopicConfig, limits

if TYPE_CHECKING:
    from penstock_messaging.configuration.parts import Configuration

# Queues of a topic that a message creates: as many as a RocketMQ producer asks for.
_DEFAULT_QUEUES = 4
_QUEUES_MAX = 65_536


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`.

    Attributes:
        auto_create_topics: a message to an unknown topic creates it, and a message to a higher queue of a topic that was
            created so adds queues. If false, such messages are refused.
        default_queues: how many queues a new topic has unless a number is given.
    """

    auto_create_topics: bool = True
    default_queues: int = attrs.field(default=_DEFAULT_QUEUES, validator=limits(1, _QUEUES_MAX))


class MessagingExtension(Extension):
    """Consumers, retries, delays, and the configuration of topics and groups."""

    name = "messaging"
    Options = MessagingOptions
    provides = frozenset({"create_topic", "alter_topic", "delete_topic", "topic_configs"})
    options: MessagingOptions

    def __init__(self, options: MessagingOptions, context: Context) -> None:
        super().__init__(options, context)
        # A signal handler may put while `configuration` is at work.
        self._lock = threading.RLock()
        self._configuration: Configuration | None = None
        self._made: list[Configuration] = []

    def attach(self, store: OpenStore) -> None:
        """Add to the list of topics what it may lack: after a crash, or if there is none."""
        self._store = store
        path = self.context.root / "config" / "topics.json"
        is_listed = store.recovery is None or (store.recovery.state == "clean" and self.context.files.exists(path))  # fmt: skip
        if not is_listed and store.topics():
            _ = self.configuration

    @property
    def configuration(self) -> "Configuration":
        """The topics and groups, which are read at first use."""
        return self._configuration or self._read()

    def _read(self) -> "Configuration":
        # Here, since every process that opens a store imports this module, and many need no more of it.
        from penstock_messaging.configuration.parts import Configuration  # noqa: PLC0415 - as above

        with self._lock:
            if self._configuration is None:
                made = Configuration(
                    self.context, self._store, default_queues=self.options.default_queues,
                    auto_create=self.options.auto_create_topics,
                )  # fmt: skip
                if not self.context.read_only:
                    made.begin()
                self._made.append(made)
                # A signal handler may have been faster.
                self._configuration = self._made[0]
            return self._configuration

    def detach(self) -> None:
        """Save what has changed."""
        if self._configuration is not None:
            self._configuration.end()

    def check_put(self, topic: str, queue: int) -> None:
        """Refuse puts that the topic's configuration, or RocketMQ, does not allow."""
        self.configuration.check_put(topic, queue)

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes] | None:
        """Pick the queue of a message; None if it is to be delayed as well."""
        routed = self.configuration.routed(message)
        return routed if routed.delay_level == 0 else None

    def create_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Implement `Store.create_topic`."""
        return self.configuration.create_topic(topic, **given)

    def alter_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Implement `Store.alter_topic`."""
        return self.configuration.alter_topic(topic, **given)

    def delete_topic(self, topic: str) -> None:
        """Implement `Store.delete_topic`."""
        self.configuration.delete_topic(topic)

    def topic_configs(self) -> dict[str, TopicConfig]:
        """Implement `Store.topic_configs`."""
        return dict(self.configuration.topic_configs())

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return self.configuration.stats()
