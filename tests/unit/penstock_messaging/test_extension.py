"""The extension `messaging` in a store: what it needs no files for, what it takes up at an opening, and the texts of properties."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.shop import Shop

import penstock
from penstock import Message
from penstock.errors import ConfigError, MessageError
from penstock.testing import FaultyFiles, InlineWorkers, open_store
from penstock_messaging.consuming import consumer as consumer_module
from penstock_messaging.groups import intake as intake_module
from penstock_messaging.properties_text import flags_for_copy, pairs_of, text_of

# A test that fails waits for so long.
LIMIT_S = 60


def test_options_have_limits_and_take_effect(shop: Shop) -> None:
    for name, wrong in (("default_queues", 0), ("default_queues", 65_537), ("delay_save_ms", 0)):
        shop.settings = {f"extensions.messaging.{name}": wrong}
        with pytest.raises(ConfigError, match=name):
            shop.open()
    shop.settings = {"extensions": {"messaging": {"default_queues": 7, "delay_save_ms": 1}}}
    shop.store.put("t", b"x", queue=0, delay_level=1)
    assert shop.store.topic_configs()["t"].queues == 7
    shop.step("penstock-deliver", after_ms=1000)
    shop.step("penstock-deliver", after_ms=1)
    assert (shop.root / "config" / "delayOffset.json").exists()
    plain = open_store(shop.root.with_name("plain"), extensions=[])
    with plain, pytest.raises(MessageError, match="Add one that does"):
        plain.put("t", b"", queue=0, delay_level=1)


BROKEN = [
    (("config/consumerOffset.json", "config/consumerOffset.json.bak"), "not taken in"),
    (("penstock/groups/g/marks",), "not taken in"),
    (("penstock/store-id",), "no consumers"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "says"), BROKEN)
@pytest.mark.parametrize("is_folder", [False, True])
def test_broken_files_of_groups_do_not_keep_a_store_from_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: Any, says: str, is_folder: bool
) -> None:
    root = tmp_path / "s"
    with open_store(root) as store:
        store.put("t", b"x", queue=0)
        with store.consumer("g", ["t"]) as consumer:
            consumer.ack(consumer.poll(1, 10))
    for path in (root / name for name in names):
        path.unlink(missing_ok=True)
        if is_folder:
            path.mkdir()
        else:
            path.write_bytes(b"{ \xff")
    with open_store(root) as store:
        assert store.put("t", b"y", queue=0).queue_offset == 1
        # What only the marks say is not needed, so a file of nonsense is ignored.
        assert says in caplog.text or names == ("penstock/groups/g/marks",)
        for path in (root / name for name in names):
            if is_folder:
                path.rmdir()
            else:
                path.unlink()
    with open_store(root) as store, store.consumer("g", ["t"]) as consumer:
        assert consumer.poll(1, 10)


def test_no_offset_is_committed_in_a_topic_that_was_deleted_while_answers_are_taken_in(
    tmp_path: Path,
) -> None:
    """It counted as an offset in the topic that was made again, whose first messages the group then missed."""
    files, workers = FaultyFiles(), InlineWorkers()
    with open_store(tmp_path / "store", files=files, spawn=workers) as store:

        def make_again() -> None:
            store.delete_topic("t")
            store.put_many([Message("t", b"new", queue=0)] * 3)

        other = threading.Thread(target=make_again)

        def meanwhile(_: str, path: Path) -> None:
            if path.name.startswith("marks"):
                files.plan.watch = None
                other.start()
                # Time enough for all of it, if it need not wait for the end of the round.
                other.join(0.3)

        store.put_many([Message("t", b"old", queue=0)] * 2)
        with store.consumer("g", "t") as consumer:
            consumer.ack(consumer.poll(2, timeout=0))
            files.plan.watch = meanwhile
            workers.run("penstock-intake")
            other.join()
            assert store.committed_offset("g", "t", 0) is None


@pytest.mark.parametrize("broadcast", [False, True])
def test_a_consumer_is_woken_for_a_topic_that_did_not_exist(
    broadcast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for new topics once a second."""
    monkeypatch.setattr(consumer_module, "STEP_S", 3600.0)
    store, reader = penstock.open(tmp_path / "s"), penstock.open(tmp_path / "s", read_only=True)
    with store, reader:
        consumers = [
            each.consumer(f"g{n}", "order-*", broadcast=broadcast)
            for n, each in enumerate((store, reader))
        ]
        for consumer in consumers:
            assert not consumer.poll(timeout=0)
        store.put("order-eu", b"x", queue=1)
        for consumer in consumers:
            assert [each.body for each in consumer.poll(timeout=LIMIT_S)] == [b"x"]
            consumer.close()


@pytest.mark.slow
def test_a_refusal_in_another_process_is_taken_in_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken in at the next look, up to a second later."""
    monkeypatch.setattr(intake_module, "INTERVAL_S", 3600.0)
    with penstock.open(tmp_path / "s") as store, penstock.open(tmp_path / "s", read_only=True) as reader:  # fmt: skip
        store.put("orders", b"x", queue=0)
        with reader.consumer("g", "orders") as consumer, store.consumer("other", "SCHEDULE_TOPIC_XXXX") as retries:  # fmt: skip
            consumer.nack(consumer.poll(timeout=LIMIT_S), delay=7200)
            assert [each.body for each in retries.poll(timeout=LIMIT_S)] == [b"x"]


# --- the texts of properties


def test_pairs_keep_their_order_and_the_last_of_a_name_counts(shop: Shop) -> None:
    text = b"b\x011\x02a\x012\x02b\x013\x02__CRC32#\x010123456789\x02empty\x01\x02\x01no name\x02alone\x02"
    assert list(pairs_of(text).items()) == [(b"b", b"3"), (b"a", b"2")]
    assert text_of(pairs_of(text)) == b"b\x013\x02a\x012\x02"
    # A value may hold the byte that ends a name.
    assert pairs_of(b"a\x01b\x01c\x02") == {b"a": b"b\x01c"}
    # A copy does not take the bits of addresses.
    shop.store.lowlevel.put_copies(
        [(Message("t", b"", queue=0, sys_flag=0x9, born_host="[::1]:7"), b"")]
    )
    message = shop.store.read("t", 0).messages[0]
    assert (message.sys_flag, flags_for_copy(message)) == (0x19, 0x9)
