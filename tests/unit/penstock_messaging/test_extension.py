"""The extension `messaging` in a store."""

from pathlib import Path

from penstock.testing import open_store
from penstock_messaging.extension import MessagingExtension


def test_every_store_has_it_unless_it_is_configured_otherwise(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert isinstance(store.extension("messaging"), MessagingExtension)
    with open_store(tmp_path / "s", extensions=[]) as store:
        assert store.put("t", b"x").queue_offset == 0
