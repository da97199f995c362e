"""What is said about prepared messages."""

from pathlib import Path

import pytest

from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.prepared.shown import age_text, summary_of


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (172_800, "2 d")])  # fmt: skip
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_a_store_says_how_many_are_open_and_how_old(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "s", clock=clock, spawn=ManualWorkers()) as store:
        assert store.summary() == summary_of([]) == []
        first = store.prepare("orders", b"1", group="shop")
        clock.now_ms += 90_000
        second = store.prepare("orders", b"2", group="shop", queue=3)
        (line,) = store.summary()
        assert (line.key, line.what) == ("prepared", "prepared, not committed")
        assert line.text == "2, the oldest 1 min old: see penstock transactions"
        assert line.value == {
            "open": 2, "oldest_s": 90.0, "listed": [
                {"transaction_id": first.transaction_id, "group": "shop", "topic": "orders", "queue": 0, "age_s": 90.0, "checks": 0, "reason": None},
                {"transaction_id": second.transaction_id, "group": "shop", "topic": "orders", "queue": 3, "age_s": 0.0, "checks": 0, "reason": None},
            ],
        }  # fmt: skip
