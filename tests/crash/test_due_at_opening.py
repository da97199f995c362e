"""Delayed messages of a store that nobody had open for longer than retention keeps messages."""

from pathlib import Path
from typing import Any

import pytest
from tests.lanes import eventually

import penstock
from penstock import Message
from penstock.runtime.clock import Clock


class TuesdayClock(Clock):
    """The time after a long weekend."""

    def time_ms(self) -> int:
        return super().time_ms() + 88 * 3_600_000


@pytest.mark.parametrize("request_by", ["thread", "call"])
@pytest.mark.parametrize(
    "delay", [{"delay": 60 * 3600}, {"delay_level": 18}], ids=["time", "level"]
)
def test_what_came_due_while_nobody_had_the_store_open_is_delivered_before_retention(
    delay: dict[str, Any], request_by: str, tmp_path: Path
) -> None:
    """The first run of retention came before the messages that wait were loaded, and deleted their records."""
    given: dict[str, Any] = {
        "retention.use": ["age"], "retention.age.reserved_hours": 72, "retention.age.delete_when": "*",
        "geometry.segment_bytes": 65536,
    }  # fmt: skip
    with penstock.open(tmp_path / "s", environ={}, **given) as store:
        store.put("orders", b"remind", queue=0, **delay)
        store.put_many([Message("other", bytes(1000), queue=0)] * 80)
    first = min((tmp_path / "s/commitlog").iterdir())
    with penstock.open(tmp_path / "s", environ={}, clock=TuesdayClock(), **given) as store:
        if request_by == "call":
            store.retain()
        eventually(lambda: not first.exists(), "the segment with the record is deleted")
        assert [message.body for message in store.scan("orders")] == [b"remind"]
