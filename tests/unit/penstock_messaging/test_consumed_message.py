"""A message that was handed out."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_messaging.consuming.consumed_message import HandedMessage, shown_topic


def test_the_next_delivery_is_another_object_of_the_same_message(tmp_path: Path) -> None:
    flight: Any = None
    with penstock.open(tmp_path / "s") as store:
        store.put("orders", b"x", tag="paid")
        stored = store.read("orders").messages[0]
    message = HandedMessage(stored, "orders", 1, flight, 0)
    again, counted = message.again(), message.again(2)
    assert again is not message
    assert (again.stored, again.attempt, counted.attempt) == (stored, 1, 2)
    assert message != again
    assert (message.tag, message.body, message.log_offset) == ("paid", b"x", stored.log_offset)
    assert shown_topic(stored, "orders") == "orders"
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.loads(pickle.dumps(message)).ack()
