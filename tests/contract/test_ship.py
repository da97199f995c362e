"""The replicator `ship` passes the suite of its contract, as a third party's would."""

from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Strategy
from penstock.files import Files
from penstock.testing import ReplicatorContract
from penstock_replicate.ship.archive import FolderArchive
from penstock_replicate.ship.restore_point import survey
from penstock_replicate.ship.restoring import unpacked
from penstock_replicate.ship.ship_replicator import ShipReplicator


class TestShip(ReplicatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return ShipReplicator

    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": str(tmp_path / "archive"), "interval_ms": 50}

    def copied_bytes(self, store_path: Path) -> bytes | None:
        archive = FolderArchive(Files(), store_path.parent / "archive")
        pieces = survey(archive).manifest.pieces
        return b"".join(data for piece in pieces for data in unpacked(archive, piece))


class TestShipCompressed(TestShip):
    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": str(tmp_path / "archive"), "interval_ms": 50, "compress": "zlib", "parallel": 1}  # fmt: skip
