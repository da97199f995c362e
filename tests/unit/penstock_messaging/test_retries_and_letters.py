"""Refused messages: the writer takes journals in, makes one retry of each as a broker would, or a dead letter, which can be replayed."""

import errno
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.shop import Shop
from tests.unit.penstock_messaging.group_services import (
    GROUP,
    SETTINGS,
    TOPIC,
    retries_of,
    services,
    take,
)

from penstock import Message, MessageError, Store, StoredMessage, StoreFailedError
from penstock.format.record import CRC_PROPERTY_SIZE, PROPERTIES_BYTES_MAX
from penstock.testing import FaultyFiles, KilledError, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.delays.schedule import delivered
from penstock_messaging.groups import intake as module
from penstock_messaging.groups.entries import GROUP_SETTING
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.intake import Intake
from penstock_messaging.groups.marks import read_marks
from penstock_messaging.groups.members import Membership
from penstock_messaging.groups.taking import Groups
from penstock_messaging.properties_text import RETRY_TOPIC, pairs_of, stored_text
from penstock_messaging.retries.copies import (
    Origin,
    dead_letter_topic,
    first_topic,
    lesser_letters,
    origin,
    retry_copy,
    retry_level,
    retry_topic,
)
from penstock_messaging.retries.dead_letters import Replayed, replay
from penstock_messaging.retries.stored_retries import StoredRetries

WAITING = "SCHEDULE_TOPIC_XXXX"

# --- journals are taken in


class Bench:
    """A store with twenty messages in each of two queues, its groups, and the service that takes their journals in."""

    def __init__(self, store: Store, files: FaultyFiles) -> None:
        self.store, self.files = store, files
        self.groups: Groups
        self.intake: Intake
        self.groups, self.intake = services(store, files, ManualClock())

    def take_in(self) -> None:
        self.intake.take_all()

    def committed(self, queue: int = 0, group: str = GROUP) -> int | None:
        return self.store.committed_offset(group, TOPIC, queue)

    def position(self) -> Position | None:
        return self.groups.position(GROUP, TOPIC, 0)

    def again(self) -> "Bench":
        """Return another service, as after a kill of the first."""
        return Bench(self.store, self.files)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    files = FaultyFiles()
    with open_store(tmp_path / "store", files=files, spawn=ManualWorkers(), **SETTINGS) as store:
        for number in range(40):
            store.put(TOPIC, b"%d" % (number // 2), queue=number % 2)
        yield Bench(store, files)


def test_all_queues_are_committed_in_one_write_and_nothing_new_in_none(bench: Bench) -> None:
    counts = bench.files.plan.counts
    for queue in (0, 1):
        take(bench.groups, queue=queue).ack([0], 0)
    bench.take_in()
    for queue in (0, 1):
        for name in ("g1", "g2"):
            take(bench.groups, queue=queue, group=name)
    counts.clear()
    bench.take_in()
    # For each group: marks, consumerOffset.json.bak and consumerOffset.json; for the first group, that its offsets were written.
    assert counts["rename"] == 2 * 3 + 1
    assert (bench.committed(0), bench.committed(1)) == (1, 1)
    bench.take_in()
    counts.clear()
    bench.take_in()
    assert counts.get("pwrite", 0) == 0


def test_more_refusals_than_one_round_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if three were the thousands that are taken at a time.
    monkeypatch.setattr(module, "_NACKS_MAX", 3)
    monkeypatch.setattr(module, "_COPY_BYTES", 3)
    for queue in (0, 1):
        owned = take(bench.groups, queue=queue)
        for offset in range(8):
            owned.nack(offset, 0, GROUP_SETTING, 0)
    bench.take_in()
    assert retries_of(bench.store) == {str(n): 2 for n in range(8)}
    assert (bench.committed(0), bench.committed(1)) == (8, 8)


@pytest.mark.parametrize("point", range(1, 40, 3))
def test_after_a_kill_at_any_call_there_is_one_retry(bench: Bench, point: int) -> None:
    owned = take(bench.groups)
    owned.ack([0], 0)
    owned.nack(1, 0, GROUP_SETTING, 0)
    bench.files.plan.die_at(point)
    with suppress(KilledError):
        bench.again().take_in()
    bench.files.plan.heal()
    bench.again().take_in()
    assert retries_of(bench.store) == {"1": 1}
    assert bench.committed() == 2


def test_what_is_beyond_a_queue_is_dropped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    owned = take(bench.groups)
    owned.ack([0, 25, 30], 0)
    owned.nack(40, 0, GROUP_SETTING, 0)
    owned.hand_back()
    bench.take_in()
    assert "lost" in caplog.text
    assert (bench.committed(), retries_of(bench.store)) == (1, {})
    owned = take(bench.groups)
    assert owned.position == Position(1)
    # An owner that is beyond it loses the queue.
    owned.ack([1, 30], 1)
    bench.take_in()
    assert bench.committed() == 2
    assert read_marks(bench.files, bench.groups.paths(GROUP))[TOPIC, 0].generation == 1
    owned.hand_back()
    assert take(bench.groups).position == Position(2)


def test_what_cannot_be_retried_is_noted_and_does_not_hold_up_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = take(bench.groups)
    for offset in range(5):
        owned.nack(offset, 0, GROUP_SETTING, 0)
    put, read = bench.store.lowlevel.put_copies, bench.store.read

    def picky(copies: Any) -> Any:
        refused = (b"1", b"2") if copies[0][0].topic == WAITING else (b"2",)
        if any(copy.body in refused for copy, _ in copies):
            raise MessageError("too large")
        return put(copies)

    def without_the_last(topic: str, queue: int, offset: int, limit: int) -> Any:
        return read(topic, queue, 20 if offset == 4 else offset, limit)

    monkeypatch.setattr(bench.store.lowlevel, "put_copies", picky)
    monkeypatch.setattr(bench.store, "read", without_the_last)
    bench.take_in()
    monkeypatch.undo()
    assert "offset 1 of queue orders/0 is a dead letter now" in caplog.text
    assert "offset 2 of queue orders/0 can be stored neither" in caplog.text
    assert "offset 4 of queue orders/0 was refused, and is not retried: it is deleted or corrupt" in caplog.text  # fmt: skip
    assert retries_of(bench.store) == {"0": 1, "3": 1}
    assert [each.body for each in bench.store.read(f"%DLQ%{GROUP}", 0).messages] == [b"1"]


def test_a_failure_is_noted_and_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    owned = take(bench.groups)
    owned.ack([0], 0)
    bench.files.plan.fail("rename", errno.ENOSPC, path="consumerOffset")
    assert bench.intake.step() == bench.intake.step() == module.INTERVAL_S
    assert caplog.text.count("No space left") == 1
    bench.files.plan.heal()
    # Taken in; then that it was; then nothing is left, and it rests until it is woken.
    assert [bench.intake.step() for _ in range(3)] == [module.GAP_S, module.GAP_S, None]
    assert bench.committed() == 1
    member = Membership(bench.files, bench.groups.paths(GROUP), TOPIC, 0, {})
    member.join()
    assert bench.intake.step() == module.INTERVAL_S
    member.leave()
    assert bench.intake.step() is None


def test_a_queue_or_a_group_that_cannot_be_taken_in_does_not_hold_up_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """One journal that could not be synced, or a folder in place of a group's marks, kept all others from brokers."""
    owners = [take(bench.groups, queue=queue) for queue in (0, 1)]
    for owned in owners:
        owned.ack([0], 0)
        owned.nack(1, 0, GROUP_SETTING, 1)
    bench.files.plan.fail("sync", path="0.journal")
    with caplog.at_level(logging.WARNING):
        bench.take_in()
        bench.take_in()
        # It is tried again although nobody wakes the writer.
        bench.intake.step()
        assert bench.intake.step() == module.INTERVAL_S
    assert caplog.text.count("not taken in yet") == 1
    assert (bench.committed(0), bench.committed(1)) == (None, 2)
    bench.files.plan.heal()
    bench.take_in()
    assert (bench.committed(0), bench.committed(1)) == (2, 2)
    assert retries_of(bench.store) == {"1": 2}
    take(bench.groups, group="a").ack([0], 0)
    take(bench.groups, group="b").ack([0, 1], 0)
    marks = bench.groups.paths("a").marks
    marks.mkdir()
    with pytest.raises(OSError, match="regular file"):
        bench.take_in()
    assert (bench.committed(group="a"), bench.committed(group="b")) == (None, 2)
    marks.rmdir()
    bench.take_in()
    assert bench.committed(group="a") == 1


# --- what a broker stores when a group refuses a message: spec section 3.2 of the broker


@pytest.fixture
def store(shop: Shop) -> Store:
    return shop.store


def put(store: Store, message: Message, text: bytes) -> StoredMessage:
    return store.at(store.lowlevel.put_copies([(message, text)])[0].log_offset)


def refuse(store: Store, message: StoredMessage, **options: Any) -> StoredMessage:
    made = retry_copy(message, "CGR2", **options)
    assert made is not None
    return put(store, *made)


def test_the_sequence_that_was_measured_at_a_broker(store: Store) -> None:
    """T8 with one retry at level 1: waits, is retried, is a dead letter."""
    first = put(
        store,
        Message("T8", b"body", queue=2, flag=5, born_time_ms=77, born_host="10.1.1.1:8"),
        b"a\x01b\x02",
    )
    waiting = refuse(store, first, level=1, max_tries=1)
    expected = {
        b"a": b"b", b"RETRY_TOPIC": b"T8", b"ORIGIN_MESSAGE_ID": first.message_id.encode(), b"WAIT": b"false",
        b"DELAY": b"1", b"REAL_TOPIC": b"%RETRY%CGR2", b"REAL_QID": b"0",
    }  # fmt: skip
    assert (waiting.topic, waiting.queue, waiting.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 0, 1)
    assert list(pairs_of(stored_text(waiting)).items()) == list(expected.items())
    retried = put(store, *delivered(waiting))
    assert (retried.topic, retried.queue, retried.reconsume_times) == ("%RETRY%CGR2", 0, 1)
    assert stored_text(retried) == stored_text(waiting)
    dead = refuse(store, retried, level=1, max_tries=1)
    assert (dead.topic, dead.queue, dead.reconsume_times) == ("%DLQ%CGR2", 0, 2)
    assert pairs_of(stored_text(dead)) == expected | {b"DELAY": b"0"}
    for copy in (waiting, retried, dead):
        assert (copy.body, copy.flag, copy.born_time_ms, copy.born_host, copy.prepared_offset) == (b"body", 5, 77, "10.1.1.1:8", 0)  # fmt: skip


def test_sixteen_tries_wait_longer_each_time_and_end_as_a_dead_letter(store: Store) -> None:
    message = put(store, Message("T", b"", queue=0), b"")
    first_id, levels = message.message_id, []
    for tries in range(16):
        assert origin(message) == Origin(first_id, tries)
        waiting = refuse(store, message)
        levels.append(waiting.queue + 1)
        assert pairs_of(stored_text(waiting))[b"DELAY"] == b"%d" % levels[-1]
        message = put(store, *delivered(waiting))
        assert (message.topic, first_topic(message)) == ("%RETRY%CGR2", "T")
    assert levels == [*range(3, 19)]
    dead = refuse(store, message)
    assert (dead.topic, dead.reconsume_times, first_topic(dead)) == ("%DLQ%CGR2", 17, "T")
    assert origin(dead) == Origin(first_id, 17)


def test_the_level_and_the_number_of_queues_are_the_requested_ones(store: Store) -> None:
    message = put(store, Message("T", b"", queue=0), b"")
    for level, queue in ((None, 2), (0, 2), (1, 0), (18, 17), (19, 17), (1 << 70, 17)):
        assert refuse(store, message, level=level).queue == queue
    for tries in (0, 3):
        tried = put(store, Message("T", b"", queue=0, reconsume_times=tries), b"")
        dead = refuse(store, tried, level=-1)
        assert (dead.topic, dead.reconsume_times) == (dead_letter_topic("CGR2"), tries + 1)
        assert b"REAL_TOPIC" not in pairs_of(stored_text(dead))
    for queues_ in (0, -1):
        assert retry_copy(message, "g", retry_queues=queues_) is None
        assert retry_copy(message, "g", level=-1, retry_queues=queues_) is None
    # Retries are spread over the queues, and one that is made twice is the same.
    messages = [put(store, Message("T", b"", queue=0), b"") for _ in range(64)]
    copies = [retry_copy(each, "g", retry_queues=4) for each in messages]
    assert copies == [retry_copy(each, "g", retry_queues=4) for each in messages]
    chosen = {pairs_of(copy[1])[b"REAL_QID"] for copy in copies if copy}
    assert chosen == {b"0", b"1", b"2", b"3"}
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_the_first_topic_and_id_stay_and_what_a_record_may_hold_is_copied(store: Store) -> None:
    given = b"RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01AB\x02", (b"first", b"AB")
    nothing = b"ORIGIN_MESSAGE_ID\x01  \x02", (b"T", None)
    hostile = b"RETRY_TOPIC\x01\xff\x02", (b"\xff", None)
    for text, (topic, first_id) in (given, nothing, hostile):
        message = put(store, Message("T", b"", queue=0), text)
        pairs = pairs_of(stored_text(refuse(store, message)))
        assert pairs[b"RETRY_TOPIC"] == topic
        assert pairs[b"ORIGIN_MESSAGE_ID"] == (first_id or message.message_id.encode())
    named = refuse(store, put(store, Message("T", b"", queue=0), b""), message_id="77")
    assert pairs_of(stored_text(named))[b"ORIGIN_MESSAGE_ID"] == b"77"
    # A count at the field's end, a committed transaction, a compressed body, a tag.
    most, text = (1 << 31) - 1, b"TAGS\x01t\x02KEYS\x01k\x02"
    dead = refuse(
        store, put(store, Message("T", b"z", queue=0, reconsume_times=most, sys_flag=0x9), text)
    )
    assert (dead.reconsume_times, dead.sys_flag, dead.tag, dead.keys) == (most, 0x9, "t", ("k",))
    negative = put(store, Message("T", b"", queue=0, reconsume_times=-5), b"")
    assert (refuse(store, negative).queue, retry_level(-5)) == (2, 3)


def test_a_letter_with_little_room_gives_up_one_property_after_the_other(store: Store) -> None:
    message = put(store, Message("T8", b"body", queue=0), b"a\x01b\x02WAIT\x01true\x02")
    retry = retry_copy(message, "g")
    assert retry is not None
    forms = list(lesser_letters(message, "g", retry))
    assert forms.pop()[0].body == b""
    assert {(copy.topic, copy.queue, copy.body, copy.reconsume_times) for copy, _ in forms} == {("%DLQ%g", 0, b"body", 1)}  # fmt: skip
    assert [list(pairs_of(text)) for _, text in forms] == [
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DELAY", b"FAILURE_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"DELAY", b"FAILURE_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"FAILURE_REASON"],
        [b"a", b"WAIT", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"],
        [b"a", b"WAIT", b"RETRY_TOPIC"],
        [b"a", b"WAIT"],
        [b"a", b"WAIT"],
        [b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"FAILURE_REASON"],
    ]
    assert pairs_of(forms[0][1])[b"WAIT"] == b"false"
    assert forms[5][1] == forms[6][1] == stored_text(message)
    assert origin(put(store, *forms[-1])) == Origin(message.message_id, 1)


# --- by the group's configuration


def test_retries_are_made_as_the_group_says(shop: Shop) -> None:
    shop.store.put("orders", b"x", queue=0, tag="t")
    (refused,) = shop.store.scan("orders")
    groups = shop.messaging.configuration.groups
    retries = StoredRetries(shop.messaging.configuration, shop.messaging.delivery)

    def made(level: int | None, tries: int | None) -> Message:
        copy = retries.copy(refused, "billing", level, tries)
        assert copy is not None
        return copy[0]

    assert retries.origin(refused) == (refused.message_id, 0)
    copy = made(2, None)
    assert (copy.topic, copy.queue, copy.reconsume_times) == (WAITING, 1, 1)
    assert shop.store.topic_configs(system=True).keys() == {"orders", "%RETRY%billing", WAITING}
    for level, tries in ((-1, None), (None, 0)):
        assert made(level, tries).topic == "%DLQ%billing"
    assert "%DLQ%billing" in shop.store.topic_configs()
    groups.alter("billing", retry_max=0)
    assert made(None, None).topic == "%DLQ%billing"
    groups.alter("billing", retry_queues=0)
    assert retries.copy(refused, "billing", None, None) is None


@pytest.mark.parametrize("room", range(0, 80, 8))
def test_a_message_without_room_for_a_retry_becomes_a_dead_letter(
    room: int, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """It was dropped with an error: neither a retry nor a dead letter had it."""
    own = b"note\x01" + b"x" * (PROPERTIES_BYTES_MAX - CRC_PROPERTY_SIZE - 6 - room) + b"\x02"
    shop.store.lowlevel.put_copies(
        [(Message("orders", b"full", queue=0), own), (Message("orders", b"next", queue=0), b"")]
    )
    with shop.store.consumer("billing", ["orders"]) as consumer:
        consumer.nack(consumer.poll(2, 0))
    shop.step("penstock-intake")
    assert shop.store.max_offset(WAITING, 2) == 1
    (letter,) = shop.store.scan("%DLQ%billing")
    assert (letter.body, letter.reconsume_times) == (b"full", 1)
    pairs = pairs_of(stored_text(letter))
    assert pairs[b"note"] == pairs_of(own)[b"note"]
    # What a replay needs is kept as long as there is room for it.
    assert (RETRY_TOPIC in pairs) == (room >= len("RETRY_TOPIC_orders_"))
    assert "offset 0 of queue orders/0 is a dead letter now" in caplog.text
    assert caplog.text.count("cannot be stored") == 1


# --- dead letters, and their replay


DLQ, RETRY = "%DLQ%billing", "%RETRY%billing"


def give_up(store: Store, count: int, *, queue: int = 0, group: str = "billing") -> None:
    """Put messages that a group gives up at once."""
    given: Any = {"tag": "t", "keys": ["k"], "properties": {"a": "b"}, "born_time_ms": 7}
    for number in range(count):
        receipt = store.put("orders", b"%d" % number, queue=queue, **given)
        made = retry_copy(store.at(receipt.log_offset), group, level=-1)
        assert made is not None
        store.lowlevel.put_copies([made])


def done(store: Store, **options: Any) -> list[tuple[int, str, int, str]]:
    found: list[Replayed] = []
    count = replay(store, "billing", on_batch=found.extend, **options)
    assert count == sum(not each.reason for each in found)
    return [(each.offset, each.topic, each.queue, each.reason) for each in found]


def test_a_replay_begins_the_retries_again_or_puts_the_message_as_it_was(store: Store) -> None:
    give_up(store, 1, queue=2)
    assert done(store) == [(0, RETRY, 0, "")]
    assert done(store, to_topic=True, start=0) == [(0, "orders", 2, "")]
    first, again = store.read("orders", 2).messages
    assert stored_text(first) == stored_text(again)
    assert (again.body, again.reconsume_times, again.flag) == (b"0", 0, first.flag)
    (copy,) = store.scan(RETRY)
    assert (copy.body, copy.tag, copy.keys, copy.born_time_ms) == (b"0", "t", ("k",), 7)
    assert origin(copy) == Origin(first.message_id, 0)
    own = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": first.message_id}
    assert copy.properties == {"a": "b", **own}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "does not say"),
        (b"RETRY_TOPIC\x01a/b\x02", "'/'"),
        (b"RETRY_TOPIC\x01\xff\x00\x02", "control"),
    ],
)
def test_a_letter_that_cannot_be_put_back_stays(store: Store, text: bytes, reason: str) -> None:
    give_up(store, 1)
    store.lowlevel.put_copies([(Message(DLQ, b"odd", queue=0), text)])
    give_up(store, 1)
    found = done(store, to_topic=True)
    assert [(each[0], each[1]) for each in found] == [(0, "orders"), (1, ""), (2, "orders")]
    assert reason in found[1][3]


@pytest.mark.slow
@pytest.mark.parametrize("point", range(1, 14))
def test_a_killed_replay_goes_on_and_repeats_at_most_a_batch(tmp_path: Path, point: int) -> None:
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as store:
        give_up(store, 150)
    files = FaultyFiles()
    killed = open_store(tmp_path / "s", files=files, spawn=ManualWorkers())
    files.plan.die_at(point)
    with suppress(KilledError):
        replay(killed, "billing")
    copy = copy_store(tmp_path / "s", tmp_path / "copy")
    files.plan.heal()
    # It has failed, if the clean-up of a put was cut short.
    with suppress(StoreFailedError):
        killed.close()
    with open_store(copy, spawn=ManualWorkers()) as store:
        replay(store, "billing")
        found = [int(m.body) for m in store.scan(RETRY)]
    assert sorted(set(found)) == [*range(150)]
    assert len(found) <= 250
