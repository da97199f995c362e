"""Which messages are refused, in a store: by RocketMQ's rules, and by permission, which a broker leaves to its clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    BusyError,
    MessageError,
    TopicError,
    TopicPermissionError,
    TopicQueueError,
    UnknownTopicError,
)
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualWorkers, make_context, open_store
from penstock_messaging.configuration.checks import check_put
from penstock_messaging.configuration.topics import FORBIDDEN, TopicConfigs


def opened(root: Path, **settings: Any) -> Store:
    return open_store(root, spawn=ManualWorkers(), **settings)


# Each way to put a message.
PUTS: list[Callable[[Store, str, int], object]] = [
    lambda store, topic, queue: store.put(topic, b"x", queue=queue),
    lambda store, topic, queue: store.put_many([Message("good", b"y"), Message(topic, b"x", queue=queue)]),
    lambda store, topic, queue: store.submit(topic, b"x", queue=queue),
]  # fmt: skip


@pytest.mark.parametrize("topic", sorted(FORBIDDEN))
@pytest.mark.parametrize("put", PUTS)
def test_topics_that_a_broker_keeps_for_itself_take_no_message(tmp_path: Path, topic: str, put: Callable[[Store, str, int], object]) -> None:  # fmt: skip
    with opened(tmp_path / "s") as store:
        with pytest.raises(TopicError, match="RocketMQ reserves that name"):
            put(store, topic, 0)
        assert store.stats()["log_end_offset"] == 0
        # A copy is no message of a caller.
        store.put_copies([(Message(topic, b"x"), b"")])


@pytest.mark.parametrize("put", PUTS)
def test_a_declared_topic_has_only_its_queues(tmp_path: Path, put: Callable[[Store, str, int], object]) -> None:  # fmt: skip
    with opened(tmp_path / "s") as store:
        store.create_topic("t", queues=8, write_queues=2)
        put(store, "t", 7)
        with pytest.raises(TopicQueueError, match=r"queue 8 of topic 't' .* 8 queues, from 0 to 7") as caught:  # fmt: skip
            put(store, "t", 8)
        assert (caught.value.topic, caught.value.queue, caught.value.limit) == ("t", 8, 7)
        assert store.topics()["t"] == [7]


def test_a_topic_that_messages_created_takes_any_queue(tmp_path: Path) -> None:
    """As in version 0.1."""
    with opened(tmp_path / "s") as store:
        for queue in (0, 3, 65_535, 100):
            store.put("t", b"x", queue=queue)
        assert store.topic_configs()["t"].queues == 65_536
    with opened(tmp_path / "s") as store:
        store.put("t", b"x", queue=4000)


@pytest.mark.parametrize("put", PUTS)
def test_a_topic_without_write_permission_takes_no_message(tmp_path: Path, put: Callable[[Store, str, int], object]) -> None:  # fmt: skip
    with opened(tmp_path / "s") as store:
        put(store, "t", 0)
        # A cached cursor must not let it pass.
        store.alter_topic("t", perm=4)
        for _ in range(2):
            with pytest.raises(TopicPermissionError, match=r"perm 4 lacks 2.*A broker would store"):
                put(store, "t", 0)
        store.alter_topic("t", perm=2)
        put(store, "t", 0)
        assert store.max_offset("t") == 2


@pytest.mark.parametrize("put", PUTS)
def test_without_automatic_creation_an_unknown_topic_takes_no_message(tmp_path: Path, put: Callable[[Store, str, int], object]) -> None:  # fmt: skip
    with opened(tmp_path / "s") as store:
        store.put("old", b"x", queue=1)
        store.put("good", b"x")
    settings = {"extensions.messaging.auto_create_topics": False}
    with opened(tmp_path / "s", **settings) as store:
        with pytest.raises(UnknownTopicError, match="auto_create_topics is false"):
            put(store, "new", 0)
        assert "new" not in store.topic_configs()
        store.create_topic("new", queues=1)
        put(store, "new", 0)
        # What was created before is there, and does not grow.
        put(store, "old", 3)
        with pytest.raises(TopicQueueError):
            put(store, "old", 4)
        # As a client of a broker does, where it cannot give a message back.
        put(store, "%RETRY%g", 0)


def test_a_topic_whose_entry_is_not_understood_takes_messages(tmp_path: Path) -> None:
    path = tmp_path / "s" / "config" / "topics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"topicConfigTable": {"odd": {"perm": "x"}}}))
    for auto in (True, False):
        with opened(tmp_path / "s", **{"extensions.messaging.auto_create_topics": auto}) as store:
            store.put("odd", b"x", queue=77)
    assert '"perm": "x"' in path.read_text() or '"perm":"x"' in path.read_text()


def test_a_topic_that_is_being_deleted_takes_no_message(tmp_path: Path) -> None:
    topics = TopicConfigs(make_context(tmp_path), default_queues=4, auto_create=True)
    topics.ensure("t")

    class Kernel:
        def topics(self) -> dict[str, list[int]]:
            return {}

        def groups(self) -> None: ...

        def recheck_puts(self, topic: str) -> None: ...

        def remove_topic(self, topic: str) -> None:
            with pytest.raises(BusyError, match="nothing was stored"):
                check_put(topics, topic, 0)
            check_put(topics, "u", 0)

    topics.delete("t", Kernel())  # type: ignore[arg-type] # a part of a store
    check_put(topics, "t", 0)


def test_a_refused_message_is_refused_again(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        for _ in range(3):
            with pytest.raises(MessageError):
                store.put("SELF_TEST_TOPIC", b"x")
