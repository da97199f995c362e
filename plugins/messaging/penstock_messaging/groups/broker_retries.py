"""Retries as brokers store them, for the intake: connects it with the group's configuration and with the delivery of delays."""

from collections.abc import Callable
from typing import Protocol

from penstock import Message, StoredMessage

Copy = tuple[Message, bytes]


class RetryCopy(Protocol):
    """Makes the copy that is put when a group refuses a message; see `retries.copies`."""

    def __call__(
        self, message: StoredMessage, group: str, *, level: int | None, max_tries: int, retry_queues: int,
    ) -> Copy | None:  # fmt: skip
        """Return the copy; None if the group has no queue for retries."""


class BrokerRetries:
    """What `Intake` needs of retries. Safe from any thread."""

    def __init__(
        self, copy: RetryCopy, origin: Callable[[StoredMessage], tuple[str, int]],
        settings: Callable[[str], tuple[int, int]], on_put: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Connect the parts.

        Args:
            copy: makes a copy.
            origin: returns first id and number of tries of a message.
            settings: returns how often a group retries a message, and its number of retry queues; creates both if need be.
            on_put: called after retries were put.
        """
        self._copy = copy
        self._origin = origin
        self._settings = settings
        self._on_put = on_put

    def copy(self, message: StoredMessage, group: str, level: int | None, tries: int | None) -> Copy | None:  # fmt: skip
        """Return the retry or the dead letter of a refused message; see `intake.Retries`."""
        retry_max, queues = self._settings(group)
        most = retry_max if tries is None else tries
        return self._copy(message, group, level=level, max_tries=most, retry_queues=queues)

    def origin(self, message: StoredMessage) -> tuple[str, int]:
        """Return what identifies a copy; see `intake.Retries`."""
        first_id, tries = self._origin(message)
        return first_id, tries

    def were_put(self) -> None:
        """Let the delivery of delayed messages know."""
        self._on_put()
