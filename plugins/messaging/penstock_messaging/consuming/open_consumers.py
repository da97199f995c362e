"""The consumers of one open store: makes them, and closes them before the store closes."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, Unpack

from penstock.contracts import ConsumerOptions, Context, OpenStore
from penstock.errors import ForkedStoreError, PenstockError
from penstock.escape import get_logger
from penstock_messaging.consuming.answers import RetryRules
from penstock_messaging.consuming.broadcast import BroadcastClaims
from penstock_messaging.consuming.consumer import GroupConsumer
from penstock_messaging.consuming.consumer_options import CheckedOptions, checked_options
from penstock_messaging.consuming.queue_rights import GroupMembership, OnQueue
from penstock_messaging.consuming.selection import (
    TopicSelection,
    checked_group,
    checked_topics,
)
from penstock_messaging.retries.copies import retry_topic

logger = get_logger(__name__)


class MakeMembership(Protocol):
    """Makes the membership of a consumer in a group; see `groups.claims.Claims`."""

    def __call__(
        self,
        group: str,
        selection: TopicSelection,
        *,
        start: str | int,
        note: dict[str, Any],
        on_claimed: OnQueue,
        on_wanted_back: OnQueue,
        wake: Callable[[], None],
    ) -> GroupMembership:
        """Return it."""


class OpenConsumers:
    """The consumers of one open store. Safe from any thread.

    Args:
        context: the extension's.
        store: the open store.
        make_membership: makes the membership in a group.
        group_retries: returns how often a group's messages are retried by default.
        delay_ms: returns the delay of a level.
    """

    def __init__(
        self,
        context: Context,
        store: OpenStore,
        make_membership: MakeMembership,
        group_retries: Callable[[str], int],
        delay_ms: Callable[[int], int],
    ) -> None:
        self._context = context
        self._store = store
        self._make_membership = make_membership
        self._group_retries = group_retries
        self._delay_ms = delay_ms
        self._consumers: set[GroupConsumer] = set()
        self._process = context.files.process_id()

    def make(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> GroupConsumer:
        """Return a new consumer; see `Store.consumer`."""
        # Reads of a store that was opened read-only work in a forked child. A consumer needs locks of the store too,
        # which a thread of the parent may have held at the fork.
        if self._context.files.process_id() != self._process:
            raise ForkedStoreError(self._context.root, self._process)
        name, names, checked = (
            checked_group(group),
            checked_topics(topics),
            checked_options(options),
        )
        retries = None if checked.broadcast else retry_topic(name)
        selection = TopicSelection(names if retries is None else (*names, retries))
        rules = RetryRules(checked.max_retries, partial(self._group_retries, name), self._delay_ms)
        consumer = GroupConsumer(
            self._context, self._store, name, checked, partial(self._claims, name, selection, checked), rules,
            retry_topic=retries, on_closed=self._consumers.discard,
        )  # fmt: skip
        self._consumers.add(consumer)
        consumer.start()
        return consumer

    def _claims(
        self,
        group: str,
        selection: TopicSelection,
        options: CheckedOptions,
        on_claimed: OnQueue,
        on_wanted_back: OnQueue,
        wake: Callable[[], None],
    ) -> GroupMembership:
        if options.broadcast:
            return BroadcastClaims(
                self._store, selection, options.start, on_claimed, on_wanted_back
            )
        note = {
            "topics": list(selection.texts), "ordered": options.ordered, "tag": options.tag, "start": options.start,
        }  # fmt: skip
        return self._make_membership(
            group, selection, start=options.start, note=note, on_claimed=on_claimed, on_wanted_back=on_wanted_back,
            wake=wake,
        )  # fmt: skip

    def close(self) -> None:
        """Close all consumers; failures are logged, and the answers that they concern are redelivered."""
        for consumer in list(self._consumers):
            try:
                consumer.close()
            except (PenstockError, OSError):
                logger.exception("closing the consumer of group %s failed", consumer.group)
