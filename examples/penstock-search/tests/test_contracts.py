"""The three strategies keep their contracts."""

from typing import Any

import pytest

from penstock.contracts import Dispatcher, Strategy
from penstock.testing import (
    DispatcherContract,
    FlushPolicyContract,
    RetentionPolicyContract,
    WrittenLog,
)
from penstock_search.index import FullTextDispatcher
from penstock_search.policies import EveryFlush, KeepLastRetention


class TestFullText(DispatcherContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return FullTextDispatcher

    def snapshot(self, dispatcher: Dispatcher, log: WrittenLog) -> object:
        assert isinstance(dispatcher, FullTextDispatcher)
        return dispatcher.contents()


class TestEvery(FlushPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return EveryFlush

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"bytes": 2000}


class TestKeepLast(RetentionPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return KeepLastRetention

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"segments": 3}
