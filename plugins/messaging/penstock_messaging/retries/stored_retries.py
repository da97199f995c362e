"""Stores nacked messages as retries or dead letters, as the group's configuration says, and declares their topics."""

from collections.abc import Iterator

from penstock import Message, StoredMessage
from penstock_messaging.configuration.parts import Configuration
from penstock_messaging.delays.delivery import Delivery
from penstock_messaging.delays.levels import level_of
from penstock_messaging.retries.copies import (
    dead_letter_topic,
    lesser_letters,
    origin,
    retry_copy,
    retry_topic,
)

Copy = tuple[Message, bytes]


class StoredRetries:
    """The retries of the intake, see `groups.intake.Retries`. Safe from any thread."""

    def __init__(self, configuration: Configuration, delivery: Delivery) -> None:
        self._configuration = configuration
        self._delivery = delivery
        self._levels: set[int] = set()

    def copy(
        self, message: StoredMessage, group: str, level: int | None, tries: int | None, count: int = 1,
        reason: bytes = b"",
    ) -> Copy | None:  # fmt: skip
        """Return the retry or the dead letter of a refused message; None if the group has no retries."""
        config, topics = self._configuration.groups.ensure(group), self._configuration.topics
        topics.ensure(retry_topic(group), max(config.retry_queues - 1, 0))
        made = retry_copy(
            message, group, level=level, max_tries=config.retry_max if tries is None else tries,
            count=count, retry_queues=config.retry_queues, reason=reason,
        )  # fmt: skip
        if made is None:
            return None
        copy, _ = made
        assert copy.queue is not None
        topics.ensure(copy.topic, copy.queue)
        if copy.topic != dead_letter_topic(group):
            self._levels.add(level_of(copy.queue))
        return made

    def letters(self, message: StoredMessage, group: str, given: Copy) -> Iterator[Copy]:
        """Yield a message as a dead letter, with less and less of the properties that a copy adds."""
        for copy, text in lesser_letters(message, group, given):
            assert copy.queue is not None
            self._configuration.topics.ensure(copy.topic, copy.queue)
            yield copy, text

    def origin(self, message: StoredMessage) -> tuple[str, int]:
        """Return the id of the message that a copy was first made of, and how often it was retried."""
        found = origin(message)
        return found.message_id, found.retries

    def were_put(self) -> None:
        """Let the delivery of delayed messages know."""
        levels, self._levels = self._levels, set()
        for level in levels:
            self._delivery.expect(level)
