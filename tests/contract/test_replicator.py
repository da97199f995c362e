"""The replicators of the tests pass the suite of their contract, as a third party's would."""

from pathlib import Path
from typing import Any

import pytest
from tests.folder_replicator import FolderReplicator

from penstock.contracts import Strategy
from penstock.testing import ReplicatorContract


class TestFolder(ReplicatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return FolderReplicator

    def copied_bytes(self, store_path: Path) -> bytes | None:
        folder = store_path.with_name(f"{store_path.name}-copy")
        return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


class TestFolderThatNobodyWaitsFor(TestFolder):
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"waits": False}
