"""The extension `messaging` in a store."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import ConfigError, MessageError, QueueHeldError
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.consuming import consumer as consumer_module
from penstock_messaging.extension import MessagingExtension, MessagingOptions
from penstock_messaging.groups import intake as intake_module

# A test that fails waits for so long.
LIMIT_S = 60


def test_every_store_has_it_unless_it_is_configured_otherwise(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert isinstance(store.extension("messaging"), MessagingExtension)
    with open_store(tmp_path / "s", extensions=[]) as store:
        assert store.put("t", b"x").queue_offset == 0


def opened(folder: Path, default_queues: int) -> Store:
    given: dict[str, Any] = {"extensions.messaging.default_queues": default_queues}
    return open_store(folder / "s", spawn=ManualWorkers(), **given)


def test_options_have_limits(tmp_path: Path) -> None:
    for count in (0, 65_537):
        with pytest.raises(ConfigError, match="default_queues"):
            opened(tmp_path, count)
    with opened(tmp_path, 7) as store:
        store.put("t", b"x")
        assert store.topic_configs()["t"].queues == 7


def test_a_delayed_message_gets_its_queue_first(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        made = store.extension("messaging").rewrite(Message("t", b"x", delay_level=2, queue=None))
        assert isinstance(made, tuple)
        message, text = made
        assert (message.topic, message.queue) == ("SCHEDULE_TOPIC_XXXX", 1)
        assert b"REAL_TOPIC\x01t\x02REAL_QID\x010\x02" in text
        assert sorted(store.topic_configs()) == ["SCHEDULE_TOPIC_XXXX", "t"]


@pytest.mark.parametrize("value", [0, -1])
def test_the_progress_is_saved_after_some_time(value: int) -> None:
    with pytest.raises(ValueError, match="delay_save_ms"):
        MessagingOptions(delay_save_ms=value)
    assert MessagingOptions().delay_save_ms == 1000


def test_the_option_sets_when_the_progress_is_saved(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    settings = {"delay_save_ms": 1}
    with open_store(
        tmp_path, clock=clock, spawn=workers, extensions={"messaging": settings}
    ) as store:
        store.put("t", b"", delay_level=1)
        clock.now_ms += 1000
        workers.run("penstock-deliver")
        clock.now_ms += 1
        workers.run("penstock-deliver")
        assert (tmp_path / "config" / "delayOffset.json").exists()


def test_a_store_without_the_extension_refuses_a_delay(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, environ={}, extensions=[]) as store,
        pytest.raises(MessageError, match="add messaging"),
    ):
        store.put("t", b"", delay_level=1)


def test_a_reader_delivers_nothing(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with open_store(tmp_path, clock=clock, spawn=ManualWorkers()) as store:
        store.put("t", b"", delay_level=1)
    clock.now_ms += 1000
    with open_store(tmp_path, clock=clock, spawn=workers, read_only=True) as reader:
        assert "penstock-deliver" not in workers.by_name
        extension = reader.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        assert extension.stats()["delays"]["waiting"] == 0
        assert list(reader.scan("t")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("config/consumerOffset.json", "config/consumerOffset.json.bak"), "not taken in"),
        (("penstock/groups/g/marks",), "not taken in"),
        (("penstock/store-id",), "no consumers"),
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_broken_files_of_groups_do_not_keep_a_store_from_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], says: str, is_folder: bool
) -> None:  # fmt: skip
    with open_store(tmp_path / "s") as store:
        store.put("t", b"x")
        with store.consumer("g", ["t"]) as consumer:
            consumer.ack(consumer.poll(1, 10))
    for name in names:
        path = tmp_path / "s" / name
        path.unlink(missing_ok=True)
        if is_folder:
            path.mkdir()
        else:
            path.write_bytes(b"{ \xff")
    with open_store(tmp_path / "s") as store:
        assert store.put("t", b"y").queue_offset == 1
        # What only the marks say is not needed, so a file of nonsense is ignored.
        assert says in caplog.text or names == ("penstock/groups/g/marks",)
        for path in [tmp_path / "s" / name for name in names]:
            if is_folder:
                path.rmdir()
            else:
                path.unlink()
    with (
        open_store(tmp_path / "s") as store,
        store.consumer("g", ["t"]) as consumer,
    ):
        assert consumer.poll(1, 10)


def test_a_deleted_group_begins_anew(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        for number in range(3):
            store.put("orders", b"%d" % number)
        with store.consumer("billing", "orders") as consumer:
            consumer.ack(consumer.poll(3, timeout=5))
            with pytest.raises(QueueHeldError):
                store.delete_group("billing")
        store.delete_group("billing")
        store.delete_group("billing")
        assert store.groups() == {}
        assert not (tmp_path / "s" / "penstock" / "groups" / "billing").exists()
        with store.consumer("billing", "orders") as consumer:
            assert [each.body for each in consumer.poll(3, timeout=5)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("broadcast", [False, True])
def test_a_consumer_is_woken_for_a_topic_that_did_not_exist(
    broadcast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for new topics once a second."""
    monkeypatch.setattr(consumer_module, "STEP_S", 3600.0)
    with penstock.open(tmp_path / "s") as store, penstock.open(tmp_path / "s", read_only=True) as reader:  # fmt: skip
        makers = [store, reader]
        consumers = [
            each.consumer(f"g{n}", "order-*", broadcast=broadcast) for n, each in enumerate(makers)
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
        store.put("orders", b"x")
        with reader.consumer("g", "orders") as consumer, store.consumer("other", "SCHEDULE_TOPIC_XXXX") as retries:  # fmt: skip
            consumer.nack(consumer.poll(timeout=LIMIT_S), delay_level=18)
            assert [each.body for each in retries.poll(timeout=LIMIT_S)] == [b"x"]
