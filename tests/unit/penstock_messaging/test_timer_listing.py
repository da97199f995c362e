"""What waits, as people see it."""

from pathlib import Path

from penstock import Message
from penstock.contracts import DelayedMessage
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_listing import listed
from penstock_messaging.timers.waiting_timers import WAITS, WaitingTimer

NOW = 1_700_000_000_000


def test_only_what_will_be_delivered_is_listed_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, clock=clock, spawn=ManualWorkers()) as store:
        late = store.put("orders", b"late", delay_ms=9000, queue=3)
        soon = store.put("orders", b"soon", delay_ms=2000, properties={"UNIQ_KEY": "K"})
        gone = store.put("orders", b"gone", delay_ms=5000, properties={"UNIQ_KEY": "K"})
        texts = [
            b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02TIMER_DEL_UNIQKEY\x01orders+K\x02" % (NOW + 4000),
            b"TIMER_OUT_MS\x01%d\x02" % NOW,
            b"",
        ]  # fmt: skip
        others = [store.put_copies([(Message(TIMER_TOPIC, b""), text)])[0] for text in texts]
        plain = store.put("orders", b"plain")
        receipts = [late, soon, gone, *others, plain]
        entries = [WaitingTimer(0, receipt.log_offset, 0, WAITS, 0) for receipt in receipts]
        entries.append(WaitingTimer(0, plain.log_offset + 5, 0, WAITS, 0))
        assert listed(store, entries) == store.delayed() == [
            DelayedMessage(soon.message_id, "orders", 0, NOW + 2000, NOW, 4),
            DelayedMessage(late.message_id, "orders", 3, NOW + 9000, NOW, 4),
        ]  # fmt: skip
