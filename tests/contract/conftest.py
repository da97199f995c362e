"""The gate explores crashes of a store once for each kind of strategy here, and for each combination in `tests/matrix`."""

import pytest

EXPLORATION = "test_a_crash_anywhere_keeps_what_was_promised"
EXPLORED = {
    "TestTransientPool",
    "TestRecycle",
    "TestSync",
    "TestHashIndex",
    "TestSize",
    "TestMessaging",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the explorations of the others to the night."""
    for item in items:
        owner, _, name = item.nodeid.partition("test_builtin.py::")[2].partition("::")
        if name == EXPLORATION and owner not in EXPLORED:
            item.add_marker("night")
