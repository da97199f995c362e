"""What the store writes later of a message fits when the message is accepted: other stores accept it, and lose the copy."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.conftest import messages_in
from tests.shop import Shop

import penstock
from penstock import Message, MessageError, MessageTooLargeError
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.properties_text import COPY_BYTES
from penstock_messaging.retries.copies import UNDELIVERED, dead_letter_topic, retry_topic
from penstock_messaging.retries.dead_letters import replay

LONG_TOPIC, LONG_GROUP = "t" * 255, "g" * 120
LIMIT = 32_767
CHECKSUMS = ("crc32", "crc32+record")
HOUR_MS = 3_600_000
DELAYS: list[dict[str, Any]] = [{"delay_level": 1}, {"delay": 1}]


@pytest.fixture(params=CHECKSUMS)
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path / "s", settings={"log.checksum": request.param, "log.long_topics": True})
    yield made
    made.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Shop]:
    # Of a segment, so that the limit of a body is that of a record.
    sizes = {"geometry.segment_bytes": 65_536, "log.body_bytes_max": 65_536}
    made = Shop(tmp_path / "s", settings=sizes)
    yield made
    made.close()


def largest(accepts: Callable[[int], object], high: int = LIMIT) -> int:
    """Return the largest size that is accepted; what is larger is refused with the bytes to spare."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        try:
            accepts(middle)
            low = middle
        except MessageTooLargeError:
            high = middle - 1
    return low


def accepted_body(store: Any, topic: str, high: int = 70_000) -> int:
    return largest(lambda size: store.lowlevel.check(Message(topic, bytes(size), queue=0)), high)


@pytest.mark.parametrize("topic", ["t", LONG_TOPIC])
@pytest.mark.parametrize("delay", [{"delay_level": 18}, {"delay": HOUR_MS / 1000}])
def test_a_delayed_message_that_is_accepted_is_delivered(
    opened: Shop, topic: str, delay: dict[str, Any]
) -> None:
    def put(size: int) -> None:
        opened.store.put(topic, b"%d" % size, properties={"a": "v" * size}, **delay)

    size = largest(put)
    assert size > LIMIT - 800
    with pytest.raises(MessageTooLargeError, match=r"has [0-9]+ bytes, the limit is [0-9]+"):
        put(size + 1)
    count = len(messages_in(opened.store, "SCHEDULE_TOPIC_XXXX", queue=17)) + len(opened.store.delayed())  # fmt: skip
    opened.later(2 * HOUR_MS)
    found = [int(each.body) for each in opened.store.scan(topic)]
    assert (len(found), max(found)) == (count, size)


@pytest.mark.parametrize("topic", ["t", LONG_TOPIC])
def test_a_prepared_message_that_is_accepted_is_checked_and_committed(
    opened: Shop, topic: str
) -> None:
    opened.settings["check_back"] = lambda _: answers.pop()
    answers: list[str | None] = ["commit", None]

    def prepare(size: int) -> None:
        held = opened.store.prepare(topic, b"x", group="p", properties={"a": "v" * size})
        if size != kept:
            held.rollback()

    kept = -1
    kept = largest(prepare)
    prepare(kept)
    assert kept > LIMIT - 900
    opened.later(2 * HOUR_MS)
    assert [each.checks for each in opened.store.prepared()] == [1]
    opened.later(2 * HOUR_MS)
    assert [len(each.properties["a"]) for each in opened.store.scan(topic)] == [kept]


@pytest.mark.parametrize("group", ["g", LONG_GROUP])
def test_a_refused_message_is_a_retry_or_a_dead_letter_that_can_be_replayed(
    small: Shop, group: str
) -> None:
    size = accepted_body(small.store, "t")
    small.store.put("t", bytes(size), queue=0)
    with small.store.consumer(group, "t") as consumer:
        consumer.nack(consumer.gather())
    small.later(2 * HOUR_MS)
    with small.store.consumer(group, "t") as consumer:
        (again,) = consumer.gather()
        assert (len(again.body), again.attempt, again.topic) == (size, 2, "t")
    with small.store.consumer(group, "t", max_retries=1) as consumer:
        consumer.nack(consumer.gather())
    small.later(2 * HOUR_MS)
    assert [len(each.body) for each in small.store.scan(dead_letter_topic(group))] == [size]
    for to_topic, topic in ((False, retry_topic(group)), (True, "t")):
        before = small.store.max_offset(topic, 0)
        assert replay(small.store, group, to_topic=to_topic, start=0) == 1
        assert small.store.max_offset(topic, 0) == before + 1


def test_what_another_program_stored_to_the_last_byte_is_read_and_given_up_visibly(
    small: Shop,
) -> None:
    size = largest(
        lambda n: small.store.lowlevel.check(Message("t", bytes(n), queue=0), b""), 70_000
    )
    assert size > accepted_body(small.store, "t")
    small.store.lowlevel.put_copies([(Message("t", bytes(size), queue=0), b"")])
    with small.store.consumer(LONG_GROUP, "t") as consumer:
        (message,) = consumer.gather()
        assert len(message.body) == size
        consumer.nack(message)
    small.later(2 * HOUR_MS)
    (letter,) = small.store.scan(dead_letter_topic(LONG_GROUP))
    assert letter.properties["FAILURE_REASON"] == "no room for the body"
    assert small.store.get(message.message_id).body == message.body
    assert replay(small.store, LONG_GROUP) == 0


def test_every_way_to_put_leaves_room_for_copies(small: Shop) -> None:
    store = small.store
    size = accepted_body(store, "t")

    def in_transaction(body: bytes) -> None:
        with store.transaction() as transaction:
            transaction.put("t", body, queue=0)

    ways: list[Callable[[bytes], object]] = [
        lambda body: store.put("t", body, queue=0),
        lambda body: store.put("t", body, queue=None),
        lambda body: store.put_many([Message("t", body, queue=0)]),
        in_transaction,
    ]
    for put in ways:
        put(bytes(size))
        with pytest.raises(MessageTooLargeError, match="shorten the message by 1 bytes"):
            put(bytes(size + 1))
    assert store.max_offset("t", 0) + store.max_offset("t", 1) == len(ways)


def test_one_prepared_message_that_cannot_be_committed_does_not_stop_the_others(
    plain: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    plain.settings["check_back"] = lambda _: "commit"
    plain.store.create_topic("closed")
    for topic in ("closed", "open"):
        plain.store.prepare(topic, b"x", group="p")
    plain.store.alter_topic("closed", perm=4)
    plain.later(2 * HOUR_MS)
    assert plain.store.max_offset("open", 0) == 1
    (left,) = plain.store.prepared()
    assert left.topic == "closed"
    assert "perm 4 lacks 2, write" in left.reason
    assert left.reason in caplog.text
    (shown,) = run("transactions", plain.root, "--json").rows
    assert shown["reason"] == left.reason
    plain.store.alter_topic("closed", perm=6)
    plain.later(2 * HOUR_MS)
    assert plain.store.max_offset("closed", 0) == 1


def test_the_reserve_of_a_record_is_enough_for_all_that_is_added() -> None:
    assert MessagingExtension.record_reserve >= COPY_BYTES


def test_without_the_extension_a_record_may_fill_a_segment(small: Shop) -> None:
    store = small.open(**{"extensions.use": []})
    size = accepted_body(store, "t")
    assert store.put("t", bytes(size), queue=0).size == 65_536 - 8
    with pytest.raises(MessageError):
        store.put("t", bytes(size + 1), queue=0)


# --- what cannot be delivered stays visible with its reason: a line in a log is no place to keep a message


@pytest.mark.parametrize(
    ("target", "letters"),
    [("%RETRY%g", dead_letter_topic("g")), ("%RETRY%../g", dead_letter_topic(UNDELIVERED))],
)
def test_what_another_program_stored_is_kept_whatever_it_says(
    plain: Shop, target: str, letters: str
) -> None:
    text = f"DELAY\x011\x02REAL_TOPIC\x01{target}\x02REAL_QID\x01none\x02".encode()
    plain.store.lowlevel.put_copies(
        [(penstock.Message("SCHEDULE_TOPIC_XXXX", b"x", queue=0), text)]
    )
    plain.store.put("t", b"y", queue=0, delay_level=1)
    plain.later(2 * HOUR_MS)
    assert [each.body for each in plain.store.scan("t")] == [b"y"]
    (letter,) = plain.store.scan(letters)
    assert letter.properties["FAILURE_REASON"]


@pytest.mark.parametrize("delay", DELAYS)
def test_it_is_a_dead_letter_and_the_others_are_delivered(
    plain: Shop, delay: dict[str, Any]
) -> None:
    plain.store.create_topic("closed")
    for topic in ("open", "closed", "open"):
        plain.store.put(topic, topic.encode(), tag="a", **delay)
    plain.store.alter_topic("closed", perm=4)
    plain.later(2 * HOUR_MS)
    assert [each.body for each in plain.store.scan("open")] == [b"open"] * 2
    (letter,) = plain.store.scan(dead_letter_topic(UNDELIVERED))
    assert (letter.body, letter.tag, letter.reconsume_times) == (b"closed", "a", 0)
    assert "perm 4 lacks 2, write" in letter.properties["FAILURE_REASON"]
    plain.store.alter_topic("closed", perm=6)
    assert replay(plain.store, UNDELIVERED, to_topic=True) == 1
    assert [each.body for each in plain.store.scan("closed")] == [b"closed"]


def test_a_round_that_fails_after_a_dead_letter_and_is_repeated_makes_no_second_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, workers, files = ManualClock(), ManualWorkers(), FaultyFiles()
    with open_store(
        tmp_path / "s", clock=clock, spawn=workers, files=files, write="file", retention=[]
    ) as store:
        store.create_topic("closed")
        for topic in ("closed", "open"):
            store.put(topic, b"x", queue=0, delay_level=1)
        store.alter_topic("closed", perm=4)
        clock.now_ms += HOUR_MS
        files.plan.fail("pwrite", errno.ENOSPC, path="commitlog", after=1, times=1)
        for _ in range(4):
            workers.run("penstock-deliver")
            clock.now_ms += HOUR_MS
        assert "delayed messages cannot be delivered now" in caplog.text, "the goal of this test"
        assert store.max_offset("open", 0) == 1
        assert store.max_offset(dead_letter_topic(UNDELIVERED), 0) == 1
