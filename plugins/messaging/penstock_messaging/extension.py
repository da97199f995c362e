"""The extension `messaging`: puts together what this package adds to a store."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Unpack

import attrs

from penstock import Message
from penstock.contracts import (
    MS_MAX,
    Consumer,
    ConsumerOptions,
    Context,
    Extension,
    OpenStore,
    limits,
)
from penstock.errors import StoreClosedError
from penstock_messaging.consuming.open_consumers import OpenConsumers
from penstock_messaging.delays.delivery import Delivery
from penstock_messaging.delays.levels import clamped, delay_ms
from penstock_messaging.delays.schedule import scheduled
from penstock_messaging.groups.claims import Claims
from penstock_messaging.groups.groups import Groups

# How often a message is retried, unless the group's configuration says otherwise.
RETRIES = 16


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`.

    Attributes:
        delay_save_ms: how long after the delivery of a delayed message `delayOffset.json` is written at the latest. A crash
            delivers again at most what was delivered in that time; each write flushes the log.
    """

    delay_save_ms: int = attrs.field(default=1000, validator=limits(1, MS_MAX))


class MessagingExtension(Extension):
    """Consumers, retries, delays, and the configuration of topics and groups."""

    name = "messaging"
    provides = frozenset({"consumer"})
    Options = MessagingOptions
    options: MessagingOptions

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._store: OpenStore | None = None
        self._consumers: OpenConsumers | None = None
        self.delivery = Delivery(context, save_ms=self.options.delay_save_ms)

    def attach(self, store: OpenStore) -> None:
        """See `Extension`."""
        self._store = store
        groups = Groups(self.context, store)
        self._consumers = OpenConsumers(
            self.context, store, partial(Claims, groups), lambda _: RETRIES, delay_ms
        )
        if not store.read_only:
            self.delivery.attach(store)

    def detach(self) -> None:
        """See `Extension`."""
        if self._consumers is not None:
            self._consumers.close()
        self.delivery.detach()

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """See `Store.consumer`."""
        if self._consumers is None:
            raise StoreClosedError
        return self._consumers.make(group, topics, **options)

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes] | None:
        """See `Extension`."""
        assert self._store is not None
        if message.queue is None or message.partition_key is not None or message.delay_level == 0:
            return None
        made = scheduled(message, self._store.check)
        self.delivery.expect(clamped(message.delay_level))
        return made

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return {"delays": self.delivery.stats()}
