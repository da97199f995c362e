"""Refused messages are stored as the group's configuration says, and their topics are declared."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Message
from penstock.format.record import CRC_PROPERTY_SIZE, PROPERTIES_BYTES_MAX
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.properties_text import RETRY_TOPIC, pairs_of, stored_text
from penstock_messaging.retries.stored_retries import StoredRetries


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as made:
        made.put("orders", b"x", tag="t")
        yield made


def retries(store: Store) -> StoredRetries:
    extension = store.extension("messaging")
    assert isinstance(extension, MessagingExtension)
    return StoredRetries(extension.configuration, extension.delivery)


def refused(store: Store) -> Any:
    return store.read("orders").messages[0]


def test_a_retry_waits_at_its_level_and_its_topic_is_declared(store: Store) -> None:
    made = retries(store).copy(refused(store), "billing", 2, None)
    assert made is not None
    assert (made[0].topic, made[0].queue, made[0].reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 1, 1)
    assert {"%RETRY%billing", "SCHEDULE_TOPIC_XXXX"} <= set(store.topic_configs())
    assert "%DLQ%billing" not in store.topic_configs()


def test_after_the_last_try_it_is_a_dead_letter(store: Store) -> None:
    stored = retries(store)
    for level, tries in ((-1, None), (None, 0)):
        made = stored.copy(refused(store), "billing", level, tries)
        assert made is not None
        assert made[0].topic == "%DLQ%billing"
    assert "%DLQ%billing" in store.topic_configs()


def test_the_group_says_how_often_and_whether_at_all(store: Store) -> None:
    stored, extension = retries(store), store.extension("messaging")
    assert isinstance(extension, MessagingExtension)
    extension.configuration.groups.ensure("billing")
    extension.configuration.groups.alter("billing", retry_max=0)
    made = stored.copy(refused(store), "billing", None, None)
    assert made is not None
    assert made[0].topic == "%DLQ%billing"
    extension.configuration.groups.alter("billing", retry_queues=0)
    assert stored.copy(refused(store), "billing", None, None) is None


def test_a_copy_names_its_first_message(store: Store) -> None:
    stored, message = retries(store), refused(store)
    assert stored.origin(message) == (message.message_id, 0)


@pytest.mark.parametrize("room", range(0, 80, 4))
def test_a_message_without_room_for_a_retry_becomes_a_dead_letter(
    room: int, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It was dropped with an error: neither a retry nor a dead letter had it."""
    own = b"note\x01" + b"x" * (PROPERTIES_BYTES_MAX - CRC_PROPERTY_SIZE - 6 - room) + b"\x02"
    store.put_copies([(Message("orders", b"full"), own), (Message("orders", b"next"), b"")])
    with store.consumer("billing", ["orders"]) as consumer:
        for message in consumer.poll(3):
            if message.body != b"x":
                message.nack()
    extension = store.extension("messaging")
    assert isinstance(extension, MessagingExtension)
    extension._intake.take_all()
    assert store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1
    letter = store.read("%DLQ%billing").messages[0]
    assert (letter.body, letter.reconsume_times) == (b"full", 1)
    assert pairs_of(stored_text(letter))[b"note"] == pairs_of(own)[b"note"]
    # What a replay needs is kept as long as there is room for it.
    assert (RETRY_TOPIC in pairs_of(stored_text(letter))) == (room >= len("RETRY_TOPIC_orders_"))
    assert "offset 1 of queue orders/0 is a dead letter now" in caplog.text
    assert caplog.text.count("cannot be stored") == 1
