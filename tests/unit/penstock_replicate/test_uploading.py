"""One range becomes one object."""

import hashlib
from pathlib import Path

import pytest
from tests.shipped import Shipped, log_bytes

from penstock.errors import StorageError
from penstock_replicate.ship.planning import Upload
from penstock_replicate.ship.restoring import unpacked
from penstock_replicate.ship.ship_errors import ArchiveError, OtherLogError
from penstock_replicate.ship.uploading import StoppedError, digest_of, ship_range


@pytest.mark.parametrize("compress", ["none", "zlib"])
def test_a_range_is_shipped_with_its_digest_and_times(tmp_path: Path, compress: str) -> None:
    with Shipped(tmp_path / "store", tmp_path / "archive") as shipped:
        shipped.put(30)
        end = shipped.log.visible_offset
        piece = ship_range(shipped.archive, shipped.log, Upload(0, end, 1), compress, lambda: False)  # fmt: skip
        stored = (tmp_path / "archive" / piece.name).read_bytes()
        assert (piece.size, piece.sha256) == (len(stored), hashlib.sha256(stored).hexdigest())
        wanted = log_bytes(shipped.store.path, 0, end)
        assert b"".join(unpacked(shipped.archive, piece)) == wanted
        assert digest_of(shipped.log, 0, end) == hashlib.sha256(wanted).hexdigest()
        assert 0 < piece.first_ms <= piece.last_ms
        with pytest.raises(StoppedError):
            ship_range(shipped.archive, shipped.log, Upload(0, end, 1), compress, lambda: True)
        with pytest.raises(StorageError, match="no bytes at log offset"):
            ship_range(shipped.archive, shipped.log, Upload(0, end + 1, 1), compress, lambda: False)


def test_errors_name_archive_and_object() -> None:
    error = OtherLogError("/a/", "log/x", "it is bad")
    assert isinstance(error, ArchiveError)
    assert (str(error), error.reason) == ("/a/log/x: it is bad", "it is bad")
    assert str(ArchiveError("s3://b", "", "it is bad")) == "s3://b: it is bad"
