"""Every combination of installed strategies; a third party's are in it as soon as they are installed."""

import itertools
from typing import Any, NamedTuple

from penstock.config import FEEDS
from penstock.registry import load_registry

REGISTRY = load_registry()


class Combo(NamedTuple):
    """One writer, allocator, flush policy and feed."""

    write: str
    alloc: str
    flush: str
    feed: str

    @property
    def label(self) -> str:
        """What the test is called."""
        return "-".join(self)

    def settings(self) -> dict[str, Any]:
        """Return how a store picks them."""
        chosen: dict[str, Any] = {
            "write": self.write,
            "alloc": self.alloc,
            "flush": self.flush,
            "index.feed": self.feed,
        }
        if self.write == "transient-pool":
            chosen["write.transient-pool.lock_memory"] = False
        return chosen

    def conflict(self) -> str | None:
        """Return why it makes no sense, as the kernel would say."""
        picks = {"write": [self.write], "alloc": [self.alloc], "flush": [self.flush]}
        rest = {"index": ["consume-queue", "hash-index"], "retention": ["age"]}
        reasons = (
            REGISTRY.sets()[kind].get(names[0]).conflict({**picks, **rest})
            for kind, names in picks.items()
        )
        return next((reason for reason in reasons if reason is not None), None)


ALL = [
    Combo(*names)
    for names in itertools.product(
        REGISTRY.writers.names(),
        REGISTRY.allocators.names(),
        REGISTRY.flush_policies.names(),
        FEEDS,
    )
]
ALLOWED = [combo for combo in ALL if combo.conflict() is None]
REFUSED = [combo for combo in ALL if combo.conflict() is not None]
# A tenth, no two neighbours, for what is too slow to do for all.
TENTH = ALLOWED[3::9]
