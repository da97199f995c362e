"""The replicator `ha` passes the suite of its contract, without a copy: puts that wait are told that none is available."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.contracts import Strategy
from penstock.testing import ReplicatorContract
from penstock_replicate.master.ha import HaReplicator
from penstock_replicate.master.loop_thread import LoopThread


@pytest.fixture(autouse=True)
def no_loop_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the loops of stores that crashed: thousands of them have more descriptors than a process may."""
    made: list[LoopThread] = []
    init = LoopThread.__init__

    def noted(self: LoopThread, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(LoopThread, "__init__", noted)
    yield
    for loop in made:
        loop.stop()


class TestHaThatNobodyWaitsFor(ReplicatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return HaReplicator

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"listen": "127.0.0.1:0", "timeout_ms": 100}


class TestHaThatPutsWaitFor(TestHaThatNobodyWaitsFor):
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"listen": "127.0.0.1:0", "timeout_ms": 100, "in_sync_replicas": 2}
