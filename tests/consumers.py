"""Consumers on a group in memory (`fake_group`), for tests."""

from collections.abc import Callable
from typing import Any

from tests.fake_group import FakeClaims, FakeGroup

from penstock import Message
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_messaging.consuming.answers import RetryRules
from penstock_messaging.consuming.consumer import GroupConsumer
from penstock_messaging.consuming.consumer_options import checked_options
from penstock_messaging.consuming.selection import TopicSelection
from penstock_messaging.retries.copies import retry_topic

LEVEL_MS = 5000
GROUP_RETRIES = 16


class Members:
    """Makes consumers of the group "billing"."""

    def __init__(self, store: Store, clock: Any = None, spawn: Any = None) -> None:
        self.store = store
        self.group = FakeGroup(store)
        self.clock = clock or ManualClock()
        self.workers = ManualWorkers()
        self._spawn = spawn or self.workers
        self.closed: list[GroupConsumer] = []

    def __call__(self, *topics: str, **options: Any) -> GroupConsumer:
        context = make_context(
            self.store.path, clock=self.clock, spawn=self._spawn, read_only=False
        )
        checked = checked_options(options)  # type: ignore[arg-type] # a test's own dictionary
        rules = RetryRules(
            checked.max_retries, lambda: GROUP_RETRIES, lambda level: level * LEVEL_MS
        )
        retries = retry_topic("billing")
        selection = TopicSelection((*(topics or ("orders",)), retries))
        consumer = GroupConsumer(
            context, self.store.lowlevel, "billing", checked,
            lambda on_claimed, on_wanted_back, _wake: FakeClaims(self.group, selection, on_claimed, on_wanted_back),
            rules, retry_topic=retries, on_closed=self.closed.append,
        )  # fmt: skip
        consumer.start()
        return consumer

    def journal(self, topic: str = "orders", queue: int = 0) -> Any:
        return self.group.journals[topic, queue]


Make = Callable[..., GroupConsumer]


def put(members: Members, count: int, topic: str = "orders", queues: int = 1) -> None:
    """Put messages with their numbers as bodies."""
    given = [Message(topic, b"%d" % n, queue=n % queues) for n in range(count)]
    members.store.put_many(given)


def poll(consumer: GroupConsumer, limit: int = 100) -> list[Any]:
    """Return what is there now."""
    return consumer.poll(limit, timeout=0)


def bodies(messages: Any) -> list[bytes]:
    """Return the bodies of messages."""
    return [each.body for each in messages]
