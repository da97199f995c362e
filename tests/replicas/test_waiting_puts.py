"""Puts that wait for copies: what their receipts say, that one slow copy costs one time-out, and that nothing hangs.

The replicator is the test's own: it copies nothing, and the test says how far the copies are.
"""

import _thread
import errno
import select
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from tests.faults.interrupts import everywhere
from tests.lanes import rounds

from penstock import Durability, Message, PutStatus, Receipt, Store
from penstock._kernel import Bell, CopyGate
from penstock.contracts import Context, ReplicatedLog, Replicator
from penstock.errors import OffsetError, StoreFailedError
from penstock.testing import FaultyFiles, InlineWorkers, SimulatedDisk, open_store
from penstock_flush.policies import NoFlush

HOUR_MS = 3_600_000


@attrs.frozen(kw_only=True)
class ScriptedOptions:
    waits: bool = True
    wait_for: str = "disk"
    timeout_ms: int = HOUR_MS


class Scripted(Replicator):
    """Copies of which a test says how far they are."""

    name = "scripted"
    Options = ScriptedOptions
    made: ClassVar[list["Scripted"]] = []

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        self.waits, self.wait_for = options.waits, options.wait_for
        self.timeout_ms = options.timeout_ms
        self.calls: list[str] = []
        self.when_advanced: Callable[[], None] = lambda: None
        self.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def advanced(self) -> None:
        self.calls.append("advanced")
        self.when_advanced()

    def failed(self, reason: str) -> None:
        self.calls.append("failed")

    def close(self) -> None:
        self.calls.append("close")

    # What a test says.

    def have(self, end: int, *, available: bool = True) -> None:
        """State that enough copies have all bytes before `end`."""
        self.log.reach(end, available=available, missed=self.log.missed_offset)

    def await_put(self) -> None:
        """Wait until something is in the log."""
        while self.log.visible_offset == 0:
            self.await_bell()

    def await_bell(self) -> None:
        """Wait until the store rings."""
        # Not select(), which takes no descriptor from 1024 on.
        poll = select.poll()
        poll.register(self.log.bell.fileno(), select.POLLIN)
        assert poll.poll(120_000), "nobody has rung"
        self.log.bell.answer()


Opened = Callable[..., tuple[Store, Scripted]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens a store whose copies the test plays."""
    stores: list[Store] = []

    def open_one(name: str = "store", **settings: Any) -> tuple[Store, Scripted]:
        given = {key.replace("__", "."): value for key, value in settings.items()}
        given = {"strategies": [Scripted], "replicate": "scripted", **given}
        store = open_store(tmp_path / name, **given)
        stores.append(store)
        return store, Scripted.made[-1]

    yield open_one
    for store in stores:
        store.close()
    Scripted.made.clear()


def end_of(receipt: Receipt) -> int:
    return receipt.log_offset + receipt.size


def put_beside(store: Store, body: bytes = b"x") -> tuple[threading.Thread, list[Receipt]]:
    """Put in another thread; returns it, and where the receipt will be."""
    found: list[Receipt] = []
    thread = threading.Thread(target=lambda: found.append(store.put("t", body)))
    thread.start()
    return thread, found


@pytest.mark.parametrize(
    ("flush", "wait_for", "durability"),
    [
        ("sync", "disk", "on disk here and there"),
        ("sync", "received", "on disk here, received there"),
        ("none", "disk", "on disk there"),
        ("none", "received", "received there"),
    ],
)
def test_a_put_returns_when_enough_copies_have_it(
    opened: Opened, flush: str, wait_for: str, durability: str
) -> None:
    store, copies = opened(flush=flush, replicate__scripted__wait_for=wait_for)
    copies.have(0)
    thread, found = put_beside(store)
    copies.await_put()
    copies.have(copies.log.visible_offset)
    thread.join()
    assert (found[0].status, found[0].durability) == ("PUT_OK", durability)
    assert found[0].is_durable == (durability != "received there")
    # Copies never fall back.
    copies.have(10_000)
    copies.have(0)
    assert store.put("t", b"x").durability == durability


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_a_put_says_without_copies(opened: Opened, flush: str) -> None:
    alone = Durability.ON_DISK if flush == "sync" else Durability.ACCEPTED
    store, _ = opened(flush=flush)
    receipt = store.put("t", b"nobody is in sync")
    assert (receipt.status, receipt.durability) == (PutStatus.SLAVE_NOT_AVAILABLE, alone)
    batch = store.put_many([Message("t", b"1"), Message("t", b"2")], atomic=True)
    assert {each.status for each in batch} == {PutStatus.SLAVE_NOT_AVAILABLE}
    receipt = store.put("t", b"waits for nobody", wait=False)
    assert (receipt.status, receipt.durability) == (PutStatus.PUT_OK, Durability.ACCEPTED)


def test_one_slow_copy_costs_one_time_out(opened: Opened) -> None:
    store, copies = opened(flush="sync", replicate__scripted__timeout_ms=1)
    copies.have(0)
    late = store.put("t", b"late")
    assert (late.status, late.durability) == (PutStatus.FLUSH_SLAVE_TIMEOUT, Durability.ON_DISK)
    assert copies.log.missed_offset == end_of(late)
    copies.await_bell()
    assert store.put("t", b"does not wait").status == PutStatus.SLAVE_NOT_AVAILABLE
    # A judgement of before the time-out counts for nothing, a later one does.
    copies.log.reach(0, available=True, missed=0)
    assert store.put("t", b"does not wait").status == PutStatus.SLAVE_NOT_AVAILABLE
    copies.have(end_of(late))
    assert store.put("t", b"waits again").status == PutStatus.FLUSH_SLAVE_TIMEOUT
    # A batch waits once, for its end.
    copies.have(end_of(late))
    receipts = store.put_many([Message("t", b"1"), Message("t", b"2"), Message("t", b"3")])
    assert [each.status for each in receipts] == [PutStatus.FLUSH_SLAVE_TIMEOUT] * 3
    assert copies.log.missed_offset == end_of(receipts[-1])


def test_a_time_out_of_before_the_copies_were_judged_does_not_count() -> None:
    """A put that ends earlier, and times out later, made all later puts return without a wait."""
    gate = CopyGate(Bell())
    gate.miss(200)
    gate.reach(0, available=True, missed=200)
    gate.miss(100)
    assert (gate.missed, gate.available) == (200, True)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_future_waits_for_copies(opened: Opened, flush: str) -> None:
    store, copies = opened(flush=flush)
    copies.have(0)
    future = store.submit("t", b"x")
    copies.await_put()
    copies.have(copies.log.visible_offset)
    receipt = future.result(120)
    assert receipt.durability == Durability.ON_DISK_HERE_AND_THERE
    copies.have(0, available=False)
    assert store.submit("t", b"y").result(120).status == PutStatus.SLAVE_NOT_AVAILABLE


def test_an_interrupt_ends_one_wait_and_nothing_else(opened: Opened) -> None:
    store, copies = opened(flush="sync")
    copies.have(0)

    def interrupt() -> None:
        copies.await_put()
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        store.put("t", b"in the log")
    thread.join()
    copies.have(10_000)
    assert store.put("t", b"next").status == PutStatus.PUT_OK
    assert sorted(message.body for message in store.scan("t")) == [b"in the log", b"next"]


@pytest.mark.parametrize("call", ["put", "put_many", "submit", "close"])
def test_an_interrupt_anywhere_stops_nothing_for_ever(opened: Opened, call: str) -> None:
    """A flag that an interrupt had left set stopped all waiting puts until the store was closed."""
    jobs: dict[str, Callable[[Store], object]] = {
        "put": lambda store: store.put("t", b"x"),
        "put_many": lambda store: store.put_many([Message("t", b"1"), Message("t", b"2")]),
        "submit": lambda store: store.submit("t", b"x"),
        "close": lambda store: store.close(),
    }
    for interrupt in everywhere(rounds(gate=11, night=1), more_than=5):
        store, copies = opened(flush="sync", spawn=InlineWorkers(), files=SimulatedDisk())
        copies.have(0)
        copies.when_advanced = partial(lambda each: each.have(each.log.visible_offset), copies)
        interrupt.during(partial(jobs[call], store))
        if call != "close":
            receipt = store.put("t", b"next")
            assert receipt.durability == Durability.ON_DISK_HERE_AND_THERE, interrupt.place
        store.close()
        assert copies.calls[-1] == "close", interrupt.place


def test_close_sends_what_is_left_and_ends_waiting_puts(opened: Opened) -> None:
    store, copies = opened(flush="sync")
    copies.have(0)
    thread, found = put_beside(store)
    copies.await_put()
    store.close()
    thread.join()
    assert found[0].status == PutStatus.FLUSH_SLAVE_TIMEOUT
    assert copies.calls == ["start", "close"]


def test_a_failed_store_tells_its_replicator(opened: Opened) -> None:
    files = FaultyFiles()
    store, copies = opened(flush="sync", files=files)
    files.plan.fail("sync", errno.EIO, path="commitlog")
    for call in (partial(store.put, "t", b"x"), store.close):
        with pytest.raises(StoreFailedError):
            call()
    assert copies.calls == ["start", "failed", "close"]


@pytest.mark.parametrize("write", ["mmap", "file", "transient-pool"])
def test_what_a_replicator_reads(opened: Opened, write: str) -> None:
    store, copies = opened(write=write, flush="none", replicate__scripted__waits=False)
    log = copies.log
    first = store.put("t", b"a" * 100)
    last = store.put_many([Message("t", bytes([n]) * 4000) for n in range(40)])[-1]
    store.flush()
    assert log.visible_offset == end_of(last)
    assert log.read(log.visible_offset, 10) == b""
    record = log.read(first.log_offset, first.size)
    assert b"a" * 100 in record
    base = log.visible_offset - log.visible_offset % log.segment_bytes
    assert log.recent(base, 50_000) == log.read(base, 50_000) != b""
    assert log.recent(base + 1, 20) == log.read(base + 1, 20)
    # Those bytes are not in the segment that is being written, or not there at all.
    assert log.recent(base - 1, 10) == log.recent(log.visible_offset, 10) == b""
    assert log.recent(log.visible_offset + 1, 10) == b""
    # Pieces end where segments end.
    assert len(log.read(base - 9, 50_000)) == 9
    with pytest.raises(OffsetError):
        log.read(log.visible_offset + 1, 1)
    assert log.digest(0, 100) == log.digest(0, 100) != log.digest(1, 100)
    with pytest.raises(OffsetError):
        log.digest(0, log.visible_offset + 1)


def test_only_what_was_just_written_is_recent(opened: Opened) -> None:
    """What an earlier process has written, or long ago, may be on the disk only: the event loop must not wait for it."""
    settings: dict[str, Any] = {"flush": "none", "replicate__scripted__waits": False}
    store, _ = opened(geometry__segment_bytes=16 << 20, **settings)
    before = end_of(store.put("t", b"a"))
    store.close()
    store, copies = opened(geometry__segment_bytes=16 << 20, **settings)
    first = store.put("t", b"b")
    assert copies.log.recent(0, 1) == copies.log.recent(before - 1, 1) == b""
    assert copies.log.recent(before, 1) == copies.log.read(before, 1) != b""
    last = [store.put("t", bytes(1 << 20)) for _ in range(5)][-1]
    assert copies.log.recent(first.log_offset, 1) == b""
    assert copies.log.recent(last.log_offset, 1 << 20) == copies.log.read(last.log_offset, 1 << 20)


def test_an_interrupted_close_ends_the_replicator_when_it_is_repeated(opened: Opened) -> None:
    store, copies = opened(flush="sync")
    end, calls = copies.close, iter([KeyboardInterrupt])

    def interrupted() -> None:
        for error in calls:
            raise error
        end()

    copies.close = interrupted  # type: ignore[method-assign] # the interrupt comes within it
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    assert copies.calls == ["start", "close"]


def test_a_status_that_cannot_be_written_stops_nothing(opened: Opened) -> None:
    store, copies = opened()
    copies.log.publish({"a": {1, 2}})
    copies.have(0)
    future = store.submit("t", b"x")
    copies.have(10_000)
    assert future.result(120).status == PutStatus.PUT_OK


def test_a_transaction_says_of_copies_what_its_messages_say(opened: Opened) -> None:
    store, _ = opened(flush="async")
    store.put("t", b"taken")
    with store.consumer("g", "t", start="earliest") as consumer:
        (taken,) = consumer.poll(1, timeout=60)
        with store.transaction() as transaction:
            transaction.put("u", b"made of it")
            transaction.ack(taken)
    (receipt,) = transaction.receipts
    assert (receipt.status, receipt.durability) == ("SLAVE_NOT_AVAILABLE", "on disk")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_prepared_message_is_committed_on_copies_too(opened: Opened, flush: str) -> None:
    store, copies = opened(flush=flush)
    at_once, alone, copied = (store.prepare("t", b"x", group="g") for _ in range(3))
    assert at_once.commit(wait=False).durability == Durability.ACCEPTED
    assert alone.commit().status == PutStatus.SLAVE_NOT_AVAILABLE
    copies.have(1 << 40)
    there = {"sync": Durability.ON_DISK_HERE_AND_THERE, "async": Durability.ON_DISK_THERE}
    receipt = copied.commit()
    assert (receipt.status, receipt.durability) == (PutStatus.PUT_OK, there[flush])


def test_a_commit_waits_for_the_removal_too_and_a_policy_hears_of_it_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[int]()
    monkeypatch.setattr(NoFlush, "after_append", lambda _, end: heard.append(end))
    store, copies = opened(flush="none", replicate__scripted__timeout_ms=1)
    prepared = store.prepare("t", b"x", group="g")
    copies.have(0)
    heard.clear()
    assert prepared.commit().status == PutStatus.FLUSH_SLAVE_TIMEOUT
    assert [copies.log.missed_offset] == [copies.log.visible_offset] == heard
