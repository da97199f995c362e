"""The combinations that the matrix tests go through; a third party's are in them once installed."""

from typing import Any

from penstock.plugins.registry import load_registry
from penstock_tools.matrix.report import Combo, combinations

REGISTRY = load_registry()
ALL = combinations(REGISTRY)
ALLOWED = [combo for combo in ALL if combo.conflict(REGISTRY) is None]
REFUSED = [combo for combo in ALL if combo.conflict(REGISTRY) is not None]
# A tenth, no two neighbours, for what is too slow to do for all.
TENTH = ALLOWED[3::9]


def name_of(combo: Combo) -> str:
    """Return what a combination's test is called."""
    return "-".join(combo)


def settings_of(combo: Combo) -> dict[str, Any]:
    """Return how a store picks it, on a machine that may not lock memory."""
    return {**combo.settings(), "write.transient-pool.lock_memory": False}
