"""Stores for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.consumers import Members
from tests.shop import Shop

import penstock
from penstock.store.store import Store


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A store on a clock and threads that the test runs, of the kind that its file names as `SHOP`, if it does."""
    made: Shop = getattr(request.module, "SHOP", Shop)(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with threads and a clock of its own."""
    with penstock.open(tmp_path / "store", environ={}) as opened:
        yield opened


@pytest.fixture
def members(store: Store) -> Members:
    """Makes consumers of that store, on a group in memory."""
    return Members(store)
