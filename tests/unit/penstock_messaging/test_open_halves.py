"""Prepare, commit, roll back: in one process, over closes, and after a kill between any two records."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from penstock import Message, Store
from penstock.contracts import Prepared
from penstock.errors import (
    ArgumentError,
    ConfigError,
    DiskFullError,
    MessageError,
    MessageTooLargeError,
    PreparedFinishedError,
    ReadOnlyError,
    StoreClosedError,
)
from penstock.message import Durability
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.prepared import open_halves
from penstock_messaging.prepared.half_message import (
    HALF_TOPIC,
    OP_TOPIC,
    PROGRESS_GROUP,
    committed,
    half_message,
)
from penstock_messaging.prepared.open_halves import OpenHalves


@attrs.define
class Shop:
    """A store with prepared messages that a test opens, closes and kills."""

    root: Path
    files: FaultyFiles = attrs.Factory(FaultyFiles)
    clock: ManualClock = attrs.Factory(ManualClock)
    settings: dict[str, Any] = attrs.Factory(dict)
    opened: Store | None = None

    @property
    def store(self) -> Store:
        if self.opened is None:
            self.opened = open_store(
                self.root, files=self.files, clock=self.clock, spawn=ManualWorkers(), **self.settings
            )  # fmt: skip
        return self.opened

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def kill(self) -> None:
        copy = copy_store(self.root, self.root.with_name(self.root.name + "k"))
        self.close()
        self.root = copy

    def prepare(self, body: bytes = b"x", **more: Any) -> Prepared:
        return self.store.prepare("orders", body, group="shop", **more)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.store.scan("orders")]

    def open_bodies(self) -> list[bytes]:
        return [each.message.body for each in self.store.prepared()]

    @property
    def halves(self) -> OpenHalves:
        extension = self.store.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        return extension.halves


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "store")
    yield made
    made.close()


def test_a_prepared_message_is_seen_once_it_is_committed(shop: Shop) -> None:
    first, second = shop.prepare(b"1", queue=2, tag="t", keys=["k"]), shop.prepare(b"2")
    assert (shop.bodies(), shop.open_bodies()) == ([], [b"1", b"2"])
    receipt = first.commit()
    (message,) = shop.store.scan("orders")
    assert (message.body, message.queue, message.tag, message.keys) == (b"1", 2, "t", ("k",))
    assert (receipt.queue, receipt.queue_offset, receipt.message_id) == (2, 0, message.message_id)
    assert message.all_properties["UNIQ_KEY"] == first.transaction_id
    assert shop.store.find("orders", "k") == shop.store.find("orders", first.transaction_id) == [message]  # fmt: skip
    second.rollback()
    assert (shop.bodies(), shop.open_bodies()) == ([b"1"], [])


def test_each_is_finished_once(shop: Shop) -> None:
    done, dropped = shop.prepare(), shop.prepare()
    done.commit()
    dropped.rollback()
    for prepared, outcome in ((done, "committed"), (dropped, "rolled back")):
        for call in (prepared.commit, prepared.rollback):
            with pytest.raises(PreparedFinishedError, match=outcome) as caught:
                call()
            assert caught.value.outcome == outcome
    assert shop.store.max_offset(OP_TOPIC) == 2


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_open_is_there_after_a_close_or_a_kill(shop: Shop, is_killed: bool) -> None:
    prepared = [shop.prepare(b"%d" % n) for n in range(5)]
    prepared[0].commit()
    prepared[3].rollback()
    if is_killed:
        shop.kill()
    else:
        shop.close()
    assert shop.open_bodies() == [b"1", b"2", b"4"]
    shop.store.prepared()[0].commit()
    assert shop.bodies() == [b"0", b"1"]


def test_progress_is_saved_at_a_close_as_a_broker_reads_it(shop: Shop) -> None:
    prepared = [shop.prepare(b"%d" % n) for n in range(5)]
    for each in (prepared[0], prepared[1], prepared[4]):
        each.commit()
    shop.close()
    with open_store(shop.root, read_only=True) as reader:
        offsets = {topic: reader.committed_offset(PROGRESS_GROUP, topic) for topic in (HALF_TOPIC, OP_TOPIC)}  # fmt: skip
        # The third removal is of a message after the first open one.
        assert offsets == {HALF_TOPIC: 2, OP_TOPIC: 2}
        assert [each.message.body for each in reader.prepared()] == [b"2", b"3"]
        for call in (reader.prepared()[0].commit, reader.prepared()[0].rollback):
            with pytest.raises(ReadOnlyError):
                call()
        assert reader.summary()[0].value["open"] == 2
    for each in shop.store.prepared():
        each.rollback()
    shop.halves.save()
    assert shop.store.committed_offset(PROGRESS_GROUP, HALF_TOPIC) == 5
    assert shop.store.committed_offset(PROGRESS_GROUP, OP_TOPIC) == 5


@pytest.mark.parametrize("index", [["consume-queue", "hash-index"], ["consume-queue"]])
def test_a_commit_whose_removal_a_crash_has_cut_is_not_made_again(
    shop: Shop, index: list[str]
) -> None:
    """The copy and the removal are one batch; a crash can leave the first without the second."""
    shop.settings = {"index": index}
    shop.prepare(b"other")
    half = shop.prepare(b"once").message
    shop.store.put_copies([committed(half)])
    shop.kill()
    assert (shop.open_bodies(), shop.bodies()) == ([b"other"], [b"once"])
    assert [m.body for m in shop.store.scan(OP_TOPIC)] == [b"1"]
    shop.kill()
    assert (shop.open_bodies(), shop.bodies()) == ([b"other"], [b"once"])


@pytest.mark.parametrize("key", [b"", b"a b", b"K"])
def test_a_cut_commit_is_found_by_the_queue_where_no_index_can_find_it(
    shop: Shop, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made again: of a foreign producer without a UNIQ_KEY of one word, or where very many messages have that key, too."""
    monkeypatch.setattr(open_halves, "_FOUND_MAX", 3)
    copy, text = half_message(Message("orders", b"1"), "shop", "ID")
    text = text.replace(b"UNIQ_KEY\x01ID\x02", b"UNIQ_KEY\x01%s\x02" % key if key else b"")
    shop.store.put("orders", b"0")
    (receipt,) = shop.store.put_copies([(copy, text)])
    shop.store.put_copies([committed(shop.store.at(receipt.log_offset))])
    for _ in range(4):
        shop.store.put("orders", b"2", keys=["K"])
    shop.kill()
    assert shop.open_bodies() == []
    assert shop.bodies() == [b"0", b"1", *[b"2"] * 4]


def test_a_check_writes_a_copy_that_a_held_object_commits(shop: Shop) -> None:
    prepared = shop.prepare(b"1")
    (half,) = shop.halves.all()
    for _ in range(3):
        shop.halves.check_again(half)
    assert (prepared.checks, shop.store.max_offset(HALF_TOPIC)) == (3, 4)
    receipt = prepared.commit()
    newest = shop.store.read(HALF_TOPIC, 0, 3, 1).messages[0]
    assert shop.store.at(receipt.log_offset).prepared_offset == newest.log_offset
    assert [m.body for m in shop.store.scan(OP_TOPIC)] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(PreparedFinishedError):
        shop.halves.check_again(half)
    shop.kill()
    assert shop.open_bodies() == []


def test_what_cannot_be_put_cannot_be_prepared(shop: Shop) -> None:
    calls: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: shop.store.prepare("SCHEDULE_TOPIC_XXXX", b"x", group="g"), MessageError),
        (lambda: shop.store.prepare("orders", b"x", group=""), MessageError),
        (lambda: shop.prepare(tag="\x02"), MessageError),
        (lambda: shop.prepare(properties={"a": "x" * 32_600}), MessageTooLargeError),
        (lambda: shop.prepare(wait="no"), ArgumentError),
    ]
    for call, kind in calls:
        with pytest.raises(kind):
            call()
    assert shop.store.max_offset(HALF_TOPIC) == 0
    with open_store(shop.root.with_name("plain"), extensions=[]) as store, pytest.raises(ConfigError):  # fmt: skip
        store.prepare("orders", b"x", group="g")


def test_a_message_whose_topic_is_gone_stays_prepared(shop: Shop) -> None:
    shop.settings = {"extensions.messaging.auto_create_topics": False}
    shop.store.create_topic("orders")
    prepared = shop.prepare()
    shop.store.delete_topic("orders")
    with pytest.raises(MessageError):
        prepared.commit()
    assert shop.open_bodies() == [b"x"]
    prepared.rollback()
    assert shop.open_bodies() == []


def test_a_full_disk_leaves_it_prepared(shop: Shop) -> None:
    shop.settings = {"alloc": "on-demand"}
    prepared = shop.prepare()
    error = DiskFullError(shop.root, 1)
    put = shop.store.put_copies

    def full(*_given: object) -> Any:
        raise error

    shop.store.put_copies = full  # type: ignore[assignment,method-assign] # until the disk has room
    with pytest.raises(DiskFullError):
        prepared.commit()
    shop.store.put_copies = put  # type: ignore[method-assign] # as above
    assert prepared.commit().queue_offset == 0


def test_after_an_interrupt_within_a_commit_nothing_is_stored_a_second_time(shop: Shop) -> None:
    prepared = shop.prepare()
    put = shop.store.put_copies

    def interrupted(*given: Any) -> Any:
        put(*given)
        raise KeyboardInterrupt

    shop.store.put_copies = interrupted  # type: ignore[assignment,method-assign] # as Ctrl-C at the end of the call
    with pytest.raises(KeyboardInterrupt):
        prepared.commit()
    with pytest.raises(PreparedFinishedError, match="interrupted"):
        prepared.commit()
    shop.store.put_copies = put  # type: ignore[method-assign] # as above
    shop.kill()
    assert (shop.bodies(), shop.open_bodies()) == ([b"x"], [])


def test_a_message_whose_prepare_was_interrupted_is_found_by_the_next_opening(shop: Shop) -> None:
    """Progress went beyond it at the close, so that nobody was asked about it, also not by a broker."""
    shop.prepare(b"1").commit()
    put = shop.store.put_copies

    def interrupted(*given: Any) -> Any:
        put(*given)
        raise KeyboardInterrupt

    shop.store.put_copies = interrupted  # type: ignore[assignment,method-assign] # as Ctrl-C at the end of the call
    with pytest.raises(KeyboardInterrupt):
        shop.prepare(b"2")
    shop.store.put_copies = put  # type: ignore[method-assign] # as above
    shop.prepare(b"3").rollback()
    shop.close()
    assert shop.open_bodies() == [b"2"]


def test_half_messages_that_are_imported_are_found_by_the_next_opening(shop: Shop) -> None:
    """Progress went beyond them at the close, so that nobody was asked about them, and they were listed nowhere."""
    shop.prepare(b"1").commit()
    half = shop.prepare(b"2")
    shop.store.put_copies([half_message(Message("orders", b"imported"), "shop", "ID")])
    shop.prepare(b"3")
    shop.halves.check_again(shop.halves.all()[0])
    half.commit()
    shop.halves.save()
    shop.close()
    assert shop.open_bodies() == [b"imported", b"3"]
    for each in shop.store.prepared():
        each.rollback()
    shop.close()
    assert shop.store.committed_offset(PROGRESS_GROUP, HALF_TOPIC) == 5


def test_a_commit_waits_as_a_put_does(shop: Shop) -> None:
    assert shop.prepare().commit().durability is Durability.ACCEPTED
    shop.close()
    shop.settings = {"flush": "sync"}
    assert shop.prepare().commit().durability is Durability.ON_DISK
    assert shop.prepare(wait=False).commit(wait=False).durability is Durability.ACCEPTED


def test_a_prepared_message_is_durable_under_any_flush_policy(shop: Shop) -> None:
    shop.settings = {"flush": "none"}
    shop.prepare()
    figures = shop.store.stats()
    assert figures["flushed_offset"] == figures["log_end_offset"]
    shop.prepare(wait=False)
    figures = shop.store.stats()
    assert figures["flushed_offset"] < figures["log_end_offset"]


def test_a_closed_store_finishes_nothing(shop: Shop) -> None:
    prepared = shop.prepare()
    shop.close()
    with pytest.raises(StoreClosedError):
        prepared.commit()
    assert shop.open_bodies() == [b"x"]


@pytest.mark.parametrize("more", [{"write": "file"}, {"write": "transient-pool"}, {"flush": "sync"}, {"log.checksum": "crc32+record"}])  # fmt: skip
def test_it_works_with_every_writer(shop: Shop, more: dict[str, Any]) -> None:
    shop.settings = more
    first, second = shop.prepare(b"1"), shop.prepare(b"2")
    (half, _) = shop.halves.all()
    shop.halves.check_again(half)
    first.commit()
    second.rollback()
    shop.prepare(b"3")
    assert (shop.bodies(), shop.open_bodies()) == ([b"1"], [b"3"])
    shop.kill()
    assert (set(shop.bodies()) <= {b"1"}, shop.open_bodies()[-1:]) == (True, [b"3"])
    assert [finding.text for finding in shop.store.verify()] == []
