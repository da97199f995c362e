"""How the messages of the timer topic are taken in."""

from pathlib import Path

import pytest

from penstock import Message, Store
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers import timer_queue
from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.timer_queue import TimerQueue, entry_of
from penstock_messaging.timers.waiting_timers import CANCELS, ROLLS, WAITS, WaitingTimer

NOW, HOUR = 1_700_000_000_000, 3_600_000


def put(store: Store, out_ms: int, more: bytes = b"") -> None:
    store.put_copies([(Message(TIMER_TOPIC, b"x"), b"TIMER_OUT_MS\x01%d\x02" % out_ms + more)])


@pytest.mark.parametrize(
    ("ahead_ms", "slot_ms", "kind"),
    [
        (5000, 5000, WAITS),
        (-5000, -5000, WAITS),
        (48 * HOUR - 1000, 48 * HOUR - 1000, WAITS),
        # As in a broker: after two days, or after one if little would be left.
        (48 * HOUR, 24 * HOUR, WAITS | ROLLS),
        (64 * HOUR - 1000, 24 * HOUR, WAITS | ROLLS),
        (64 * HOUR, 48 * HOUR, WAITS | ROLLS),
    ],
)
def test_a_long_wait_is_divided_as_in_a_broker(
    tmp_path: Path, ahead_ms: int, slot_ms: int, kind: int
) -> None:
    with open_store(tmp_path, clock=ManualClock(), spawn=ManualWorkers()) as store:
        put(store, NOW + ahead_ms)
        message = store.read(TIMER_TOPIC).messages[0]
        timer = Timer(NOW + ahead_ms, NOW + ahead_ms + 1, b"t", b"k", b"")
        assert entry_of(message, timer, NOW + 999) == WaitingTimer(
            NOW + slot_ms, message.log_offset, len(message.record), kind, NOW
        )
        cancels = timer._replace(cancels=b"t+k")
        assert entry_of(message, cancels, NOW).kind == kind | CANCELS


def test_messages_are_taken_in_once_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_queue, "COUNT_MAX", 2)
    queue = TimerQueue()
    taken: list[int] = []
    refused: list[str] = []
    with open_store(tmp_path, clock=ManualClock(), spawn=ManualWorkers()) as store:
        assert not queue.take_in(store, NOW, lambda e, _: taken.append(e.slot_ms), refused.append)
        for second in range(3):
            put(store, NOW + second * 1000)
        put(store, -1)
        assert not queue.is_read(store)
        while queue.take_in(store, NOW, lambda e, _: taken.append(e.slot_ms), refused.append):
            pass
        assert queue.is_read(store)
        assert taken == [NOW, NOW + 1000, NOW + 2000]
        assert len(refused) == 1
        assert "TIMER_OUT_MS b'-1'" in refused[0]


def test_an_offset_that_the_queue_does_not_have_is_moved_into_it(tmp_path: Path) -> None:
    queue = TimerQueue()
    refused: list[str] = []
    with open_store(tmp_path, clock=ManualClock(), spawn=ManualWorkers()) as store:
        put(store, NOW)
        queue.offset = 7
        assert not queue.take_in(store, NOW, lambda *_: None, refused.append)
    assert queue.offset == 1
    assert "read to 7, and has the offsets 0 to 1" in refused[0]
