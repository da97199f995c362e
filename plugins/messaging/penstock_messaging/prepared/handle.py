"""The object that `Store.prepare` and `Store.prepared` return; see `contracts.Prepared`."""

from types import TracebackType
from typing import Self

from penstock import Receipt, StoredMessage
from penstock.contracts import Context, OpenStore
from penstock.errors import PenstockError, ReadOnlyError
from penstock.format import arguments
from penstock_messaging.configuration.checks import refusal
from penstock_messaging.configuration.topics import TopicConfigs
from penstock_messaging.prepared.half_queue import OpenHalf
from penstock_messaging.prepared.open_halves import COMMITTED, ROLLED_BACK, OpenHalves


class ShownPrepared:
    """A prepared message of a store that is opened read-only: it can only be looked at. Safe from any thread."""

    def __init__(
        self, half: OpenHalf, store: OpenStore, topics: TopicConfigs, context: Context
    ) -> None:
        facts = half.facts
        self.transaction_id, self.group = facts.transaction_id, facts.group
        self.topic, self.queue = facts.topic, facts.queue
        self._half, self._store, self._topics = half, store, topics
        self._clock = context.clock

    def __repr__(self) -> str:
        return (
            f"<prepared message {self.transaction_id} of group {self.group!r} for {self.topic!r}>"
        )

    @property
    def checks(self) -> int:
        """The number of check-backs so far."""
        return self._half.facts.checks

    @property
    def age_s(self) -> float:
        """Seconds since it was born."""
        return max(self._clock.time_ms() - self._half.born_time_ms, 0) / 1000

    @property
    def reason(self) -> str:
        """Why a commit would be refused now, as far as its topic's configuration says; else empty."""
        return str(refusal(self._topics, self.topic, self.queue) or "")

    @property
    def message(self) -> StoredMessage:
        """The half message as it is stored."""
        return self._store.at(self._half.log_offset)

    def commit(self, *, wait: bool = True) -> Receipt:
        """Refuse: the store is open read-only."""
        raise ReadOnlyError

    def rollback(self) -> None:
        """Refuse: the store is open read-only."""
        raise ReadOnlyError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit()


class PreparedHandle(ShownPrepared):
    """A prepared message of the process that writes. Safe from any thread."""

    def __init__(
        self,
        half: OpenHalf,
        halves: OpenHalves,
        topics: TopicConfigs,
        context: Context,
        *,
        is_asked_about: bool,
    ) -> None:
        """`is_asked_about` says whether the store has a check-back for its group."""
        super().__init__(half, halves.store, topics, context)
        self._halves = halves
        self._is_asked_about = is_asked_about

    @property
    def message(self) -> StoredMessage:
        """The half message as it is stored, its newest copy."""
        return self._halves.message(self._half)

    def commit(self, *, wait: bool = True) -> Receipt:
        """Put the message into its topic."""
        wait = arguments.flag("commit", "wait", wait)
        receipt = self._halves.finish(self._half, COMMITTED, wait=wait)
        assert receipt is not None
        return receipt

    def rollback(self) -> None:
        """Drop the message."""
        self._halves.finish(self._half, ROLLED_BACK, wait=False)

    def __enter__(self) -> Self:
        with self._halves.guard:
            self._half.in_block += 1
            self._half.blocks += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._halves.guard:
                self._half.in_block -= 1
                # Within the lock: otherwise, a check that writes it again just now would pass for an end.
                is_finished = bool(self._half.outcome)
            if is_finished:
                return
            if error is None:
                self.commit()
            elif not self._is_asked_about:
                self.rollback()
        except (PenstockError, OSError) as trouble:
            if error is None:
                raise
            # The error of the block comes first.
            error.add_note(f"prepared message {self.transaction_id} is still open: {trouble}")
