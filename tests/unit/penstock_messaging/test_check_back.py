"""The check-back: when a program is asked, what its answers do, and the broker's limits; on a clock that the test sets."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import penstock
from penstock import Message, Store, aio
from penstock.contracts import Prepared
from penstock.errors import ArgumentError, ConfigError, OffsetError
from penstock.files import Files
from penstock.store.open import Opener, make_opener
from penstock.testing import ManualClock, ManualWorkers
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.prepared.check_back import Checking
from penstock_messaging.prepared.half_message import DISCARD_TOPIC, HALF_TOPIC, half_message
from penstock_messaging.prepared.open_halves import OpenHalves

WORKER = "penstock-check-back"
IMMUNITY_MS, INTERVAL_MS = 6000, 30_000


@attrs.define
class Shop:
    """A store whose check-back the test answers, and whose thread it runs."""

    root: Path
    clock: ManualClock = attrs.Factory(ManualClock)
    workers: ManualWorkers = attrs.Factory(ManualWorkers)
    answers: dict[bytes, Any] = attrs.Factory(dict)
    asked: list[bytes] = attrs.Factory(list)
    given: Any = None
    opened: Store | None = None

    def ask(self, prepared: Prepared) -> Any:
        self.asked.append(prepared.message.body)
        answer = self.answers.get(prepared.message.body)
        return answer(prepared) if callable(answer) else answer

    @property
    def store(self) -> Store:
        if self.opened is None:
            self.workers = ManualWorkers()
            self.opened = penstock.open(
                self.root, environ={}, clock=self.clock, spawn=self.workers,
                check_back=self.given or self.ask,
            )  # fmt: skip
        return self.opened

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def prepare(self, body: bytes, group: str = "shop", **more: Any) -> Prepared:
        return self.store.prepare("orders", body, group=group, **more)

    def run(self, after_ms: int) -> float | None:
        """Advance the clock and run one round; returns its pause in seconds."""
        assert not self.store.read_only
        self.clock.now_ms += after_ms
        return self.workers.run(WORKER)

    def bodies(self, topic: str = "orders") -> list[bytes]:
        return [message.body for message in self.store.scan(topic)]

    def open_bodies(self) -> list[bytes]:
        return [each.message.body for each in self.store.prepared()]

    @property
    def extension(self) -> MessagingExtension:
        extension = self.store.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        return extension

    @property
    def checking(self) -> Checking:
        return self.extension.checking

    @property
    def halves(self) -> OpenHalves:
        return self.extension.halves


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "store")
    yield made
    made.close()


def test_old_messages_are_asked_about_and_finished_by_the_answer(shop: Shop) -> None:
    shop.answers = {b"1": "commit", b"2": "rollback"}
    for body in (b"1", b"2", b"3"):
        shop.prepare(body)
    assert shop.run(IMMUNITY_MS - 1) == 0.001
    assert shop.asked == []
    assert shop.run(1) == (INTERVAL_MS - IMMUNITY_MS) / 1000, "then the progress is saved"
    assert shop.asked == [b"1", b"2", b"3"]
    assert (shop.bodies(), shop.open_bodies()) == ([b"1"], [b"3"])
    shop.run(INTERVAL_MS - 1)
    assert shop.asked[3:] == []
    shop.run(1)
    assert shop.asked[3:] == [b"3"]
    assert shop.store.prepared()[0].checks == 2
    assert shop.store.max_offset(HALF_TOPIC) == 7


def test_what_is_open_is_listed_by_age_also_after_checks(shop: Shop) -> None:
    """It was listed by its newest copy, and a check writes one at the end of the queue."""
    shop.given = {"shop": shop.ask}
    shop.prepare(b"1")
    shop.clock.now_ms += 1
    shop.prepare(b"2", group="other")
    shop.run(IMMUNITY_MS)
    assert shop.open_bodies() == [b"1", b"2"]
    shop.close()
    with penstock.open(shop.root, environ={}, read_only=True) as reader:
        assert [each.message.body for each in reader.prepared()] == [b"1", b"2"]


def test_messages_of_an_earlier_process_are_asked_about_after_opening(shop: Shop) -> None:
    shop.prepare(b"old")
    shop.close()
    shop.clock.now_ms += 100_000
    assert shop.open_bodies() == [b"old"]
    shop.run(0)
    assert shop.asked == [b"old"]
    shop.close()
    # A clock that was set back makes nobody wait longer than the immunity.
    shop.clock.now_ms -= 10_000_000
    assert not shop.store.read_only
    shop.run(IMMUNITY_MS)
    assert shop.asked == [b"old", b"old"]


def test_a_message_may_say_how_long_it_is_not_asked_about(shop: Shop) -> None:
    shop.prepare(b"1", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    shop.run(59_999)
    assert shop.asked == []
    shop.run(1)
    assert shop.asked == [b"1"]


def test_after_fifteen_checks_a_message_is_discarded(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    prepared = shop.prepare(b"1", tag="t")
    for _ in range(15):
        shop.run(INTERVAL_MS)
    assert (len(shop.asked), shop.open_bodies()) == (15, [b"1"])
    shop.run(INTERVAL_MS)
    assert (len(shop.asked), shop.open_bodies(), shop.bodies()) == (15, [], [])
    (kept,) = shop.store.scan(DISCARD_TOPIC)
    assert (kept.body, kept.tag) == (b"1", "t")
    assert kept.all_properties["UNIQ_KEY"] == prepared.transaction_id
    assert "checked 15 times" in caplog.text
    shop.close()
    assert shop.open_bodies() == []


def test_each_group_has_its_own_and_one_without_is_not_counted(shop: Shop) -> None:
    shop.given = {"shop": shop.ask}
    shop.answers = {b"1": "commit"}
    shop.prepare(b"1")
    shop.prepare(b"2", group="other")
    for _ in range(20):
        shop.run(INTERVAL_MS)
    assert (shop.asked, shop.open_bodies()) == ([b"1"], [b"2"])
    assert shop.store.prepared()[0].checks == 0


def test_an_exception_and_an_answer_that_is_none_leave_it_open(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    def fail(_prepared: Prepared) -> None:
        raise ValueError("no database")

    shop.answers = {b"1": fail, b"2": True, b"3": "COMMIT", b"4": ["commit"], b"5": "commit"}
    for body in shop.answers:
        shop.prepare(body)
    shop.run(IMMUNITY_MS)
    assert shop.open_bodies() == [b"1", b"2", b"3", b"4"]
    assert "no database" in caplog.text
    assert caplog.text.count("is asked again later") == 4


def test_the_check_back_may_finish_the_message_by_itself(shop: Shop) -> None:
    def finish(prepared: Prepared) -> str:
        prepared.rollback()
        return "commit"

    shop.answers = {b"1": finish}
    shop.prepare(b"1")
    shop.run(IMMUNITY_MS)
    assert (shop.bodies(), shop.open_bodies()) == ([], [])
    assert shop.store.stats()["failure"] is None


def test_a_message_in_a_block_is_not_asked_about(shop: Shop) -> None:
    with shop.prepare(b"1") as prepared:
        shop.run(IMMUNITY_MS)
        assert (shop.asked, prepared.checks) == ([], 0)
    assert shop.bodies() == [b"1"]


def test_an_answer_that_comes_after_a_block_has_begun_is_not_used(shop: Shop) -> None:
    def begin(prepared: Prepared) -> str:
        shop.store.prepared()[0].__enter__()
        return "rollback"

    shop.answers = {b"1": begin}
    shop.prepare(b"1")
    shop.run(IMMUNITY_MS)
    assert shop.open_bodies() == [b"1"]


def test_an_answer_from_before_a_block_is_not_used_after_it_either(shop: Shop) -> None:
    """The check-back found no row; then a block committed one, and ended with Ctrl-C: the message was rolled back."""

    def begin_and_end(prepared: Prepared) -> str:
        with pytest.raises(KeyboardInterrupt), shop.store.prepared()[0]:
            raise KeyboardInterrupt
        return "rollback"

    shop.answers = {b"1": begin_and_end}
    shop.prepare(b"1")
    shop.run(IMMUNITY_MS)
    assert shop.open_bodies() == [b"1"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_no_exception_of_a_check_back_ends_the_checks(shop: Shop, caplog: pytest.LogCaptureFixture, error: type[BaseException]) -> None:  # fmt: skip
    """`sys.exit` in a check-back ended the thread without a word, and nobody was asked any more."""

    def fail(_prepared: Prepared) -> None:
        raise error

    shop.answers = {b"1": fail, b"2": "commit"}
    shop.prepare(b"1")
    shop.prepare(b"2")
    shop.run(IMMUNITY_MS)
    assert (shop.bodies(), shop.open_bodies()) == ([b"2"], [b"1"])
    assert "is asked again later" in caplog.text


def test_a_message_whose_prepare_failed_at_the_flush_is_asked_about(shop: Shop) -> None:
    """Its caller has no object, so only the check-back can finish it: it was not asked before the next opening."""
    flush = shop.store.flush

    def interrupted() -> int:
        raise KeyboardInterrupt

    shop.store.flush = interrupted  # type: ignore[method-assign] # as Ctrl-C while it waits for the disk
    with pytest.raises(KeyboardInterrupt):
        shop.prepare(b"1")
    shop.store.flush = flush  # type: ignore[method-assign] # as above
    shop.run(IMMUNITY_MS)
    assert shop.asked == [b"1"]


def test_a_message_of_long_ago_is_asked_about_first(shop: Shop) -> None:
    """A broker discards it unasked, and its row may be in the database."""
    shop.prepare(b"1")
    shop.close()
    shop.clock.now_ms += 400 * 86_400_000
    shop.answers = {b"1": "commit"}
    assert shop.open_bodies() == [b"1"]
    shop.run(0)
    assert shop.bodies() == [b"1"]


def test_a_message_that_can_go_nowhere_is_discarded_in_the_end(shop: Shop) -> None:
    copy, text = half_message(Message("orders", b"1"), "shop", "id")
    shop.store.put_copies([(copy, text.replace(b"orders", b"or/ers"))])
    shop.close()
    shop.clock.now_ms += IMMUNITY_MS
    shop.answers = {b"1": "commit"}
    pause = shop.run(0)
    assert pause == INTERVAL_MS / 1000, "it is asked about again, as if it had no answer"
    assert "or/ers" in str(shop.checking.stats()["trouble"])
    for _ in range(16):
        shop.run(INTERVAL_MS)
    assert (shop.open_bodies(), shop.bodies(DISCARD_TOPIC)) == ([], [b"1"])


def test_a_message_that_retention_has_deleted_is_dropped(shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    shop.prepare(b"1")

    def gone(log_offset: int) -> Any:
        raise OffsetError(log_offset, 1000, 2000)

    monkeypatch.setattr(shop.store, "at", gone)
    shop.run(IMMUNITY_MS)
    assert shop.store.prepared() == []
    assert "is dropped" in caplog.text


def test_a_store_without_a_check_back_asks_nobody_and_saves_its_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with penstock.open(tmp_path / "s", environ={}, clock=clock, spawn=workers) as store:
        store.prepare("orders", b"1", group="g").commit()
        store.prepare("orders", b"2", group="g")
        clock.now_ms += INTERVAL_MS
        assert workers.run(WORKER) == INTERVAL_MS / 1000
        assert store.committed_offset("CID_RMQ_SYS_TRANS", HALF_TOPIC) == 1
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_message_that_is_just_being_prepared_is_not_asked_about(shop: Shop) -> None:
    """It was, if the thread ran before the end of `prepare`: the check-back of an outbox found no row, and had it rolled back."""
    shop.prepare(b"1")
    shop.halves.prepare(Message("orders", b"2"), "shop", "id")
    shop.run(IMMUNITY_MS)
    assert shop.asked == [b"1"]


def test_the_thread_begins_with_the_first_prepared_message_and_is_woken_for_an_earlier_one(
    shop: Shop,
) -> None:
    assert shop.store.put("orders", b"x")
    assert WORKER not in shop.workers.by_name
    shop.prepare(b"1")
    shop.run(0)
    worker = shop.workers.by_name[WORKER]
    shop.prepare(b"2")
    assert not worker.is_awake
    shop.prepare(b"3", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    assert worker.is_awake


async def _wrong(_prepared: Prepared) -> None:
    """Cannot be called by a thread."""


@pytest.mark.parametrize("given", [5, "commit", {"g": 5}, {5: len}, _wrong, {"g": _wrong}])
def test_what_cannot_be_asked_is_refused_before_the_store_is_opened(
    tmp_path: Path, given: Any
) -> None:
    with pytest.raises(ArgumentError, match="check_back"):
        penstock.open(tmp_path / "s", check_back=given)
    assert not (tmp_path / "s").exists()


def test_it_needs_an_extension_that_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add messaging"):
        penstock.open(tmp_path / "s", check_back=str, extensions=[])
    assert isinstance(make_opener(tmp_path, None, Files(), None, None, {}, {}), Opener)


def test_asyncio_opens_with_one_too(tmp_path: Path) -> None:
    async def work() -> None:
        asked: list[str] = []
        store = await aio.open(
            tmp_path / "s", check_back=lambda prepared: asked.append(prepared.group),
            **{"extensions.messaging.check_immunity_ms": 0},
        )  # fmt: skip
        async with store:
            await store.prepare("orders", b"x", group="g")
            while not asked:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), 60))
