"""What an extension may call is what `Store` has, with the same arguments."""

import inspect

from penstock.contracts.open_store import MessageWaiter, OpenStore
from penstock.runtime.waking import Waiter
from penstock.store.store import Store


def names(protocol: type) -> list[str]:
    # Attributes of an instance are not found in its class.
    return [n for n in vars(protocol) if not n.startswith("_") and n not in ("path", "recovery")]


def test_a_store_has_every_method_with_the_same_arguments() -> None:
    for kind, protocol in ((Store, OpenStore), (Waiter, MessageWaiter)):
        assert names(protocol)
        for name in names(protocol):
            there, here = getattr(kind, name), getattr(protocol, name)
            if callable(here):
                assert list(inspect.signature(there).parameters) == list(
                    inspect.signature(here).parameters
                ), name
