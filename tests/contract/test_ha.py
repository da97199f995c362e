"""The replicator `ha` passes the suite of its contract, without a copy: puts that wait are told that none is available."""

from typing import Any

import pytest

from penstock.contracts import Strategy
from penstock.testing import ReplicatorContract
from penstock_replicate.master.ha import HaReplicator


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
