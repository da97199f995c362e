"""A stored message can be put again, with what it says of itself; what contradicts itself stays refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import PropertyError, Store, StoredMessage
from penstock.testing import ManualClock, ManualWorkers, open_store

DELIVERED = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "0"}
# What a message is made of; the other columns say where and when it was stored.
COLUMNS = ["topic", "queue", "tag", "keys", "body", "properties", "flag", "born_time"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "s", environ={}) as opened:
        yield opened


def put_again(store: Store, message: StoredMessage, topic: str) -> StoredMessage:
    """Put a message again, as the docs say."""
    receipt = store.put(
        topic, message.body, queue=0, tag=message.tag, keys=message.keys, properties=message.properties,
        flag=message.flag, born_time_ms=message.born_time_ms, born_host=message.born_host,
    )  # fmt: skip
    return store.at(receipt.log_offset)


def said(message: StoredMessage) -> tuple[Any, ...]:
    """Return what the program that made a message said in it."""
    return (
        message.body, message.tag, message.keys, message.properties, message.flag, message.born_time_ms, message.born_host,
    )  # fmt: skip


def test_every_message_that_a_store_wrote_can_be_put_again(tmp_path: Path) -> None:
    """A delivered message carries the delay that it once had, and the put refused it as a request for one."""
    clock, workers = ManualClock(), ManualWorkers()
    with open_store(tmp_path / "s", clock=clock, spawn=workers) as store:
        store.put("plain", b"1", queue=0, tag="a", keys=["k1", "k2"], properties={"x": "y"}, flag=3)
        store.put("level", b"2", queue=0, tag="a", keys=["k"], delay_level=1)
        store.put("timer", b"3", queue=0, delay=1.5)
        store.put("keyed", b"4", partition_key="p")
        with store.prepare("prepared", b"5", group="g", tag="a"):
            pass
        for _ in range(40):
            clock.now_ms += 250
            workers.run_all()
        assert {"level", "timer", "prepared"} <= set(store.topics(system=True))
        found = [each for topic, queues in store.topics(system=True).items() for queue in queues for each in store.read(topic, queue, 0).messages]  # fmt: skip
        for message in found:
            assert said(put_again(store, message, "again")) == said(message)


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({"tag": "a"}, {"TAGS": "a"}),
        ({"keys": ["k1", "k2"]}, {"KEYS": "k1 k2"}),
        ({"keys": ["k1", "k2\t"]}, {"KEYS": " k1  k2\t"}),
        ({}, {"UNIQ_KEY": "u", "WAIT": "true"}),
        ({}, {"DELAY": "0"}),
        ({}, DELIVERED),
        ({}, {**DELIVERED, "TIMER_DELIVER_MS": "1", "TIMER_OUT_MS": "0"}),
    ],
)
def test_a_property_that_says_the_same_is_taken(
    store: Store, given: dict[str, Any], properties: dict[str, str]
) -> None:
    receipt = store.put("t", b"", properties=properties, **given)
    stored = store.at(receipt.log_offset)
    assert stored.tag == given.get("tag", "")
    assert " ".join(stored.keys) == " ".join(given.get("keys", []))
    others = {name: value for name, value in properties.items() if name not in {"TAGS", "KEYS"}}
    assert stored.properties == others


@pytest.mark.parametrize(
    ("given", "properties", "reason"),
    [
        ({"tag": "a"}, {"TAGS": "b"}, "it is 'b', but tag= is 'a'"),
        ({}, {"TAGS": "b"}, "pass it as tag="),
        ({"keys": ["k1", "k2"]}, {"KEYS": "k2 k1"}, "it is 'k2 k1', but keys= are 'k1 k2'"),
        ({"keys": ["k1", "k2"]}, {"KEYS": "k1\u3000k2"}, "but keys= are 'k1 k2'"),
        ({}, {"KEYS": "k"}, "pass it as keys="),
        ({}, {"DELAY": "3"}, "pass it as delay_level="),
        ({}, {"DELAY": "3", "REAL_TOPIC": "t"}, "pass it as delay_level="),
        ({}, {"TIMER_DELAY_MS": "3"}, "deliver_at="),
        ({"delay_level": 2}, DELIVERED, "pass it as delay_level="),
        ({"delay": 0.002}, DELIVERED, "pass it as delay_level="),
        ({"tag": "a"}, {"TAGS": 7}, "it is 7, but tag= is 'a'"),
    ],
)
def test_a_property_that_says_something_else_is_refused(
    store: Store, given: dict[str, Any], properties: dict[str, str], reason: str
) -> None:
    with pytest.raises(PropertyError, match=reason.replace("(", r"\(")):
        store.put("t", b"", properties=properties, **given)
    assert store.topics(system=True) == {}


def test_columns_of_one_store_are_put_into_another(store: Store, tmp_path: Path) -> None:
    """The properties of a column include TAGS and KEYS, which the put refused."""
    for number in range(20):
        store.put(
            "t", b"%d" % number, queue=0, tag="a", keys=["k", f"n{number}"], properties={"x": "y"}
        )
    store.put("t", b"plain", queue=0)
    table = store.to_arrow("t", columns=COLUMNS)
    with penstock.open(tmp_path / "target", environ={}) as target:
        target.put_arrow(table)
        assert target.to_arrow("t", columns=COLUMNS) == table
        assert len(target.find("n7", "t")) == 1
        changed = table.set_column(2, "tag", pa.array(["other"] * len(table)))
        with pytest.raises(PropertyError, match="it is 'a', but tag= is 'other'"):
            target.put_arrow(changed)
