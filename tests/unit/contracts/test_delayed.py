"""A message that waits, as programs see it."""

from pathlib import Path

from penstock.contracts.delayed import DelayedMessage
from penstock.testing import ManualClock, ManualWorkers, open_store


def test_it_says_what_was_put_and_names_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, clock=clock, spawn=ManualWorkers()) as store:
        receipt = store.put("orders", b"body", delay_ms=5000, queue=2)
        due_ms = clock.now_ms + 5000
        assert store.delayed() == [
            DelayedMessage(receipt.message_id, "orders", 2, due_ms, clock.now_ms, 4)
        ]
