"""A plugin of pytest: runs the tests that a file lists, in its order, with one seed and within bounds of memory."""

import os
import resource
import sys
from pathlib import Path

import pytest

CHOSEN = "PENSTOCK_MUTANTS_TESTS"
# A mutant that allocates without end must not take the machine's memory.
_MEMORY_BYTES = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Bound the memory of this process and its children."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, most))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave just the chosen tests, in their order; all if none were chosen."""
    hypothesis = sys.modules.get("hypothesis.core")
    if hypothesis is not None:
        # What its option `--hypothesis-seed` sets.
        hypothesis.__dict__["global_force_seed"] = 0
    if CHOSEN in os.environ:
        chosen = Path(os.environ[CHOSEN]).read_text().splitlines()
        place = {name: at for at, name in enumerate(chosen)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])
