"""The extension `messaging`: puts together what this package adds to a store."""

from typing import Any

import attrs

from penstock.contracts import Extension


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`."""


class MessagingExtension(Extension):
    """Consumers, retries, delays, and the configuration of topics and groups."""

    name = "messaging"
    Options = MessagingOptions
    options: MessagingOptions

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return {}
