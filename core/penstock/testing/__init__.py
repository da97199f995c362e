"""Support for tests of stores and of strategies.

Contract suites (subclass one and implement the fixture `strategy`, see `penstock.testing.suites`); files that
fail or kill the store on request; a clock and threads controlled by the test; small stores with strategies that need
not be installed. The suites need pytest: `pip install 'penstock[testing]'`.

In reading order: `kit` (small stores, clock and threads), `faults` (files that fail); `platter` and `disk` (a simulated
disk: its files and medium, the whole); `story` and `crash` (one scenario, crashed before each call), `failures` (the
same, with failing calls); `check` (runs `penstock plugins check`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError
from penstock.testing.disk import SimulatedDisk
from penstock.testing.faults import FaultyFiles, KilledError
from penstock.testing.kit import (
    InlineWorkers,
    ManualClock,
    ManualWorkers,
    WrittenLog,
    make_context,
    messages,
    open_store,
)

if TYPE_CHECKING:
    from penstock.testing.suites.dispatcher import (
        DispatcherContract,
        KeyIndexContract,
        QueueIndexContract,
    )
    from penstock.testing.suites.policies import (
        ExtensionContract,
        FlushPolicyContract,
        RetentionPolicyContract,
    )
    from penstock.testing.suites.replicator import ReplicatorContract
    from penstock.testing.suites.storage import AllocatorContract, SegmentWriterContract

SUITES = {
    "AllocatorContract": "storage",
    "DispatcherContract": "dispatcher",
    "ExtensionContract": "policies",
    "FlushPolicyContract": "policies",
    "KeyIndexContract": "dispatcher",
    "QueueIndexContract": "dispatcher",
    "ReplicatorContract": "replicator",
    "RetentionPolicyContract": "policies",
    "SegmentWriterContract": "storage",
}

__all__ = [
    "AllocatorContract",
    "DispatcherContract",
    "ExtensionContract",
    "FaultyFiles",
    "FlushPolicyContract",
    "InlineWorkers",
    "KeyIndexContract",
    "KilledError",
    "ManualClock",
    "ManualWorkers",
    "QueueIndexContract",
    "ReplicatorContract",
    "RetentionPolicyContract",
    "SegmentWriterContract",
    "SimulatedDisk",
    "WrittenLog",
    "make_context",
    "messages",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Import a suite on first access, since everything else works without pytest."""
    if name not in SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("pytest", "testing", f"penstock.testing.{name}") from error
    # Before the suites are imported; otherwise their failures show no values in another project's test run.
    for module in sorted(set(SUITES.values())):
        pytest.register_assert_rewrite(f"penstock.testing.suites.{module}")
    return getattr(importlib.import_module(f"penstock.testing.suites.{SUITES[name]}"), name)
