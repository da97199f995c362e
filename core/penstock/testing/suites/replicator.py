"""The contract suite of replicators."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock._kernel import Bell
from penstock.contracts import Context, Replica, ReplicatedLog, Replicator, Strategy
from penstock.message import Durability, Message, PutStatus
from penstock.testing.crash import explore, plot_for
from penstock.testing.kit import open_store
from penstock.testing.suites.policies import ContractSuite


class IdleLog(ReplicatedLog):
    """A log of a store without a record; notes what the replicator reports."""

    segment_bytes, puts_wait = 65536, True
    min_offset = visible_offset = missed_offset = 0

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bell = Bell()
        self.replica = Replica(history="1" * 32, store="2" * 16, role="master")
        self.removed_topics: Mapping[str, Any] = {}
        self.reached: list[int] = []
        self.status: object = {}

    @property
    def bell(self) -> Bell:
        return self._bell

    def read(self, log_offset: int, size: int) -> bytes:
        return b""

    def recent(self, log_offset: int, size: int) -> bytes:
        return b""

    def digest(self, start: int, stop: int) -> bytes:
        return bytes(32)

    def ranges(self) -> dict[str, Any]:
        return {}

    def lone_ends(self) -> list[list[Any]]:
        return []

    def reach(self, log_offset: int, *, available: bool, missed: int) -> None:
        self.reached.append(log_offset)

    def publish(self, status: object) -> None:
        self.status = status


class ReplicatorContract(ContractSuite):
    """Subclass this and return your replicator's class from `strategy`; the tests have no copies.

    Let `options` make it use a free port of this machine only, if it uses one.
    """

    contract = Replicator

    def test_it_ends_without_a_trace(
        self, strategy: type[Replicator], options: dict[str, Any], context: Context
    ) -> None:
        """`close` ends every thread, also if it was never started, and may be repeated."""
        log = IdleLog(context.root)
        before = set(threading.enumerate())
        idle = strategy(strategy.Options(**options), context, log)
        idle.close()
        made = strategy(strategy.Options(**options), context, log)
        assert made.wait_for in ("disk", "received")
        assert made.timeout_ms > 0
        made.start()
        made.advanced()
        made.failed("the disk is gone")
        made.close()
        made.close()
        assert set(threading.enumerate()) <= before
        # No copy has anything.
        assert not any(log.reached)
        json.dumps(log.status)

    def test_a_store_with_it_takes_messages(
        self, strategy: type[Replicator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Without a copy in sync, a put does not wait for one; the store can be closed and opened again."""
        given = {f"replicate.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"replicate": strategy.name, "flush": "sync", **given}
        for count in (1, 2):
            with open_store(tmp_path / "s", strategies=[strategy], **chosen) as store:
                receipt = store.put("t", b"x")
                assert receipt.status in (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE)
                assert receipt.durability == Durability.ON_DISK
                store.put_many([Message("t", b"y"), Message("t", b"z")], atomic=True)
                assert len(list(store.scan("t"))) == 3 * count
                assert not list(store.verify())

    def test_a_crash_anywhere_keeps_what_was_promised(  # type: ignore[override] # options are needed, too
        self, strategy: type[Strategy], options: dict[str, Any]
    ) -> None:
        """See `ContractSuite`."""
        given = {f"replicate.{strategy.name}.{key}": value for key, value in options.items()}
        plot = plot_for(strategy)
        plot = attrs.evolve(plot, settings={**plot.settings, **given})
        outcomes = list(explore(plot, cases=48))
        assert not [outcome.problem for outcome in outcomes if outcome.problem]
        assert len(outcomes) > 20
