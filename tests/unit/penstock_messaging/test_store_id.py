"""The store's id: made once, and never guessed."""

from pathlib import Path

import pytest

from penstock.errors import CorruptionError, StorageError
from penstock.files import Files
from penstock_messaging.groups.store_id import ensure_store_id, read_store_id


def test_it_is_made_once(tmp_path: Path) -> None:
    first = ensure_store_id(Files(), tmp_path)
    assert first > 0
    assert ensure_store_id(Files(), tmp_path) == read_store_id(Files(), tmp_path) == first


def test_a_store_without_one_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Open the store once for writing"):
        read_store_id(Files(), tmp_path)


@pytest.mark.parametrize(
    "raw", [b"", b"12", b"+123456789abcdef\n", b"1" * 17 + b"\n", b"\xff" * 17]
)
def test_anything_else_in_its_file_is_corruption(raw: bytes, tmp_path: Path) -> None:
    ensure_store_id(Files(), tmp_path)
    (tmp_path / "penstock" / "store-id").write_bytes(raw)
    with pytest.raises(CorruptionError, match="store-id"):
        ensure_store_id(Files(), tmp_path)
