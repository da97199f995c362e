"""The combinations that the matrix tests go through; a third party's are in them once installed."""

from random import Random
from typing import Any

from tests.lanes import NIGHT, SEED

from penstock.plugins.registry import load_registry
from penstock.testing.crash import Plot
from penstock_tools.matrix.report import Combo, combinations

REGISTRY = load_registry()
ALL = combinations(REGISTRY)
ALLOWED = [combo for combo in ALL if combo.conflict(REGISTRY) is None]
REFUSED = [combo for combo in ALL if combo.conflict(REGISTRY) is not None]
# A tenth, no two neighbours, for what is too slow to do for all.
TENTH = ALLOWED[3::9]
# As in a store with many queues: files are synced together, and a clean close records the ends of the queues.
AS_MANY = {"index.consume-queue.sync_volume_from": 2, "index.consume-queue.summary_from": 1}


def name_of(combo: Combo) -> str:
    """Return what a combination's test is called."""
    return "-".join(combo)


def settings_of(combo: Combo) -> dict[str, Any]:
    """Return how a store picks it, on a machine that may not lock memory."""
    return {**combo.settings(), "write.transient-pool.lock_memory": False}


def plot_of(combo: Combo, steps: int) -> Plot:
    """Return a story on a combination: in the gate always the same one, at night one of the round's seed.

    Then some are of stores with many queues, and records are checked in both ways: by the CRC of the whole record,
    or by queue entries and neighbours.
    """
    seed, settings = ALLOWED.index(combo), settings_of(combo)
    if combo.write == "transient-pool":
        settings["write.transient-pool.buffers"] = 2
    if NIGHT:
        chance = Random(f"{SEED} {combo.label}")
        seed = chance.randrange(1 << 31)
        settings["log.checksum"] = chance.choice(("crc32", "crc32+record"))
        settings |= chance.choice(({}, AS_MANY))
    return Plot(seed=seed, settings=settings, steps=steps)
