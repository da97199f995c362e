"""The extension `messaging`: puts together what this package adds to a store."""

from typing import TYPE_CHECKING, Any

import attrs

from penstock.contracts import Extension, OpenStore

if TYPE_CHECKING:
    from penstock_messaging.groups.taking import Groups


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`."""


class MessagingExtension(Extension):
    """Consumers, retries, delays, and the configuration of topics and groups."""

    name = "messaging"
    Options = MessagingOptions
    options: MessagingOptions

    _groups: "Groups | None" = None

    def attach(self, store: OpenStore) -> None:
        """Make the store's id, which consumers in other processes need."""
        self._store = store
        if not self.context.read_only:
            from penstock_messaging.groups.store_id import ensure_store_id  # noqa: PLC0415 - as below

            ensure_store_id(self.context.files, self.context.root)

    @property
    def groups(self) -> "Groups":
        """The consumer groups of the store."""
        if self._groups is None:
            # Here, since every process that opens a store imports this module, and many need no more of it.
            from penstock_messaging.groups.taking import Groups  # noqa: PLC0415 - as above

            self._groups = Groups(self.context, self._store)
        return self._groups

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return {}
