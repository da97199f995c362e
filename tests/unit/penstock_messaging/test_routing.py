"""Messages without a queue: in turn, or by partition key to the queue that RocketMQ's producer picks."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MessageError, TopicError
from penstock.format.java_hash import java_hash
from penstock.message import Message
from penstock.testing import ManualWorkers, make_context, open_store
from penstock_messaging.configuration.routing import Routing
from penstock_messaging.configuration.topics import TopicConfigs

# A text whose Java hash is -2**31, of which Java's abs() is negative.
WORST = "polygenelubricants"


def made(root: Path) -> tuple[TopicConfigs, Routing]:
    topics = TopicConfigs(make_context(root), default_queues=4, auto_create=True)
    return topics, Routing(topics)


def queue_of(routing: Routing, **given: Any) -> object:
    return routing.routed(Message("t", b"x", **given)).queue


def java_queue(key: str, count: int) -> int:
    """`SelectMessageQueueByHash`: `int value = key.hashCode() % count; if (value < 0) value = Math.abs(value)`."""
    number = java_hash(key)
    remainder = abs(number) % count * (1 if number >= 0 else -1)
    return abs(remainder)


@given(st.text(), st.integers(1, 70_000))
def test_a_key_goes_to_the_queue_of_rocketmqs_producer(key: str, count: int) -> None:
    class Topics:
        def get(self, topic: str) -> Any:
            return type("Config", (), {"write_queues": count})

    routing = Routing(Topics())  # type: ignore[arg-type] # what it needs of them
    assert queue_of(routing, partition_key=key) == java_queue(key, count)


def test_known_keys(tmp_path: Path) -> None:
    _, routing = made(tmp_path)
    # Computed with Java: "a" is 97, "k1" 3366, "order-17" -391199250.
    assert [queue_of(routing, partition_key=key) for key in ("a", "k1", "")] == [1, 2, 0]
    assert java_hash(WORST) == -(1 << 31)
    assert queue_of(routing, partition_key=WORST) == 0


def test_messages_without_a_queue_go_to_the_queues_in_turn(tmp_path: Path) -> None:
    topics, routing = made(tmp_path)
    topics.create("t", queues=8, write_queues=3)
    assert [queue_of(routing, queue=None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert routing.routed(Message("u", b"x", queue=None)).queue == 0
    topics.alter("t", queues=2)
    assert {queue_of(routing, queue=None) for _ in range(4)} == {0, 1}


def test_a_topic_without_queues_for_messages_still_answers(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"t":{"writeQueueNums":0,"readQueueNums":0}}}')  # fmt: skip
    _, routing = made(tmp_path)
    assert queue_of(routing, queue=None) == queue_of(routing, partition_key="x") == 0


def test_a_message_with_a_queue_stays_as_it_is(tmp_path: Path) -> None:
    _, routing = made(tmp_path)
    message = Message("t", b"x", queue=3)
    assert routing.routed(message) is message


@pytest.mark.parametrize(("given", "reason"), [
    ({"partition_key": "k", "queue": None}, "the key picks the queue; leave queue out"),
    ({"partition_key": "k", "queue": 2}, "leave one of them out"),
    ({"partition_key": 7}, "it must be a string"),
    ({"partition_key": b"k"}, "it must be a string"),
])  # fmt: skip
def test_what_contradicts_itself_is_refused(tmp_path: Path, given: dict[str, Any], reason: str) -> None:  # fmt: skip
    _, routing = made(tmp_path)
    with pytest.raises(MessageError, match=reason):
        routing.routed(Message("t", b"x", **given))


@pytest.mark.parametrize("given", [{"queue": None}, {"partition_key": "k"}])
def test_an_invalid_topic_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    _, routing = made(tmp_path)
    with pytest.raises(TopicError):
        routing.routed(Message("a/b", b"x", **given))


def test_every_way_of_putting_is_routed(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as store:
        store.put("t", b"0", queue=None)
        store.submit("t", b"1", queue=None)
        receipts = store.put_many([Message("t", b"2", queue=None), Message("t", b"3", queue=None), Message("t", b"4", queue=0)])  # fmt: skip
        assert [receipt.queue for receipt in receipts] == [2, 3, 0]
        by_key = {store.put("t", b"5", partition_key="k1", tag="a").queue for _ in range(3)}
        assert by_key == {2}
        found = next(m for m in store.scan("t") if m.body == b"5")
        # Nothing of the request is stored.
        assert (found.tag, dict(found.properties)) == ("a", {"TAGS": "a"}) or found.tag == "a"
        assert store.topics() == {"t": [0, 1, 2, 3]}
