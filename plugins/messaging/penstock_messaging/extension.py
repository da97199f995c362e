"""The extension `messaging`: puts together what this package adds to a store."""

from typing import Any

import attrs

from penstock import Message
from penstock.contracts import MS_MAX, Context, Extension, OpenStore, limits
from penstock_messaging.delays.delivery import Delivery
from penstock_messaging.delays.levels import clamped
from penstock_messaging.delays.schedule import scheduled


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
    Options = MessagingOptions
    options: MessagingOptions

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._store: OpenStore | None = None
        self.delivery = Delivery(context, save_ms=self.options.delay_save_ms)

    def attach(self, store: OpenStore) -> None:
        """See `Extension`."""
        self._store = store
        if not store.read_only:
            self.delivery.attach(store)

    def detach(self) -> None:
        """See `Extension`."""
        self.delivery.detach()

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
