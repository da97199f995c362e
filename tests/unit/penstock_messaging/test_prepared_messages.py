"""Prepared messages: committed once or rolled back, over closes and kills, and the program is asked about those that it left open."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.shop import Shop

import penstock
from penstock import Message, Store, StoredMessage, errors
from penstock.contracts import Prepared
from penstock.message import Durability
from penstock.testing import InlineWorkers, open_store
from penstock_messaging.prepared import open_halves
from penstock_messaging.prepared.half_message import (
    DISCARD_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PROGRESS_GROUP,
    checked_again,
    committed,
    discarded,
    facts_of,
    half_message,
    is_commit_of,
    refuse_delays,
    removal,
    removed_by,
)
from penstock_messaging.prepared.half_queue import messages_from, progress, read_open, removals_done
from penstock_messaging.prepared.open_halves import OpenHalves
from penstock_messaging.properties_text import pairs_of, text_of

WORKER = "penstock-check-back"
IMMUNITY_MS, INTERVAL_MS = 6000, 30_000


class HalfShop(Shop):
    """A store with prepared messages, about which the test is asked if it `asks`."""

    asks = False
    given: Any = None

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: dict[bytes, Any] = {}
        self.asked: list[bytes] = []

    def ask(self, prepared: Prepared) -> Any:
        self.asked.append(prepared.message.body)
        answer = self.answers.get(prepared.message.body)
        return answer(prepared) if callable(answer) else answer

    def open(self, **more: Any) -> Store:
        if self.asks:
            self.settings["check_back"] = self.given or self.ask
        return super().open(**more)

    def prepare(self, body: bytes = b"x", group: str = "shop", **more: Any) -> Prepared:
        return self.store.prepare("orders", body, group=group, **{"queue": 0, **more})

    def run(self, after_ms: int = 0) -> float | None:
        assert not self.store.read_only
        return self.step(WORKER, after_ms)

    def open_bodies(self) -> list[bytes]:
        return [each.message.body for each in self.store.prepared()]

    @property
    def halves(self) -> OpenHalves:
        return self.messaging.halves


SHOP = HalfShop


@pytest.fixture
def asked(shop: HalfShop) -> HalfShop:
    """The same, whose program is asked."""
    shop.asks = True
    return shop


# --- the records: what a broker writes, and what hostile ones say


def test_a_half_message_names_where_it_goes_and_its_commit_has_its_text(shop: HalfShop) -> None:
    message = Message(
        "orders", b"body", queue=3, tag="t", keys=("k", "l"), properties={"a": "b"}, flag=7,
        born_time_ms=5, born_host="10.0.0.1:99",
    )  # fmt: skip
    copy, text = half_message(message, "shop", "AB" * 16)
    assert (copy.topic, copy.queue, copy.sys_flag) == (HALF_TOPIC, 0, 0)
    assert pairs_of(text) == {
        b"TAGS": b"t", b"KEYS": b"k l", b"a": b"b", b"UNIQ_KEY": b"AB" * 16, b"__transactionId__": b"AB" * 16,
        b"TRAN_MSG": b"true", b"PGROUP": b"shop", b"REAL_TOPIC": b"orders", b"REAL_QID": b"3",
    }  # fmt: skip
    half = shop.stored(copy, text)
    assert facts_of(half) == ("AB" * 16, "shop", "orders", 3, 0, None, -1)
    commit, same = committed(half)
    assert same == text
    assert commit == Message(
        "orders", b"body", queue=3, flag=7, born_time_ms=5, born_host="10.0.0.1:99", wait=False,
        sys_flag=8, prepared_offset=half.log_offset,
    )  # fmt: skip
    again, more = checked_again(half, 2)
    assert again.topic == HALF_TOPIC
    assert more == text + b"TRANSACTION_CHECK_TIMES\x012\x02"
    dropped, same = discarded(half)
    assert (dropped.topic, dropped.queue, same) == (DISCARD_TOPIC, 0, text)


def test_what_the_store_says_itself_and_a_delay_are_refused(shop: HalfShop) -> None:
    """A broker would delay the half message itself, and never deliver it."""
    for name in ("PGROUP", "REAL_TOPIC", "TRAN_MSG", "UNIQ_KEY", "TRANSACTION_CHECK_TIMES"):
        with pytest.raises(errors.MessageError, match=f"{name} .*nothing was stored"):
            shop.prepare(properties={name: "1"})
    delays: list[dict[str, Any]] = [{"properties": {"TIMER_DELAY_SEC": "5"}}, {"delay_level": 3}]
    for more in [*delays, {"properties": {"DELAY": "1"}}]:
        with pytest.raises(errors.MessageError, match="nothing was stored"):
            refuse_delays(Message("orders", b"x", **more))
    with pytest.raises(errors.MessageError, match="both prepared and delayed"):
        shop.prepare(delay_level=3)
    assert shop.open_bodies() == []


NOWHERE: list[tuple[dict[bytes, bytes], str]] = [
    ({}, "topic"), ({b"REAL_TOPIC": b"a/b", b"REAL_QID": b"0"}, "'/'"), ({b"REAL_TOPIC": b"\xff"}, "UTF-8"),
    ({b"REAL_TOPIC": HALF_TOPIC.encode(), b"REAL_QID": b"0"}, "nothing is committed"),
    ({b"REAL_TOPIC": b"rmq_sys_wheel_timer", b"REAL_QID": b"0"}, "nothing is committed"),
    ({b"REAL_TOPIC": b"t", b"REAL_QID": b"-1"}, "REAL_QID"), ({b"REAL_TOPIC": b"t", b"REAL_QID": b"9" * 5000}, "REAL_QID"),
    ({b"REAL_TOPIC": b"t", b"REAL_QID": b"70000"}, "queue"),
]  # fmt: skip


def test_what_another_program_has_written_is_understood_or_refused(shop: HalfShop) -> None:
    def half_with(properties: Mapping[bytes, bytes]) -> StoredMessage:
        return shop.stored(Message(HALF_TOPIC, b"x", queue=0), text_of(properties))

    for properties, reason in NOWHERE:
        with pytest.raises(errors.MessageError, match=reason):
            committed(half_with(properties))
    odd = {
        b"REAL_QID": b"x", b"TRANSACTION_CHECK_TIMES": b"-4", b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"-1",
        b"TRAN_PREPARED_QUEUE_OFFSET": b"1e3", b"PGROUP": b"\xff",
    }  # fmt: skip
    half = half_with(odd)
    assert facts_of(half) == (half.message_id, "\ufffd", "", -1, 0, None, -1)
    long = half_with({b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"9" * 18})
    assert 0 < (facts_of(long).immunity_ms or 0) < 1 << 60
    short = half_with({b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"30"})
    assert facts_of(short).immunity_ms == 30_000
    # Removals of both kinds of brokers.
    copy, text = removal(42)
    assert removed_by(shop.stored(copy, text)) == [42]
    for body, found in ((b"5,", [5]), (b"0,1,", [0, 1]), (b"", []), (b"-1", []), (b"x,7", [7])):
        assert removed_by(shop.stored(Message("ops", body, queue=0), text)) == found
    assert removed_by(shop.stored(Message("ops", b"7", queue=0), b"TAGS\x01other\x02")) == []
    # A commit is known by its type and the half message's log offset.
    for sys_flag, offset, expected in ((8, 77, True), (8, 78, False), (0, 77, False), (12, 77, False)):  # fmt: skip
        message = Message("t", b"", queue=0, sys_flag=sys_flag, prepared_offset=offset)
        assert is_commit_of(shop.stored(message, b""), 77) is expected


# --- which are open, in queues as a broker and a killed process leave them


def prepare(shop: HalfShop, body: bytes, more: bytes = b"", born_ms: int = 5) -> None:
    copy, text = half_message(
        Message("orders", body, queue=0, born_time_ms=born_ms), "shop", body.decode()
    )
    shop.store.lowlevel.put_copies([(copy, text + more)])


def finish(shop: HalfShop, body: bytes) -> None:
    shop.store.lowlevel.put_copies([(Message(OP_TOPIC, body, queue=0), removal(0)[1])])


def open_ones(shop: HalfShop) -> list[tuple[str, int]]:
    return [(half.facts.transaction_id, half.offset) for half in read_open(shop.store.lowlevel)]


def test_what_no_removal_names_is_open(shop: HalfShop) -> None:
    assert open_ones(shop) == []
    assert progress(shop.store.lowlevel, HALF_TOPIC) == 0
    for body in (b"a", b"b", b"c", b"d", b"e"):
        prepare(shop, body)
    finish(shop, b"1")
    finish(shop, b"3,4,")
    assert open_ones(shop) == [("a", 0), ("c", 2)]
    shop.store.commit_offset(PROGRESS_GROUP, HALF_TOPIC, 0, offset=2)
    assert progress(shop.store.lowlevel, HALF_TOPIC) == 2
    assert open_ones(shop) == [("c", 2)]
    shop.store.commit_offset(PROGRESS_GROUP, OP_TOPIC, 0, offset=2)
    assert open_ones(shop) == [("c", 2), ("d", 3), ("e", 4)]
    for n in range(598):
        finish(shop, b"%d" % (n + 2))
    assert len(list(messages_from(shop.store.lowlevel, OP_TOPIC, 7))) == 593
    assert removals_done(shop.store.lowlevel, 0, 599) == 599
    assert removals_done(shop.store.lowlevel, 500, 600) == 600


CHECKED = b"TRANSACTION_CHECK_TIMES\x011\x02"


def test_of_a_checked_message_only_the_newest_copy_is_open(shop: HalfShop) -> None:
    """A broker that is killed in a round has written the copy, and not how far it is."""
    prepare(shop, b"a")
    prepare(shop, b"b")
    prepare(shop, b"a", CHECKED)
    assert open_ones(shop) == [("b", 1), ("a", 2)]
    prepare(shop, b"a", b"TRANSACTION_CHECK_TIMES\x012\x02")
    finish(shop, b"3")
    assert open_ones(shop) == [("b", 1)]
    # Two of one id without checks are two messages: a producer has sent one again.
    prepare(shop, b"b")
    assert open_ones(shop) == [("b", 1), ("b", 4)]
    # One under immunity is finished with its first.
    prepare(shop, b"c")
    prepare(shop, b"c", b"TRAN_PREPARED_QUEUE_OFFSET\x015\x02" + CHECKED)
    finish(shop, b"5,")
    assert open_ones(shop) == [("b", 1), ("b", 4)]
    # Also of a producer whose clock is ahead: after a crash in a check both were open, and a check-back committed both.
    born_ms = shop.clock.now_ms + 5000
    prepare(shop, b"d", born_ms=born_ms)
    shop.clock.now_ms += 1000
    prepare(shop, b"d", CHECKED, born_ms=born_ms)
    assert open_ones(shop) == [("b", 1), ("b", 4), ("d", 8)]


# --- committed and rolled back


def test_a_prepared_message_is_seen_once_it_is_committed(shop: HalfShop) -> None:
    first, second = shop.prepare(b"1", queue=2, tag="t", keys=["k"]), shop.prepare(b"2")
    assert (shop.bodies(queue=2), shop.open_bodies()) == ([], [b"1", b"2"])
    receipt = first.commit()
    (message,) = shop.store.scan("orders", queue=2)
    assert (message.body, message.queue, message.tag, message.keys) == (b"1", 2, "t", ("k",))
    assert (receipt.queue, receipt.queue_offset, receipt.message_id) == (2, 0, message.message_id)
    assert message.all_properties["UNIQ_KEY"] == first.transaction_id
    for key in ("k", first.transaction_id):
        assert shop.store.find(key, "orders") == [message]
    second.rollback()
    assert (shop.bodies(), shop.open_bodies()) == ([], [])
    for prepared, outcome in ((first, "committed"), (second, "rolled back")):
        for call in (prepared.commit, prepared.rollback):
            with pytest.raises(errors.PreparedFinishedError, match=outcome) as caught:
                call()
            assert caught.value.outcome == outcome
    assert shop.store.max_offset(OP_TOPIC, 0) == 2


def test_progress_is_saved_at_a_close_as_a_broker_reads_it(shop: HalfShop) -> None:
    prepared = [shop.prepare(b"%d" % n) for n in range(5)]
    for each in (prepared[0], prepared[1], prepared[4]):
        each.commit()
    shop.kill()
    assert shop.open_bodies() == [b"2", b"3"]
    shop.close()
    with open_store(shop.root, clock=shop.clock, read_only=True) as reader:
        topics = (HALF_TOPIC, OP_TOPIC)
        # The third removal is of a message after the first open one.
        assert [reader.committed_offset(PROGRESS_GROUP, topic, 0) for topic in topics] == [2, 2]
        shown, other = reader.prepared()
        assert [shown.message.body, other.message.body] == [b"2", b"3"]
        assert (shown.age_s, shown.checks) == (0.0, 0)
        assert "of group 'shop' for 'orders'" in repr(shown)
        for call in (shown.commit, shown.rollback):
            with pytest.raises(errors.ReadOnlyError):
                call()
        with pytest.raises(errors.ReadOnlyError), shown:
            pass
        with pytest.raises(errors.ReadOnlyError):
            reader.prepare("t", b"2", group="g")
        assert reader.lowlevel.summary()[0].value["open"] == 2
    for each in shop.store.prepared():
        each.rollback()
    shop.halves.save()
    assert [shop.store.committed_offset(PROGRESS_GROUP, topic, 0) for topic in topics] == [5, 5]


@pytest.mark.parametrize("key", [b"", b"a b", b"K", b"ID", b"other"])
def test_a_commit_whose_removal_a_crash_has_cut_is_not_made_again(
    shop: HalfShop, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, of a foreign producer without a UNIQ_KEY of one word, or where very many messages have that key, too.

    The copy and the removal are one batch; a crash can leave the first without the second.
    """
    # As if three were very many.
    monkeypatch.setattr(open_halves, "_FOUND_MAX", 3)
    shop.settings = {
        "index": ["consume-queue"] if key == b"ID" else ["consume-queue", "hash-index"]
    }
    copy, text = half_message(Message("orders", b"1", queue=0), "shop", "ID")
    text = text.replace(b"UNIQ_KEY\x01ID\x02", b"UNIQ_KEY\x01%s\x02" % key if key else b"")
    shop.store.put("orders", b"0", queue=0)
    shop.prepare(b"other")
    half = shop.stored(copy, text)
    shop.store.lowlevel.put_copies([committed(half)])
    for _ in range(4):
        shop.store.put("orders", b"2", queue=0, keys=["K"])
    for _ in range(2):
        shop.kill()
        assert (shop.open_bodies(), shop.bodies(OP_TOPIC)) == ([b"other"], [b"1"])
        assert shop.bodies() == [b"0", b"1", *[b"2"] * 4]


def test_a_check_writes_a_copy_that_a_held_object_commits(shop: HalfShop) -> None:
    prepared = shop.prepare(b"1")
    (half,) = shop.halves.all()
    for _ in range(3):
        shop.halves.check_again(half)
    assert (prepared.checks, shop.store.max_offset(HALF_TOPIC, 0)) == (3, 4)
    receipt = prepared.commit()
    newest = shop.store.read(HALF_TOPIC, 0, 3, 1).messages[0]
    assert shop.store.at(receipt.log_offset).prepared_offset == newest.log_offset
    assert shop.bodies(OP_TOPIC) == [b"0", b"1", b"2", b"3"]
    with pytest.raises(errors.PreparedFinishedError):
        shop.halves.check_again(half)
    shop.kill()
    assert shop.open_bodies() == []


def test_what_cannot_be_committed_stays(shop: HalfShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.settings = {"extensions.messaging.auto_create_topics": False}
    shop.store.create_topic("orders")
    gone, full = shop.prepare(), shop.prepare(b"full")
    shop.store.delete_topic("orders")
    with pytest.raises(errors.MessageError):
        gone.commit()
    assert shop.open_bodies() == [b"x", b"full"]
    gone.rollback()
    shop.store.create_topic("orders")

    def fail(*_given: object) -> Any:
        raise errors.DiskFullError(shop.root, 1)

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.lowlevel, "put_copies", fail)
        with pytest.raises(errors.DiskFullError):
            full.commit()
    assert full.commit().queue_offset == 0
    left = shop.prepare()
    shop.close()
    with pytest.raises(errors.StoreClosedError):
        left.commit()
    assert shop.open_bodies() == [b"x"]


def test_after_an_interrupt_nothing_is_stored_twice_and_nothing_is_forgotten(
    shop: HalfShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress went beyond a message whose prepare was interrupted, so that nobody was asked about it, also not by a broker."""
    prepared, put = shop.prepare(), shop.store.lowlevel.put_copies

    def interrupted(copies: Any) -> None:
        put(copies)
        raise KeyboardInterrupt

    monkeypatch.setattr(shop.store.lowlevel, "put_copies", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared.commit()
    with pytest.raises(errors.PreparedFinishedError, match="interrupted"):
        prepared.commit()
    with pytest.raises(KeyboardInterrupt):
        shop.prepare(b"2")
    monkeypatch.undo()
    shop.prepare(b"3").rollback()
    shop.close()
    assert (shop.bodies(), shop.open_bodies()) == ([b"x"], [b"2"])


def test_a_prepare_is_durable_under_any_policy_and_a_commit_waits_as_a_put(shop: HalfShop) -> None:
    for flush, durability in (("none", Durability.ACCEPTED), ("sync", Durability.ON_DISK)):
        with open_store(shop.root.with_name(flush), flush=flush, spawn=InlineWorkers()) as store:
            prepared = store.prepare("orders", b"x", group="g")
            figures = store.stats()
            assert figures["flushed_offset"] == figures["log_end_offset"]
            assert prepared.commit().durability is durability
            prepared = store.prepare("orders", b"x", group="g", wait=False)
            figures = store.stats()
            assert (figures["flushed_offset"] < figures["log_end_offset"]) == (flush == "none")
            assert prepared.commit(wait=False).durability is Durability.ACCEPTED


# --- as a context manager


def test_an_exception_rolls_back_unless_a_check_back_knows_more(shop: HalfShop) -> None:
    """The exception may have come after the commit of the database: Ctrl-C, or an answer that was lost on its way."""
    with pytest.raises(KeyboardInterrupt), shop.prepare():
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="first") as caught, shop.prepare(b"left"):
        shop.close()
        raise ValueError("first")
    assert "is still open" in caught.value.__notes__[0]
    shop.asks, shop.given = True, {"shop": lambda _: "commit"}
    assert shop.open_bodies() == [b"left"]
    for body, group in ((b"2", "shop"), (b"3", "other")):
        with pytest.raises(ValueError, match="lost"), shop.prepare(body, group):
            raise ValueError("lost")
    assert shop.open_bodies() == [b"left", b"2"]


# --- the program is asked


def test_messages_of_an_earlier_process_are_asked_about_after_opening(asked: HalfShop) -> None:
    asked.prepare(b"old")
    asked.close()
    # A broker discards one of long ago unasked, and its row may be in the database.
    asked.clock.now_ms += 400 * 86_400_000
    asked.run()
    assert asked.asked == [b"old"]
    asked.close()
    # A clock that was set back makes nobody wait longer than the immunity.
    asked.clock.now_ms -= 10_000_000
    assert asked.open_bodies() == [b"old"]
    asked.run(IMMUNITY_MS)
    assert asked.asked == [b"old", b"old"]
    asked.prepare(b"1", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    asked.run(59_999)
    assert b"1" not in asked.asked, "a message may say how long it is not asked about"
    asked.run(1)
    assert asked.asked[-1] == b"1"


KINDS = [ValueError("no database"), SystemExit(), KeyboardInterrupt(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", KINDS)
def test_an_exception_and_an_answer_that_is_none_leave_it_open(
    asked: HalfShop, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit` in a check-back ended the thread without a word, and nobody was asked any more."""

    def fail(_prepared: Prepared) -> None:
        raise error

    asked.answers = {b"1": fail, b"2": True, b"3": "COMMIT", b"4": ["commit"], b"5": "commit"}
    for body in asked.answers:
        asked.prepare(body)
    asked.run(IMMUNITY_MS)
    assert (asked.bodies(), asked.open_bodies()) == ([b"5"], [b"1", b"2", b"3", b"4"])
    assert str(error) in caplog.text
    assert caplog.text.count("is asked again later") == 4


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_answer_from_before_a_block_is_not_used_later(asked: HalfShop, has_ended: bool) -> None:
    """The check-back found no row; then a block committed one, and ended with Ctrl-C: the message was rolled back."""

    def begin(prepared: Prepared) -> str:
        block = asked.store.prepared()[0]
        block.__enter__()
        if has_ended:
            block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        return "rollback"

    asked.answers = {b"1": begin}
    asked.prepare(b"1")
    asked.run(IMMUNITY_MS)
    assert asked.open_bodies() == [b"1"]
    with asked.prepare(b"2") as prepared:
        asked.run(IMMUNITY_MS)
        assert (asked.asked[1:], prepared.checks) == ([], 0), "nobody is asked about one in a block"


def test_a_message_is_asked_about_once_its_prepare_has_ended_in_whichever_way(
    asked: HalfShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check-back of an outbox found no row of one that was being prepared, and had it rolled back; and one whose prepare failed
    at the flush was not asked about before the next opening."""

    def interrupted() -> int:
        asked.run(IMMUNITY_MS)
        assert asked.asked == [b"0"]
        raise KeyboardInterrupt

    asked.prepare(b"0")
    with monkeypatch.context() as patch:
        patch.setattr(asked.store, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            asked.prepare(b"1")
    asked.run(IMMUNITY_MS)
    assert asked.asked == [b"0", b"1"]


def test_what_can_go_nowhere_is_discarded_in_the_end_and_what_is_deleted_at_once(
    asked: HalfShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy, text = half_message(Message("orders", b"1", queue=0), "shop", "id")
    asked.store.lowlevel.put_copies([(copy, text.replace(b"orders", b"or/ers"))])
    asked.close()
    asked.clock.now_ms += IMMUNITY_MS
    asked.answers = {b"1": "commit"}
    assert asked.run() == INTERVAL_MS / 1000, "it is asked about again, as if it had no answer"
    assert "or/ers" in str(asked.messaging.checking.stats()["trouble"])
    for _ in range(16):
        asked.run(INTERVAL_MS)
    assert (asked.open_bodies(), asked.bodies(DISCARD_TOPIC)) == ([], [b"1"])
    asked.prepare(b"2")

    def gone(log_offset: int) -> Any:
        raise errors.OffsetError(log_offset, 1000, 2000)

    # As after its retention.
    monkeypatch.setattr(asked.store, "at", gone)
    asked.run(IMMUNITY_MS)
    assert asked.store.prepared() == []
    assert "is dropped" in caplog.text


async def _wrong(_prepared: Prepared) -> None:
    """Cannot be called by a thread."""


@pytest.mark.parametrize("given", [5, "commit", {"g": 5}, {5: len}, _wrong, {"g": _wrong}])
def test_what_cannot_be_asked_is_refused_before_a_store_is_open(tmp_path: Path, given: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="check_back"):
        penstock.open(tmp_path / "s", check_back=given)
    assert not (tmp_path / "s").exists()
    with pytest.raises(errors.ConfigError, match="add one that does"):
        penstock.open(tmp_path / "s", check_back=str, extensions=[])
