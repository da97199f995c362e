"""Extensions: work around a store that uses its public methods, such as consumers, delays and transactions."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from penstock.contracts.base import Strategy
from penstock.contracts.findings import Finding
from penstock.contracts.open_store import OpenStore
from penstock.message import Message


class SummaryLine(NamedTuple):
    """One line of what `Extension.summary` says about a store.

    Attributes:
        key: its name in JSON, unique within the store: lower-case words joined by `_`.
        what: what is shown, as the first column of `penstock stat`.
        text: the value as text, the second column.
        value: the value for programs; anything that JSON can hold.
    """

    key: str
    what: str
    text: str
    value: Any


class Extension(Strategy):
    """Adds behaviour around a store (`[extensions]`). Any number may be configured; each gets one instance an open store.

    The order of calls: the constructor; `attach`, once the store is open; any of the other methods, from any thread;
    `detach`, before the store closes. A store that is opened read-only has extensions, too: `context.read_only` is True,
    and `rewrite`, `check_put` and `queues_of` are not called.

    Attributes:
        record_reserve: by how many bytes the copies that it stores later of a message may be larger than the message's record. A
            put is refused unless its record leaves so much of a segment; copies (`put_copies`) need not.
        provides: names of public methods of `Store` that this extension implements, such as "consumer". `Store` calls the
            method of the same name on the first configured extension that lists it.
        callbacks: names of those arguments of `penstock.open` that take functions of the program, and that this extension gets in
            `context.callbacks`; `open` has one such argument, "check_back".
    """

    record_reserve: ClassVar[int] = 0
    provides: ClassVar[frozenset[str]] = frozenset()
    callbacks: ClassVar[frozenset[str]] = frozenset()

    def attach(self, store: OpenStore) -> None:
        """Begin: the store is recovered, and takes puts unless it is read-only.

        Background work is started with `context.spawn`, and stopped in `detach`. If this raises, the store is closed, and the
        opening raises the same exception.
        """

    def detach(self) -> None:
        """End all work; the store still takes puts, unless it has failed. Must not raise. May be called more than once."""

    def check_put(self, topic: str, queue: int) -> None:
        """Raise a `MessageError` to refuse puts to a queue.

        Called before the first put to each queue, and again after `OpenStore.recheck_puts`, not for each message; never
        for copies (`put_copies`). Topic and queue are valid by themselves.
        """

    def queues_of(self, topic: str) -> int | None:
        """Return over how many queues, from number 0, messages without a queue number are distributed; None if that is not known here.

        Called before the first such message to a topic, and again after `OpenStore.recheck_puts`. One queue if no extension knows.
        """
        return None

    def add_queue(self, topic: str, queue: int) -> None:
        """Give a topic that messages have created a queue, before messages whose queues were picked elsewhere are put to it."""

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes] | None:
        """Return what is stored in place of a message that requests more than to be stored; None if that is not known here.

        Called for a message with a delay or a partition key; one without a partition key has a queue number. Must return a message
        with a queue number and none of these requests, or such a message with its whole properties text, as `put_copies` takes it. Raises a
        `MessageError` to refuse the message.
        """
        return None

    def summary(self) -> Sequence[SummaryLine]:
        """Return lines for `LowLevelStore.summary` and `penstock stat`, such as what waits, and for how long; none by default.

        Called for a store opened read-only, too, so it must read what it says from the store's files. Lines about what the
        store does not use are left out.
        """
        return []

    def findings(self) -> Iterable[Finding]:
        """Return the problems in the extension's own files, for `Store.verify`; changes nothing. None by default."""
        return ()

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return {}
