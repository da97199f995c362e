"""The log of a master, which tests give to copies."""

import pytest
from tests.replicas.logs import MasterLog, make_log


@pytest.fixture(scope="session")
def log() -> MasterLog:
    """A log of four segments, with atomic batches."""
    return make_log()
