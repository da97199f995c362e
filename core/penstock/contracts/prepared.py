"""Prepared messages as programs see them; an extension that provides "prepare" implements them."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from penstock.message import Receipt, StoredMessage


class Prepared(Protocol):
    """A message that is stored, and that no reader of its topic sees until it is committed. Safe from any thread.

    As a context manager, it is committed at the end of the block, unless it was finished there. If an exception leaves the
    block, it is rolled back; but if the store was opened with a check-back for its group, that decides instead, since the
    exception may have come after the commit of your database.

    Attributes:
        transaction_id: its id, also in the property UNIQ_KEY.
        group: the group whose program decides about it.
        topic: the topic that it is for.
        queue: the queue that it is for.
        checks: how often a check-back was asked about it.
    """

    transaction_id: str
    group: str
    topic: str
    queue: int

    @property
    def checks(self) -> int:
        """The number of check-backs so far."""

    @property
    def reason(self) -> str:
        """Why a commit would fail now, as far as its topic's configuration says; else empty."""

    @property
    def age_s(self) -> float:
        """Seconds since it was born."""

    @property
    def message(self) -> StoredMessage:
        """The half message, with the body, tag, keys and properties; raises `OffsetError` if retention has deleted it."""

    def commit(self, *, wait: bool = True) -> Receipt:
        """Put the message into its topic; returns its receipt. Waits for the disk as `Store.put` does, unless `wait` is False.

        Raises:
            PreparedFinishedError: it was committed or rolled back before; nothing was stored.
            MessageError: its topic takes no messages any more; nothing was stored, and it is still prepared.
        """

    def rollback(self) -> None:
        """Drop the message.

        Raises `PreparedFinishedError` if it was committed or rolled back before; nothing was stored.
        """

    def __enter__(self) -> Self:
        """Return the prepared message; no check-back is asked about it during the block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back; see above."""


CheckBack: TypeAlias = Callable[[Prepared], str | None]
CheckBacks: TypeAlias = CheckBack | Mapping[str, CheckBack]
