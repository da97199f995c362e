"""Errors of archives are Penstock's."""

from penstock.errors import PenstockError, StorageError
from penstock_replicate.ship.ship_errors import ArchiveError, OtherLogError, RestoreError


def test_errors_are_caught_as_penstocks() -> None:
    assert issubclass(OtherLogError, ArchiveError)
    assert issubclass(ArchiveError, StorageError)
    assert issubclass(RestoreError, PenstockError)
