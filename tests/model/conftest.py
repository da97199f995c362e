"""What all stories share."""

import logging
from collections.abc import Iterator

import pytest

from penstock.plugins.registry import load_registry


@pytest.fixture(autouse=True)
def _opening_is_quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A story opens a store ten times: plugins are loaded once, and what is logged of crashes is not kept."""
    registry = load_registry()
    monkeypatch.setattr("penstock.store.open.load_registry", lambda *_: registry)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
