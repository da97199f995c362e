"""The calls of `Store` that extensions provide: consumers, transactions, topics, delays, prepared messages."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from penstock.contracts import (
    Consumer,
    ConsumerOptions,
    DelayedMessage,
    Extension,
    Prepared,
    PutOptions,
    TopicConfig,
    TopicOptions,
    Transaction,
)
from penstock.errors import ArgumentError, ConfigError, OffsetError
from penstock.format import arguments
from penstock.format.names import check_topic, is_hidden
from penstock.message import Message, Receipt
from penstock.read.reader import Reader
from penstock.store.consumer_offsets import check_group
from penstock.store.engine import Engine


class ExtensionCalls(Reader):
    """The part of a store that checks arguments, and lets the providing extension act. Safe from any thread."""

    _extensions: Sequence[Extension]

    def _writer(self) -> Engine:
        """Return the writing half; raises if messages may not be put."""
        raise NotImplementedError

    def _owner(self) -> Engine:
        """Return the writing half, even while a retention policy refuses puts; raises if it cannot be used."""
        raise NotImplementedError

    def _provided(self, method: str) -> Any:
        """Return a method of this class that an extension implements."""
        self._check_open()
        for each in self._extensions:
            if method in each.provides:
                return getattr(each, method)
        raise ConfigError(
            f"{method} is refused: no extension in extensions.use provides it; add one that does: `penstock plugins` "
            "lists them"
        )

    def _declared_queues(self, topic: str) -> int:
        for each in self._extensions:
            if "topic_configs" in each.provides:
                config = self._provided("topic_configs")().get(topic)
                return 0 if config is None else max(config.queues, 1)
        return 0

    def _keep_for(self, made: object) -> None:
        """Keep this object, and so the store open, while an extension's object is in use."""
        with contextlib.suppress(TypeError):
            vars(made)["_keeps_open"] = self

    def transaction(self) -> Transaction:
        """Return a transaction, for a `with` block: its messages are stored together when the block ends.

        >>> with store.transaction() as tx:
        ...     tx.put("orders", b"two pears")
        ...     tx.put("stock", b"pears -2")

        All of them are stored or none, also if the process is killed or the machine stops. They are not in the log
        before the end of the block, and an exception that leaves it drops them.

        Raises:
            ReadOnlyError: the store is open read-only; only the process that writes it has transactions.
            ConfigError: no extension in `extensions.use` provides transactions.
        """
        made: Transaction = self._provided("transaction")()
        self._keep_for(made)
        return made

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """Return a consumer of a group: its members, in any number of processes, share the messages of these topics.

        A process that does not hold the store for writing opens it with `read_only=True`, and calls this just the same.

        >>> with store.consumer("billing", ["orders"], tag="paid || refunded") as consumer:
        ...     for message in consumer:  # waits for messages
        ...         charge(message.body)  # an exception nacks the message
        ...         message.ack()

        Args:
            group: the group's name: letters, digits, `%`, `|`, `_` and `-`, at most 120.
            topics: one topic or more, which need not exist yet; in a name, `*` stands for any characters.
            options: `tag`, `start`, `ack_wait`, `max_in_flight`, `workers`, `ordered`, `broadcast`, `max_retries`: see
                `contracts.ConsumerOptions` for units and defaults.

        Raises:
            ArgumentError: an argument has a wrong type or value.
            ConfigError: no extension in `extensions.use` provides consumers.
            StorageError: the store is on a network file system; or it is open read-only, and no process has opened it
                for writing with consumers yet. Groups need a local file system and a store id.
            ForkedStoreError: the store was opened before this process was forked.
        """
        made: Consumer = self._provided("consumer")(group, topics, **options)
        self._keep_for(made)
        return made

    def cancel_delayed(self, message_id: str | Receipt) -> bool:
        """Cancel, durably, a message put with `delay` or `deliver_at`; return whether it will not be delivered.

        False says that it is delivered already, or was cancelled before. The next program that has the store open for
        writing, Penstock or a broker of RocketMQ 5, cancels with it all messages of the same topic and UNIQ_KEY that
        are due in the same second, whatever ends this process.

        Args:
            message_id: the message id of its put, or of `delayed`; or the receipt of its put.

        Raises:
            ArgumentError: that is no message id.
            NoRecordError, OffsetError: no message of this store has that id. One that waits for more than two days
                is stored again, with another id, which `delayed` tells.
            ConfigError: no extension in `extensions.use` delivers messages at a time.
        """
        self._owner()
        cancel = self._provided(call := "cancel_delayed")
        expected = "a receipt of a put, or a message id"
        if isinstance(message_id, Receipt):
            message_id = message_id.message_id
        named = arguments.text(call, "message_id", message_id, expected)
        try:
            waiting = self.get(named)
        except ArgumentError as error:
            raise ArgumentError(call, "message_id", named, error.expected) from None
        except OffsetError as error:
            error.add_note("if the message still waits, it has got another id: `delayed` tells it")
            raise
        found: bool = cancel(waiting)
        return found

    def delayed(self) -> list[DelayedMessage]:
        """Return the messages that were put with `delay` or `deliver_at` and wait, by due time.

        Reads the records of all of them. In a store that another process writes, what was delivered in the last second
        may still be among them. Raises `ConfigError` if no extension in `extensions.use` delivers messages at a time.
        """
        found: list[DelayedMessage] = self._provided("delayed")()
        return found

    def create_topic(self, topic: str, **options: Unpack[TopicOptions]) -> TopicConfig:
        """Declare a topic in `config/topics.json`, durably; returns its configuration.

        A topic need not be declared: by default its first message creates it. `alter_topic` gives it more queues.

        Args:
            topic: its name.
            options: `queues`, `write_queues`, `perm`, `attributes`: see `contracts.TopicOptions`.

        Raises:
            ArgumentError, TopicError: an argument is refused, such as a name that RocketMQ reserves; nothing was done.
            TopicExistsError: there is a topic of that name, declared or created by a message: see `alter_topic`.
            CorruptionError: `config/topics.json` cannot be read; it is never replaced then.
        """
        self._owner()
        made: TopicConfig = self._provided("create_topic")(check_topic(topic), **options)
        return made

    def alter_topic(self, topic: str, **options: Unpack[TopicOptions]) -> TopicConfig:
        """Change a topic's configuration, durably; returns the new one. Options left out, or None, stay as they are.

        A topic that was created by a message has a fixed number of queues from then on. To have fewer queues without
        losing sight of messages, lower `write_queues` first, and `queues` once consumers have read the others.

        Args:
            topic: a topic that exists.
            options: as for `create_topic`.

        Raises:
            ArgumentError, TopicError: an argument is refused; nothing was done.
            UnknownTopicError: there is no such topic.
            CorruptionError: `config/topics.json` cannot be read; it is never replaced then.
        """
        self._owner()
        made: TopicConfig = self._provided("alter_topic")(check_topic(topic), **options)
        return made

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, durably: its queues with all messages, its configuration, and all groups' offsets.

        `read` and `scan` do not find its messages any more, and no recovery, repair or reindex brings them back. The
        log keeps their bytes until retention deletes their segments. A later topic of that name begins at offset 0.

        Raises:
            TopicError: the name is reserved by RocketMQ.
            UnknownTopicError: there is no such topic.
            CorruptionError: `config/topics.json` or `config/consumerOffset.json` cannot be read; nothing was deleted.
        """
        self._owner()
        self._provided("delete_topic")(check_topic(topic))

    def delete_group(self, group: str) -> None:
        """Delete a consumer group, if there is one: its offsets, and what it has acknowledged and nacked since.

        Its dead letters and retries stay in their topics. A new group of that name begins anew, also in these retries.

        Raises:
            QueueHeldError: a consumer of the group lives; nothing was deleted.
            ConfigError: no extension in `extensions.use` provides consumers.
        """
        self._owner()
        self._provided("delete_group")(group)

    def topic_configs(self, *, system: bool = False) -> dict[str, TopicConfig]:
        """Return the configuration of every topic that has one, by name: those of `config/topics.json`, sorted.

        With `system` also those of topics that RocketMQ keeps for itself.
        In a store that is open for writing, also those of topics that a message has just created. A topic that exists
        only as queues, which another program wrote without its configuration, is not included: see `topics`.
        """
        system = arguments.flag("topic_configs", "system", system)
        found: dict[str, TopicConfig] = self._provided("topic_configs")()
        return {topic: each for topic, each in found.items() if system or not is_hidden(topic)}

    # --- prepared messages, by extensions

    def prepare(
        self, topic: str, body: bytes, *, group: str, **options: Unpack[PutOptions]
    ) -> Prepared:
        """Store a message that readers see only once it is committed; for a transaction with a database, for example.

        The message is durable when this returns, under any flush policy, unless `wait` is False. Then work, and commit:

        >>> with store.prepare("orders", body, group="shop") as prepared, database:
        ...     database.execute("INSERT INTO orders VALUES (?, ?)", (prepared.transaction_id, total))

        If the process is killed in between, the function `check_back` of the next `penstock.open` decides. `group`
        names the program that decides (RocketMQ's producer group); the others are those of `put`, without a delay.

        Raises:
            ArgumentError, MessageError: an argument is refused, or the message could not be put; nothing was stored.
            ConfigError: no extension in `extensions.use` provides prepared messages.
        """
        encoder = self._writer().log.encoder
        wait = arguments.flag("prepare", "wait", options.pop("wait", True))
        if options.get("queue") is None and options.get("partition_key") is None:
            options["queue"] = encoder.cursor_of(topic, None).queue
        message = Message(topic, body, **options)
        made: Prepared = self._provided("prepare")(message, check_group(group), wait=wait)
        self._keep_for(made)
        return made

    def prepared(self) -> list[Prepared]:
        """Return the messages that are prepared and neither committed nor rolled back, oldest first.

        In a store that is opened read-only, they can only be looked at.
        """
        found: list[Prepared] = self._provided("prepared")()
        for each in found:
            self._keep_for(each)
        return found
