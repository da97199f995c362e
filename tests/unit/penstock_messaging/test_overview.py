"""How far the groups of a store are, from the committed offsets and from the journals."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import ArgumentError
from penstock.testing import open_store
from penstock_messaging.groups.overview import groups_of_store, overview, topics_of


def test_a_group_with_committed_offsets_only_and_one_with_a_journal(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        for number in range(10):
            store.put("orders", b"%d" % number)
            store.put("other", b"%d" % number)
        store.commit_offset("plain", "other", offset=4)
    with penstock.open(tmp_path / "s", read_only=True) as store:
        owned: Any = groups_of_store(store, "billing").take(
            "billing", "orders", 0, member="1-x", begin=lambda: 0
        )
        owned.ack([0, 1, 2], 0)
        owned.nack(3, 0, 0xFFFF, 3)
        owned.hand_back()
        found = overview(store)
        assert found.rows == [("billing", "orders", 0, 3, 7), ("plain", "other", 0, 4, 6)]
        assert found.waiting == {"billing": 1}
        assert found.unreadable == []
        assert overview(store, "plain") == ([("plain", "other", 0, 4, 6)], {}, [])
        assert topics_of(store, "billing") == ("orders",)
        assert topics_of(store, "plain") == ("other",)


def test_a_name_that_no_group_has_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store, pytest.raises(ArgumentError, match="group"):
        groups_of_store(store, "a/b")
