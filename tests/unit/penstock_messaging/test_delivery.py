"""The delivery service, on a clock and a thread that the test runs: spec section 1.3 of the broker, and where it differs."""

import errno
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import penstock
from penstock import Message, Store
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, make_context, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.delays import delivery
from penstock_messaging.delays.delay_offsets import DelayOffsets
from penstock_messaging.delays.delivery import Delivery, due_time_ms, waiting
from penstock_messaging.delays.levels import LEVEL_MAX, SCHEDULE_TOPIC, delay_ms
from penstock_messaging.extension import MessagingExtension

WORKER = "penstock-deliver"
SAVE_MS = 1000


@attrs.define
class Shop:
    """A store with delayed messages that a test opens, closes, and runs the delivery of."""

    root: Path
    files: FaultyFiles = attrs.Factory(FaultyFiles)
    clock: ManualClock = attrs.Factory(ManualClock)
    workers: ManualWorkers = attrs.Factory(ManualWorkers)
    settings: dict[str, Any] = attrs.Factory(dict)
    opened: Store | None = None

    def open(self) -> Store:
        self.workers = ManualWorkers()
        self.opened = open_store(
            self.root, files=self.files, clock=self.clock, spawn=self.workers, **self.settings
        )
        return self.opened

    @property
    def store(self) -> Store:
        return self.opened or self.open()

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def kill(self) -> None:
        """Kill the writer: go on with a copy of its files, which holds all that was passed to the system."""
        copy = copy_store(self.root, self.root.with_name("killed"))
        self.close()
        self.root = copy

    def put(self, body: bytes, level: int, topic: str = "orders", queue: int = 0) -> None:
        self.store.put(topic, body, queue=queue, delay_level=level)

    def run(self, *, after_ms: int = 0) -> float | None:
        """Advance the clock, run one round, and return its pause in seconds."""
        self.clock.now_ms += after_ms
        return self.workers.run(WORKER)

    def bodies(self, topic: str = "orders", queue: int = 0) -> list[bytes]:
        return [message.body for message in self.store.scan(topic, queue)]

    @property
    def has_thread(self) -> bool:
        return WORKER in self.workers.by_name

    def is_woken_by(self, level: int) -> bool:
        """Put a message of a level; return whether that woke the thread."""
        worker = self.workers.by_name[WORKER]
        worker.is_awake = False
        self.put(b"x", level)
        return worker.is_awake

    @property
    def delivery(self) -> Delivery:
        extension = self.store.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        return extension.delivery

    def saved(self) -> dict[str, int]:
        path = self.root / "config" / "delayOffset.json"
        found: dict[str, int] = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "store")
    yield made
    made.close()


# --- when


@pytest.mark.parametrize("level", range(1, LEVEL_MAX + 1))
def test_a_message_of_each_level_is_delivered_when_its_delay_is_over(
    shop: Shop, level: int
) -> None:
    shop.put(b"x", level)
    assert shop.bodies() == []
    wait_s = delay_ms(level) / 1000
    assert shop.run() == min(wait_s, 10)
    shop.run(after_ms=delay_ms(level) - 1)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    assert shop.bodies() == [b"x"]
    delivered = shop.store.read("orders").messages[0]
    assert delivered.all_properties == {
        "DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "0"
    }  # fmt: skip
    assert delivered.store_time_ms == shop.clock.now_ms


def test_a_level_above_18_waits_like_the_last(shop: Shop) -> None:
    shop.put(b"x", 99)
    shop.run(after_ms=delay_ms(18) - 1)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    assert shop.bodies() == [b"x"]


def test_levels_do_not_wait_for_each_other_and_each_keeps_its_order(shop: Shop) -> None:
    for number in range(6):
        shop.put(b"%d" % number, (2, 1)[number % 2])
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"1", b"3", b"5"]
    shop.run(after_ms=4000)
    assert shop.bodies() == [b"1", b"3", b"5", b"0", b"2", b"4"]


def test_all_ways_to_put_take_a_delay(shop: Shop) -> None:
    store = shop.store
    receipt = store.put("orders", b"a", queue=3, delay_level=1, tag="t", keys=["k"])
    assert (receipt.queue, receipt.queue_offset) == (0, 0)
    store.put_many(
        [Message("orders", b"b", queue=3, delay_level=2), Message("orders", b"c", queue=3)]
    )
    future = store.submit("orders", b"d", queue=3, delay_level=1)
    store.flush()
    assert future.result(0).queue_offset == 1
    assert shop.bodies(queue=3) == [b"c"]
    shop.run(after_ms=5000)
    assert sorted(shop.bodies(queue=3)) == [b"a", b"b", b"c", b"d"]
    assert [m.body for m in store.find("orders", "k")] == [b"a"]
    assert store.read("orders", 3, tag="t").messages[0].keys == ("k",)


# --- the thread


def test_a_store_without_delayed_messages_has_no_thread_and_no_file(shop: Shop) -> None:
    shop.store.put("orders", b"x")
    shop.close()
    shop.open()
    assert not shop.has_thread
    shop.close()
    assert not (shop.root / "config" / "delayOffset.json").exists()


def test_the_thread_begins_with_the_first_delayed_message(shop: Shop) -> None:
    shop.store.put("orders", b"x")
    assert not shop.has_thread
    shop.put(b"y", 5)
    assert shop.has_thread


def test_a_signal_handler_may_put_a_delayed_message_within_another_put(shop: Shop) -> None:
    delivery, begun = shop.delivery, list[Any]()
    whole = delivery._context.spawn

    def spawn(name: str, step: Any, wakes: Any = None) -> Any:
        if not begun:
            begun.append(None)
            shop.put(b"handler", 1)
        made = whole(name, step, wakes)
        begun.append(made)
        return made

    delivery._context = attrs.evolve(delivery._context, spawn=spawn)
    # In a thread, since a lock that it waits for would never be released.
    thread = threading.Thread(target=shop.put, args=[b"main", 1], daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    # The handler's thread is the one, and the other one has ended.
    assert delivery._worker is begun[1] is not begun[2]
    shop.run(after_ms=1000)
    assert sorted(shop.bodies()) == [b"handler", b"main"]


def test_the_thread_begins_at_opening_only_if_messages_wait(shop: Shop) -> None:
    shop.put(b"x", 1)
    shop.close()
    shop.open()
    assert shop.has_thread
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]
    shop.close()
    shop.open()
    assert not shop.has_thread


def test_a_put_wakes_the_thread_only_if_it_sleeps_for_longer(shop: Shop) -> None:
    shop.put(b"x", 5)
    assert shop.run() == 10
    assert not shop.is_woken_by(4), "30 s is after the next look"
    assert shop.is_woken_by(1)
    assert shop.run() == 1
    assert not shop.is_woken_by(1), "it is due when the thread wakes, or after that"


def test_a_message_that_is_expected_before_it_is_stored_is_not_late(shop: Shop) -> None:
    """The service hears of a message before the store has it: the put may still be running."""
    shop.put(b"first", 1)
    shop.delivery.expect(2)
    assert shop.run(after_ms=1000) == 1, "the progress is to be saved"
    shop.clock.now_ms += 3000
    assert shop.run() == 1
    shop.put(b"second", 1)
    assert shop.run(after_ms=1000) == 1
    assert shop.bodies() == [b"first", b"second"]


def test_what_is_due_within_a_moment_is_delivered_together(shop: Shop) -> None:
    shop.put(b"x", 1)
    shop.clock.now_ms += 3
    shop.put(b"y", 1)
    assert shop.run(after_ms=997) == pytest.approx(0.010)
    shop.run(after_ms=10)
    assert shop.bodies() == [b"x", b"y"]


def test_the_extension_reports_figures(shop: Shop) -> None:
    shop.put(b"x", 1)
    shop.put(b"y", 18)
    assert shop.delivery.waiting() == {1: 1, 18: 1}
    shop.run(after_ms=1000)
    extension = shop.store.extension("messaging")
    assert extension.stats()["delays"] == {
        "delivered": 1,
        "skipped": 0,
        "waiting": 1,
        "trouble": None,
    }


# --- many


@pytest.mark.slow
def test_many_thousand_that_are_due_at_once_are_all_delivered_in_order(shop: Shop) -> None:
    count = 5000
    for first in range(0, count, 500):
        shop.store.put_many(
            [Message("orders", b"%d" % n, delay_level=1 + n % 2) for n in range(first, first + 500)]
        )
    shop.clock.now_ms += 3_600_000
    rounds = 0
    while shop.delivery.waiting():
        assert shop.run() is not None
        rounds += 1
    assert rounds <= 4, "1000 of each level in a round"
    found = [int(body) for body in shop.bodies()]
    assert [n for n in found if n % 2 == 0] == [*range(0, count, 2)]
    assert [n for n in found if n % 2] == [*range(1, count, 2)]


def test_large_messages_are_delivered_a_few_at_a_time(shop: Shop) -> None:
    shop.settings = {"geometry.segment_bytes": 16 << 20}
    body = bytes(1 << 20)
    for _ in range(10):
        shop.put(body, 1)
    assert shop.run(after_ms=1000) == 0, "there is more"
    assert 3 <= len(shop.bodies()) <= 4
    while shop.run() == 0:
        pass
    assert len(shop.bodies()) == 10


# --- restarts and progress


def test_a_restart_continues_where_the_last_writer_stopped(shop: Shop) -> None:
    for number in range(6):
        shop.put(b"%d" % number, 1)
        shop.clock.now_ms += 500
    shop.run()
    before = shop.bodies()
    assert before == [b"0", b"1", b"2", b"3", b"4"]
    shop.close()
    assert shop.saved() == {"1": 5}
    shop.open()
    shop.run(after_ms=1000)
    assert shop.bodies() == [*before, b"5"]


def test_a_message_that_became_due_while_no_process_ran_is_delivered_at_once(shop: Shop) -> None:
    shop.put(b"x", 18)
    shop.close()
    shop.clock.now_ms += 365 * 24 * 3_600_000
    shop.open()
    shop.run()
    assert shop.bodies() == [b"x"]


def test_the_progress_is_saved_a_second_after_a_delivery_and_the_copies_are_durable_first(
    shop: Shop,
) -> None:
    shop.settings = {"flush.async.interval_ms": 3_600_000}
    shop.put(b"x", 1)
    assert shop.run(after_ms=1000) == SAVE_MS / 1000
    assert shop.saved() == {}
    end = shop.store.stats()["log_end_offset"]
    assert shop.store.stats()["flushed_offset"] < end
    shop.run(after_ms=SAVE_MS)
    assert shop.saved() == {"1": 1}
    assert shop.store.stats()["flushed_offset"] == end


def test_what_a_killed_writer_delivered_and_did_not_save_is_not_delivered_again(shop: Shop) -> None:
    for body in (b"a", b"b"):
        shop.put(body, 1)
        shop.run(after_ms=1000)
        shop.run(after_ms=SAVE_MS)
    shop.put(b"c", 1)
    shop.run(after_ms=1000)
    shop.kill()
    shop.open()
    shop.run()
    assert shop.bodies() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("table", "start"),
    [('{1:9}', 4), ('{1:9223372036854775807}', 4), ('{1:-5}', 0), ('{1:"x"}', 0), ('{1:2}', 2), ("{}", 0), ('{2:1}', 0)],
)  # fmt: skip
def test_broken_progress_is_moved_into_the_queue(shop: Shop, table: str, start: int) -> None:
    for number in range(4):
        shop.put(b"%d" % number, 1)
    shop.close()
    (shop.root / "config").mkdir(exist_ok=True)
    (shop.root / "config" / "delayOffset.json").write_text('{"offsetTable":' + table + "}")
    shop.open()
    shop.put(b"4", 1)
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"%d" % number for number in range(start, 5)]


@pytest.mark.slow
def test_progress_before_the_first_message_left_is_moved_to_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention has deleted the first messages, delivered or not."""
    body = bytes(1000)
    for _ in range(300):
        shop.put(body, 1)
    shop.store.flush()
    assert shop.store.discard_before(log_offset=150_000) > 0
    left = shop.store.max_offset(SCHEDULE_TOPIC) - shop.store.min_offset(SCHEDULE_TOPIC)
    assert 0 < left < 300
    shop.run(after_ms=1000)
    assert len(shop.bodies()) == left
    assert shop.delivery.stats()["skipped"] == 0
    assert "delay level 1" not in caplog.text, "nothing was said to be delivered"


def test_with_a_table_that_cannot_be_read_no_message_is_lost_or_delivered_twice(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"x", 1)
    shop.run(after_ms=1000)
    shop.close()
    for path in (shop.root / "config").iterdir():
        path.write_text("{")
    shop.open()
    assert "delivered again" in caplog.text
    shop.run()
    assert shop.bodies() == [b"x"]


def test_what_waits_is_known_without_the_writer(shop: Shop) -> None:
    for _ in range(3):
        shop.put(b"x", 1)
    shop.put(b"y", 7)
    shop.run(after_ms=1000)
    shop.put(b"z", 1)
    shop.close()
    with open_store(shop.root, read_only=True) as reader:
        offsets = DelayOffsets(make_context(shop.root))
        offsets.load()
        assert waiting(reader, offsets) == {1: 1, 7: 1}
        assert WORKER not in shop.workers.by_name or reader.read_only


# --- clocks


def test_a_clock_that_jumps_ahead_delivers_at_the_next_look(shop: Shop) -> None:
    shop.put(b"x", 18)
    assert shop.run() == 10
    shop.run(after_ms=10 * 365 * 24 * 3_600_000)
    assert shop.bodies() == [b"x"]


def test_a_clock_that_jumps_back_delivers_what_was_stored_later_than_now(shop: Shop) -> None:
    for number in range(600):
        shop.put(b"%d" % number, 1 + number % 2)
    shop.clock.now_ms -= 3_600_000
    pause = shop.run()
    while pause is not None and pause < 0.1:
        pause = shop.run(after_ms=10)
    assert len(shop.bodies()) == 600


def test_after_a_clock_jumped_back_new_messages_wait_their_delay(shop: Shop) -> None:
    """Store times do not decrease, so a message that is put now has the store time of the one before, an hour ahead."""
    shop.store.put("orders", b"first")
    shop.clock.now_ms -= 3_600_000
    shop.put(b"x", 2)
    assert shop.store.read(SCHEDULE_TOPIC, 1).messages[0].store_time_ms > shop.clock.now_ms
    assert shop.run() == 5
    shop.run(after_ms=4999)
    assert shop.bodies() == [b"first"]
    shop.run(after_ms=1)
    assert shop.bodies() == [b"first", b"x"]


def test_a_clock_that_jumps_back_a_little_delays_by_that_much(shop: Shop) -> None:
    shop.put(b"x", 2)
    shop.clock.now_ms += 3000
    shop.run()
    shop.clock.now_ms -= 2000
    shop.run(after_ms=3999)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    assert shop.bodies() == [b"x"]


@pytest.mark.parametrize("level", [3, 5, 18])
@pytest.mark.parametrize("step_ms", [1, 200])
def test_a_message_stored_after_the_round_took_its_time_waits(
    shop: Shop, level: int, step_ms: int
) -> None:
    """A round read the clock once; what was stored a moment later came at once, as if the clock had gone back."""
    delay = delay_ms(level)
    shop.clock.now_ms += step_ms
    shop.put(b"x", level)
    shop.clock.now_ms -= step_ms
    shop.run()
    shop.run(after_ms=delay + step_ms - 1)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    assert shop.bodies() == [b"x"]


def test_records_that_are_not_read_yet_are_not_taken_for_due(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the times of queue entries say nothing, records are read, a number of them at a time."""
    monkeypatch.setattr(delivery, "_RECORDS_MAX", 2)
    for number in range(3):
        shop.put(b"%d" % number, 1)
    shop.run(after_ms=1000)
    assert len(shop.bodies()) == 3
    shop.clock.now_ms += HOUR
    for number in range(3, 5):
        shop.put(b"%d" % number, 1)
    shop.clock.now_ms -= HOUR
    shop.put(b"late", 1)
    for _ in range(4):
        shop.run()
    assert shop.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    for _ in range(2):
        shop.run(after_ms=1000)
    assert shop.bodies()[5:] == [b"late"]


HOUR, NOW = 3_600_000, 1_700_000_000_000


@pytest.mark.parametrize(
    ("stored", "born", "code", "expected"),
    [
        (NOW + HOUR, NOW + HOUR, NOW + HOUR + 1000, NOW),
        (NOW + 900, NOW + 900, NOW + 1900, NOW + 1900),
        (NOW + 3, NOW - HOUR, NOW + 1003, NOW + 1003),
        (NOW + 3, NOW + HOUR, NOW + 1003, NOW + 1003),
        (NOW + HOUR, NOW - 300, NOW + HOUR + 1000, NOW + 700),
        (NOW - 10, NOW - 10, NOW + HOUR, NOW + HOUR),
        (NOW - 10, NOW - 10, 1 << 62, NOW + 990),
        (NOW - 10, NOW - 10, -5, NOW + 990),
        (NOW - 10, NOW - 10, NOW - HOUR, NOW + 990),
    ],
    ids=[
        "clock went back",
        "a little",
        "a little, of an old message",
        "a little, of a producer ahead",
        "put after that",
        "longer level",
        "corrupt",
        "missing",
        "too early",
    ],
)
def test_when_a_message_is_due_whose_entry_has_an_odd_time(
    tmp_path: Path, stored: int, born: int, code: int, expected: int
) -> None:
    with open_store(tmp_path, clock=ManualClock(stored), spawn=ManualWorkers()) as store:
        store.put("t", b"", born_time_ms=born)
        assert due_time_ms(store.read("t").messages[0], code, 1, NOW) == expected


# --- what cannot be delivered


def put_waiting(shop: Shop, body: bytes, text: bytes, queue: int = 0) -> None:
    shop.store.put_copies([(Message(SCHEDULE_TOPIC, body, queue=queue), text)])


def target(topic: bytes = b"orders", level: bytes = b"1") -> bytes:
    return b"DELAY\x01" + level + b"\x02REAL_TOPIC\x01" + topic + b"\x02REAL_QID\x010\x02"


@pytest.mark.parametrize(
    "text",
    [b"", b"TAGS\x01t\x02", target(b"RMQ_SYS_TRANS_HALF_TOPIC"), target(b"a/b"), target(SCHEDULE_TOPIC.encode()),
     b"DELAY\x011\x02REAL_TOPIC\x01t\x02REAL_QID\x01x\x02"],
)  # fmt: skip
def test_a_message_without_a_valid_destination_is_passed_over_with_a_warning(
    shop: Shop, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put_waiting(shop, b"bad", text)
    shop.put(b"good", 1)
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"good"]
    assert (
        "delay level 1: not delivered, and passed over: the message at log offset 0" in caplog.text
    )
    assert shop.delivery.stats()["skipped"] == 1
    undelivered = "%DLQ%penstock-undelivered"
    assert shop.store.topics() == {SCHEDULE_TOPIC: [0], "orders": [0], undelivered: [0]}
    assert [each.body for each in shop.store.scan(undelivered)] == [b"bad"]


def test_a_refused_topic_is_passed_over_and_the_rest_of_the_batch_is_delivered(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def check(topic: str, queue: int) -> None:
        asked.append((topic, queue))
        if topic == "gone":
            raise penstock.TopicError(topic, "it was deleted")

    with open_store(shop.root, clock=shop.clock, spawn=shop.workers, extensions=[]) as store:
        context = make_context(shop.root, clock=shop.clock, spawn=shop.workers)
        delivery = Delivery(context, save_ms=1, check=check)
        texts = [target(b"gone"), target(), target(b"gone"), target()]
        for number, text in enumerate(texts):
            store.put_copies([(Message(SCHEDULE_TOPIC, b"%d" % number), text)])
        shop.clock.now_ms += 1000
        delivery.attach(store)
        shop.workers.run(WORKER)
        assert [m.body for m in store.scan("orders")] == [b"1", b"3"]
        assert asked == [("gone", 0), ("orders", 0)] * 2
        assert delivery.stats()["skipped"] == 2
        assert "it was deleted; and 1 more" in caplog.text
        delivery.detach()


def test_a_copy_that_is_over_a_limit_of_now_is_delivered(shop: Shop) -> None:
    """The limit for bodies was lowered while the message waited; it is one for callers."""
    for size in (10, 5000, 10):
        shop.put(bytes(size), 1)
    shop.close()
    shop.settings = {"log.body_bytes_max": 1000}
    shop.clock.now_ms += 1000
    shop.open()
    shop.run()
    assert [len(body) for body in shop.bodies()] == [10, 5000, 10]
    shop.close()
    assert shop.saved() == {"1": 3}


def test_a_corrupt_record_is_passed_over(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    receipts = [shop.store.put("orders", b"body %d" % n, delay_level=1) for n in range(3)]
    segment = next((shop.root / "commitlog").iterdir())
    at = segment.read_bytes().index(b"body 1", receipts[1].log_offset)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"B")
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"body 0", b"body 2"]
    assert "1 of the messages 0 to 2 are gone or corrupt" in caplog.text


@pytest.mark.slow
def test_a_lost_queue_file_does_not_hold_back_its_level(shop: Shop) -> None:
    shop.settings = {"retention.use": []}
    for number in range(450):
        shop.put(b"%d" % number, 1)
    shop.close()
    with open_store(shop.root, clock=shop.clock, spawn=shop.workers) as store:
        files = sorted((shop.root / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir())
        assert len(files) == 3
        files[1].unlink()
        shop.clock.now_ms += 1000
        while (pause := shop.workers.run(WORKER)) is not None and pause < 0.5:
            shop.clock.now_ms += 10
        found = [int(m.body) for m in store.scan("orders")]
    assert found[:200] == [*range(200)]
    assert found[-50:] == [*range(400, 450)]


def test_a_queue_of_a_broker_with_more_levels_is_delivered(shop: Shop) -> None:
    put_waiting(shop, b"x", target(level=b"25"), queue=24)
    shop.close()
    shop.clock.now_ms += 7_200_000
    shop.open()
    assert shop.has_thread
    shop.run()
    assert shop.bodies() == [b"x"]
    shop.close()
    assert shop.saved() == {"25": 1}


# --- failures


def test_a_full_disk_holds_messages_back_and_loses_none(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.settings = {"alloc.use": "on-demand"}
    body = bytes(40_000)
    shop.put(body, 1)
    shop.put(body, 1)
    shop.files.plan.fail("create", errno.ENOSPC, path="new-0000")
    for _ in range(3):
        assert shop.run(after_ms=1000) == 1
    assert shop.bodies() == []
    assert caplog.text.count("cannot be delivered now") == 1
    assert shop.delivery.stats()["trouble"]
    shop.files.plan.heal()
    shop.run(after_ms=1000)
    assert len(shop.bodies()) == 2
    assert shop.delivery.stats()["trouble"] is None


def test_a_failed_store_ends_delivery_and_the_next_opening_goes_on(shop: Shop) -> None:
    shop.put(b"x", 1)
    shop.put(b"y", 2)
    shop.store.flush()
    shop.run(after_ms=1000)
    shop.files.plan.fail("sync", path="commitlog")
    with pytest.raises(penstock.StoreFailedError):
        shop.store.flush()
    assert shop.run(after_ms=5000) is None
    opened, shop.opened = shop.opened, None
    assert opened is not None
    with pytest.raises(penstock.StoreFailedError):
        opened.close()
    assert shop.saved() == {}, "nothing counts as delivered whose copy is not durable"
    shop.files.plan.heal()
    shop.open()
    shop.run()
    assert set(shop.bodies()) == {b"x", b"y"}


def test_progress_that_cannot_be_saved_is_tried_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"x", 1)
    shop.run(after_ms=1000)
    shop.files.plan.fail("rename", path="delayOffset")
    assert shop.run(after_ms=SAVE_MS) == 1
    assert shop.saved() == {}
    assert "cannot be delivered now" in caplog.text
    shop.files.plan.heal()
    shop.run(after_ms=1000)
    assert shop.saved() == {"1": 1}


def test_a_close_whose_save_fails_says_so_and_closes(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"x", 1)
    shop.run(after_ms=1000)
    shop.files.plan.fail("rename", path="delayOffset")
    shop.close()
    assert "may deliver some of them again" in caplog.text
    shop.files.plan.heal()
    assert shop.open().recovery is not None


def test_a_message_expected_after_the_end_starts_no_thread(shop: Shop) -> None:
    delivery = shop.delivery
    shop.close()
    delivery.expect(1)
    delivery.detach()
    assert not shop.has_thread
    assert delivery.stats()["waiting"] == 0


@pytest.mark.slow
def test_delivery_works_with_real_threads(tmp_path: Path) -> None:
    """No manual workers: the thread is started, woken by the put, delivers after a second, and ends with the store."""
    with penstock.open(tmp_path, environ={}) as store:
        store.put("orders", b"x", delay_level=1)
        message = next(store.scan("orders", follow=True))
        waited_ms = message.store_time_ms - message.born_time_ms
    assert message.body == b"x"
    assert waited_ms >= 1000


def test_warnings_name_no_module(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        put_waiting(shop, b"bad\x1b", target(b"\x1b"))
        shop.clock.now_ms += 1000
        shop.close()
        shop.open()
        shop.run()
    assert "\x1b" not in caplog.text
