"""How the messages of the timer topic are taken in."""

from pathlib import Path

from penstock import Message, Store
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_queue import TimerQueue

NOW, HOUR = 1_700_000_000_000, 3_600_000


def put(store: Store, out_ms: int, more: bytes = b"") -> None:
    store.put_copies([(Message(TIMER_TOPIC, b"x"), b"TIMER_OUT_MS\x01%d\x02" % out_ms + more)])


def test_an_offset_that_the_queue_does_not_have_is_moved_into_it(tmp_path: Path) -> None:
    queue = TimerQueue()
    refused: list[str] = []
    with open_store(tmp_path, clock=ManualClock(), spawn=ManualWorkers()) as store:
        put(store, NOW)
        queue.offset = 7
        assert not queue.take_in(store, NOW, lambda *_: None, refused.append)
    assert queue.offset == 1
    assert "read to 7, and has the offsets 0 to 1" in refused[0]
