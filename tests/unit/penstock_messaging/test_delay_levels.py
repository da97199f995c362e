"""Messages with a delay level: stored and delivered as by a broker, each once, with progress that is saved after the copies are durable."""

import json
from pathlib import Path

import pytest
from tests.shop import Shop

import penstock
from penstock import Message, MessageError
from penstock.testing import make_context, open_store
from penstock_messaging.delays import delivery
from penstock_messaging.delays.delay_offsets import DelayOffsets, text_of_table
from penstock_messaging.delays.delivery import Delivery, due_time_ms, waiting
from penstock_messaging.delays.levels import (
    LEVEL_MAX,
    SCHEDULE_TOPIC,
    clamped,
    delay_ms,
    level_of,
    queue_of,
)
from penstock_messaging.delays.schedule import delivered, destination, scheduled
from penstock_messaging.properties_text import pairs_of, stored_text

WORKER = "penstock-deliver"
SAVE_MS, HOUR = 1000, 3_600_000
NOW = 1_700_000_000_000


class DelayShop(Shop):
    """A store with delayed messages."""

    def put(self, body: bytes, level: int, queue: int = 0) -> None:
        self.store.put("orders", body, queue=queue, delay_level=level)

    def put_waiting(self, body: bytes, text: bytes, queue: int = 0) -> None:
        """Put what another program has stored."""
        self.store.lowlevel.put_copies([(Message(SCHEDULE_TOPIC, body, queue=queue), text)])

    def run(self, *, after_ms: int = 0) -> float | None:
        return self.step(WORKER, after_ms)

    @property
    def has_thread(self) -> bool:
        return WORKER in self.workers.by_name

    @property
    def delivery(self) -> Delivery:
        return self.messaging.delivery

    def saved(self) -> dict[str, int]:
        path = self.root / "config" / "delayOffset.json"
        found: dict[str, int] = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
        return found


SHOP = DelayShop


# --- what is stored: spec section 1.2 of the broker


def accept(message: Message) -> None:
    """Refuse nothing."""


def test_the_levels_are_those_of_a_broker() -> None:
    # RocketMQ's messageDelayLevel.
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    seconds = {"s": 1, "m": 60, "h": 3600}
    expected = [int(text[:-1]) * seconds[text[-1]] * 1000 for text in levels.split(" ")]
    assert [delay_ms(level) for level in range(1, LEVEL_MAX + 1)] == expected
    # One that is none waits for a second, and one above the last is the last.
    assert [delay_ms(level) for level in (-1, 0, 19, 1000)] == [1000] * 4
    assert [clamped(level) for level in (1, 18, 19, 1 << 40)] == [1, 18, 18, 18]
    assert [queue_of(1), queue_of(18)] == [0, 17]
    assert all(level_of(queue_of(level)) == level for level in range(1, 40))


def test_a_delayed_message_waits_with_its_topic_and_queue_in_its_properties() -> None:
    message = Message(
        "T1", b"body", queue=3, tag="t", keys=["a", "b"], properties={"x": "y"}, delay_level=1,
        flag=7, born_time_ms=5, born_host="10.0.0.1:99", reconsume_times=2, wait=False, sys_flag=8,
    )  # fmt: skip
    waiting, text = scheduled(message, accept)
    assert waiting == Message(
        "SCHEDULE_TOPIC_XXXX", b"body", queue=0, flag=7, born_time_ms=5, born_host="10.0.0.1:99",
        reconsume_times=2, wait=False, sys_flag=8,
    )  # fmt: skip
    assert text == (
        b"TAGS\x01t\x02KEYS\x01a b\x02x\x01y\x02DELAY\x011\x02REAL_TOPIC\x01T1\x02REAL_QID\x013\x02"
    )
    for level in (1, 18):
        waiting, text = scheduled(Message("t", b"", queue=0, delay_level=level), accept)
        assert (waiting.queue, pairs_of(text)[b"DELAY"]) == (level - 1, b"%d" % level)
    # One above 18 was taken for 18, which is two hours.
    for level in (-1, 19, 99, 1 << 62):
        with pytest.raises(MessageError, match=rf"delay_level {level} is refused: .* 1 to 18"):
            scheduled(Message("t", b"", queue=0, delay_level=level), accept)


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
def test_the_copy_has_the_text_and_the_birth_of_the_message(shop: DelayShop, checksum: str) -> None:
    shop.settings = {"log": {"checksum": checksum}}
    sent = Message(
        "T1", b"body", queue=3, tag="t", properties={"n": "1"}, delay_level=4, flag=-7,
        born_time_ms=5, born_host="[::1]:99", reconsume_times=2,
    )  # fmt: skip
    waiting, text = scheduled(sent, accept)
    message = shop.stored(waiting, text)
    copy = delivered(message)
    assert copy[1] == text
    after = shop.stored(*copy)
    assert (after.topic, after.queue, after.body, after.tag) == ("T1", 3, b"body", "t")
    assert stored_text(after) == stored_text(message)
    for each in (message, after):
        assert (each.flag, each.sys_flag, each.born_time_ms) == (-7, 0x10, 5)
        assert (each.born_host, each.reconsume_times) == ("[::1]:99", 2)


NOWHERE = [
    (b"REAL_QID\x010\x02", "empty"),
    (b"REAL_TOPIC\x01t\x02", "REAL_QID b''"),
    (b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02", "not the number"),
    (b"REAL_TOPIC\x01t\x02REAL_QID\x01" + b"9" * 5000 + b"\x02", "not the number"),
    (b"REAL_TOPIC\x01t\x02REAL_QID\x01999999999\x02", "65535"),
    (b"REAL_TOPIC\x01../x\x02REAL_QID\x010\x02", "'/'"),
    (b"REAL_TOPIC\x01\xff\x02REAL_QID\x010\x02", "not UTF-8"),
    (b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02", "nothing is delivered"),
    (b"REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010\x02", "nothing is delivered"),
    (b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02", "nothing is delivered"),
]


@pytest.mark.parametrize(("text", "reason"), [*NOWHERE, (b"", "empty")])
def test_a_message_without_a_valid_destination_is_passed_over_with_a_warning(
    shop: DelayShop, text: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(MessageError, match=reason):
        destination(pairs_of(text))
    shop.put_waiting(b"bad", text)
    shop.put(b"good", 1)
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"good"]
    passed = "delay level 1: not delivered, and passed over: the message at log offset 0"
    assert passed in caplog.text
    assert shop.delivery.stats()["skipped"] == 1
    assert shop.bodies("%DLQ%penstock-undelivered") == [b"bad"]


# --- when: spec section 1.3 of the broker, and where it differs


@pytest.mark.parametrize("level", [1, 2, 5, 18])
def test_a_message_is_delivered_when_its_delay_is_over(shop: DelayShop, level: int) -> None:
    delay = delay_ms(level)
    shop.put(b"x", level)
    assert shop.bodies() == []
    assert shop.run() == min(delay / 1000, 10)
    shop.run(after_ms=delay - 1)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    (message,) = shop.store.scan("orders")
    own = {"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "0"}
    assert (message.body, message.all_properties) == (b"x", own)
    assert message.store_time_ms == shop.clock.now_ms


# --- the thread


def test_a_thread_runs_only_while_messages_wait_and_readers_know_how_many(shop: DelayShop) -> None:
    shop.store.put("orders", b"x", queue=0)
    shop.close()
    assert not shop.has_thread
    assert not (shop.root / "config" / "delayOffset.json").exists()
    shop.put(b"y", 1)
    shop.put(b"late", 18)
    assert [shop.has_thread] == [True]
    shop.close()
    shop.open()
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x", b"y"]
    figures = {"delivered": 1, "skipped": 0, "waiting": 1, "trouble": None}
    assert shop.messaging.stats()["delays"] == figures
    shop.close()
    with open_store(shop.root, read_only=True) as reader:
        offsets = DelayOffsets(make_context(shop.root))
        offsets.load()
        assert waiting(reader.lowlevel, offsets) == {18: 1}
    # One that becomes due while no process runs is delivered at once.
    shop.clock.now_ms += 365 * 24 * HOUR
    shop.open()
    shop.run()
    assert shop.bodies() == [b"x", b"y", b"late"]
    shop.close()
    shop.open()
    assert not shop.has_thread


def test_a_put_wakes_the_thread_only_if_it_sleeps_for_longer(shop: DelayShop) -> None:
    def is_woken_by(level: int) -> bool:
        worker.is_awake = False
        shop.put(b"x", level)
        return worker.is_awake

    shop.put(b"x", 5)
    worker = shop.workers.by_name[WORKER]
    assert shop.run() == 10
    assert not is_woken_by(4), "30 s is after the next look"
    assert is_woken_by(1)
    assert shop.run() == 1
    assert not is_woken_by(1), "it is due when the thread wakes, or after that"


# --- many


def test_large_messages_are_delivered_a_few_at_a_time_also_over_a_limit(shop: DelayShop) -> None:
    """The limit for bodies was lowered while they waited; it is one for callers."""
    shop.settings = {"geometry.segment_bytes": 16 << 20}
    body = bytes(1 << 20)
    for _ in range(10):
        shop.put(body, 1, queue=0)
        shop.clock.now_ms += 1
    shop.close()
    shop.settings["log.body_bytes_max"] = 1000
    shop.clock.now_ms += 990
    shop.open()
    assert shop.run() == 0.01, "what is due within a moment is delivered together"
    assert len(shop.bodies()) == 1
    assert shop.run(after_ms=10) == 0, "there is more"
    assert 4 <= len(shop.bodies()) <= 5
    while shop.run() == 0:
        pass
    assert len(shop.bodies()) == 10
    shop.close()
    assert shop.saved() == {"1": 10}


# --- restarts and progress


@pytest.mark.parametrize(
    ("table", "start"),
    [('{1:9}', 4), ('{1:9223372036854775807}', 4), ('{1:-5}', 0), ('{1:"x"}', 0), ('{1:2}', 2), ("{}", 0), ('{2:1}', 0)],
)  # fmt: skip
def test_broken_progress_is_moved_into_the_queue(shop: DelayShop, table: str, start: int) -> None:
    for number in range(4):
        shop.put(b"%d" % number, 1, queue=0)
    shop.close()
    (shop.root / "config").mkdir(exist_ok=True)
    (shop.root / "config" / "delayOffset.json").write_text('{"offsetTable":' + table + "}")
    shop.open()
    shop.put(b"4", 1)
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"%d" % number for number in range(start, 5)]


def test_with_a_table_that_cannot_be_read_no_message_is_lost_or_delivered_twice(
    shop: DelayShop, caplog: pytest.LogCaptureFixture
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


# --- clocks


def test_what_is_not_read_yet_is_not_due(shop: DelayShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the times of queue entries say nothing, records are read, a number of them at a time."""
    # As if two were the thousands that are read at a time.
    monkeypatch.setattr(delivery, "_RECORDS_MAX", 2)
    for number in range(3):
        shop.put(b"%d" % number, 1, queue=0)
    shop.run(after_ms=1000)
    assert len(shop.bodies()) == 3
    shop.clock.now_ms += HOUR
    for number in range(3, 5):
        shop.put(b"%d" % number, 1, queue=0)
    shop.clock.now_ms -= HOUR
    shop.put(b"late", 1)
    for _ in range(4):
        shop.run()
    assert shop.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    for _ in range(2):
        shop.run(after_ms=1000)
    assert shop.bodies()[5:] == [b"late"]


ODD_TIMES = {
    "clock went back": (NOW + HOUR, NOW + HOUR, NOW + HOUR + 1000, NOW),
    "a little": (NOW + 900, NOW + 900, NOW + 1900, NOW + 1900),
    "a little, of an old message": (NOW + 3, NOW - HOUR, NOW + 1003, NOW + 1003),
    "a little, of a producer ahead": (NOW + 3, NOW + HOUR, NOW + 1003, NOW + 1003),
    "put after that": (NOW + HOUR, NOW - 300, NOW + HOUR + 1000, NOW + 700),
    "longer level": (NOW - 10, NOW - 10, NOW + HOUR, NOW + HOUR),
    "corrupt": (NOW - 10, NOW - 10, 1 << 62, NOW + 990),
    "missing": (NOW - 10, NOW - 10, -5, NOW + 990),
    "too early": (NOW - 10, NOW - 10, NOW - HOUR, NOW + 990),
}


@pytest.mark.parametrize("case", ODD_TIMES)
def test_when_a_message_is_due_whose_entry_has_an_odd_time(shop: DelayShop, case: str) -> None:
    stored, born, code, expected = ODD_TIMES[case]
    shop.clock.now_ms = stored
    shop.store.put("t", b"", queue=0, born_time_ms=born)
    assert due_time_ms(shop.store.read("t", 0).messages[0], code, 1, NOW) == expected


# --- what cannot be delivered


def test_a_corrupt_record_is_passed_over(shop: DelayShop, caplog: pytest.LogCaptureFixture) -> None:
    receipts = [shop.store.put("orders", b"body %d" % n, queue=0, delay_level=1) for n in range(3)]
    segment = next((shop.root / "commitlog").iterdir())
    at = segment.read_bytes().index(b"body 1", receipts[1].log_offset)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"B")
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"body 0", b"body 2"]
    assert "1 of the messages 0 to 2 are gone or corrupt" in caplog.text


def test_a_level_above_18_is_delivered(shop: DelayShop, caplog: pytest.LogCaptureFixture) -> None:
    text = b"DELAY\x0125\x02REAL_TOPIC\x01%s\x02REAL_QID\x010\x02"
    shop.put_waiting(b"x", text % b"orders", queue=24)
    shop.put_waiting(b"bad\x1b", text % b"\x1b")
    shop.close()
    shop.clock.now_ms += 2 * HOUR
    shop.open()
    shop.run()
    assert shop.bodies() == [b"x"]
    shop.close()
    assert shop.saved() == {"1": 1, "25": 1}
    assert "\x1b" not in caplog.text


# --- failures


def test_a_failed_store_ends_delivery_and_the_next_opening_goes_on(shop: DelayShop) -> None:
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


def test_progress_that_cannot_be_saved_is_tried_again_and_said_at_the_close(
    shop: DelayShop, caplog: pytest.LogCaptureFixture
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
    shop.put(b"y", 1)
    shop.run(after_ms=1000)
    shop.files.plan.fail("rename", path="delayOffset")
    delivery = shop.delivery
    shop.close()
    assert "may deliver some of them again" in caplog.text
    # A message that is announced after the end starts no thread.
    shop.workers.by_name.clear()
    delivery.expect(1)
    delivery.detach()
    assert not shop.has_thread
    assert delivery.stats()["waiting"] == 0


# --- delayOffset.json


FORM_4 = '{\n\t"offsetTable":{1:3,3:1\n\t}\n}'
VERSION = '"dataVersion":{\n\t\t"counter":4,\n\t\t"stateVersion":2,\n\t\t"timestamp":17\n\t}'
FORM_5 = "{\n\t" + VERSION + ',\n\t"offsetTable":{1:3,3:1\n\t}\n}'


def given(root: Path, content: str | bytes | None = None, spare: str | None = None) -> DelayOffsets:
    """Return the table of a store with these files."""
    config = root / "config"
    config.mkdir(parents=True, exist_ok=True)
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (config / "delayOffset.json").write_bytes(data)
    if spare is not None:
        (config / "delayOffset.json.bak").write_text(spare)
    offsets = DelayOffsets(make_context(root))
    offsets.load()
    return offsets


def text(root: Path, name: str = "delayOffset.json") -> str:
    return (root / "config" / name).read_text()


def test_the_forms_of_all_brokers_are_read_and_kept(tmp_path: Path) -> None:
    quoted = FORM_4.replace("1:", '"1":').replace("3:", '"3":')
    for form in (FORM_4, FORM_5, quoted):
        offsets = given(tmp_path, form)
        assert (offsets.get(1), offsets.get(3), offsets.get(2)) == (3, 1, 0)
        # It is the same.
        offsets.set(1, 3)
        assert (offsets.known(), offsets.problem, offsets.is_saved) == ([1, 3], "", True)
    offsets = given(tmp_path, FORM_5.replace("{\n", '{\n"zeta":["\\ud800"],"alpha":null,', 1))
    offsets.set(18, 7)
    offsets.save()
    version = VERSION.replace("4", "5").replace("17", "1700000000000")
    table = '"offsetTable":{"1":3,"3":1,"18":7\n\t}'
    zeta = '"zeta":[\n\t\t"\\ud800"\n\t]'
    assert text(tmp_path) == f'{{\n\t"alpha":null,\n\t{version},\n\t{table},\n\t{zeta}\n}}'
    assert 'counter":4' in text(tmp_path, "delayOffset.json.bak")
    # A new file has no version.
    new = given(tmp_path / "new")
    new.set(1, 3)
    new.set(3, 1)
    assert [new.is_saved] == [False]
    new.save()
    assert new.is_saved
    assert text(tmp_path / "new") == '{\n\t"offsetTable":{"1":3,"3":1\n\t}\n}'
    assert not (tmp_path / "new" / "config" / "delayOffset.json.bak").exists()
    assert text_of_table({"offsetTable": {}}) == '{\n\t"offsetTable":{}\n}'
    assert text_of_table({}) == "{}"


ODD = [
    '"x":1', '"01":1', '"-1":1', '"0":1', '"2":-1', '"2":1.5', '"2":true', '"2":"4"', '"2":9223372036854775808',
    '"2":null', f'"{"9" * 5000}":1', f'"2":{"9" * 5000}', '"²":1',
]  # fmt: skip


@pytest.mark.parametrize("entry", ODD)
def test_an_entry_that_is_no_offset_is_not_used_and_stays(
    tmp_path: Path, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = given(tmp_path, '{"offsetTable":{"1":3,' + entry + "}}")
    assert offsets.known() == [1]
    assert "is not used" in caplog.text
    offsets.set(4, 9)
    offsets.save()
    name, value = entry.split(":")
    assert f"{name}:" in text(tmp_path)
    assert value.strip('"') in text(tmp_path)


BROKEN: list[str | bytes] = [
    "", "{", "[]", "null", '{"offsetTable":[]}', b"\xff\xfe", "[" * 100_000, '{"a":' * 50_000, "\0" * 4096,
]  # fmt: skip


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_kept_and_its_spare_is_used(tmp_path: Path, content: str | bytes) -> None:
    assert given(tmp_path, content, "{").known() == []
    assert "delivered again" in given(tmp_path).problem
    offsets = given(tmp_path, content, FORM_4)
    assert offsets.get(1) == 3
    assert "delayOffset.json cannot be read" in offsets.problem
    assert "delayOffset.json.bak is used" in offsets.problem
    offsets.set(1, 4)
    offsets.save()
    kept = (tmp_path / "config" / "delayOffset.json.unreadable").read_bytes()
    assert kept == (content if isinstance(content, bytes) else content.encode())
    assert text(tmp_path, "delayOffset.json.bak") == FORM_4
    again = given(tmp_path)
    assert (again.get(1), again.get(3), again.problem) == (4, 1, "")
    # A broker that is killed while it writes may leave only the spare.
    (tmp_path / "config" / "delayOffset.json").unlink()
    assert (given(tmp_path).get(1), given(tmp_path).problem) == (3, "")
