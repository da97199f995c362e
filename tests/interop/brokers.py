"""A real RocketMQ broker with its name server and the Java client in a JVM of its own, driven from Python.

One `Broker` is one JVM that speaks the line protocol of `java/.../BrokerDriver.java`; it can start and
stop a broker several times. Everything listens at ports that the JVM has bound before it names them. Brokers of 4.9.8 are not in
Maven's repository, so the 4.9 line is tested with 4.9.7.
"""

import base64
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.interop.javastore import SMALL, JavaStoreError, Jvm, build

BROKERS = ("4.9.7", "5.3.3", "5.5.0")
DRIVER = "BrokerDriver"
# Consumers divide queues at once, and no broker makes a key pair, which takes seconds.
FLAGS = (
    "-Drocketmq.client.rebalance.waitInterval=300",
    "-Drocketmq.client.rebalance.minInterval=300",
    "-Dtls.server.mode=disabled",
    "-Dtls.enable=false",
)

# Small files, and quick levels of delay (a first retry is level 3).
SETTINGS = {
    **SMALL,
    "messageDelayLevel": " ".join(["1s"] * 18),
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
}
# Of 5.x: one thread spins until this interval is over for the first time (3 s), another syncs 37 MB at each of its own (1 s).
# Both write what they keep when they are shut down as well.
SETTINGS_5 = {
    "transactionMetricFlushInterval": 100,
    "timerFlushIntervalMs": 60_000,
    # A stop waits for it once for each queue.
    "reviveInterval": 100,
    "reviveQueueNum": 1,
    # What is finished of prepared messages is written down at once.
    "transactionOpBatchInterval": 50,
}


def build_broker(version: str) -> str:
    """Return the class path of name server, broker, client and driver, building it once per version."""
    return build(version, "broker-pom.xml", DRIVER)


class Broker(Jvm):
    """A JVM in which one broker at a time can run; `root` is the directory of the last one."""

    OPENING: ClassVar = "start"
    CLOSING: ClassVar = "stop"

    def __init__(self, classpath: str, version: str) -> None:
        super().__init__(classpath, (), DRIVER, *FLAGS)
        self.version = version
        self.root: Path | None = None
        # Where the name server and the broker listen for clients, and where the broker, if it is a master, listens for slaves.
        self.names = self.listen = self.ha = ""

    def start(self, root: Path, settings: Mapping[str, object] | None = None) -> None:
        """Start a broker on a directory and wait until clients reach it; raises where it does not start."""
        newer = SETTINGS_5 if self.version.startswith("5") else {}
        config = {**SETTINGS, **newer, **(settings or {})}
        answer = self.call("start", root=str(root), config=config)
        if not answer["started"]:
            raise BrokerError(
                f"the broker {self.version} does not start on {root}:\n{self.errors()}"
            )
        self.root = root
        self.names, self.listen, self.ha = answer["names"], answer["listen"], answer.get("ha", "")

    def stop(self) -> None:
        """Shut the broker down cleanly; the JVM can start another."""
        self.call("stop")

    def create(
        self, topic: str, queues: int = 1, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, or update its queues; attributes as `{"queue.type": "BatchCQ"}` are known to 5.x."""
        self.call("create", topic=topic, queues=queues, attributes=dict(attributes or {}))

    def delete(self, topic: str) -> None:
        """Delete a topic in the broker and in the name server."""
        self.call("delete", topic=topic)

    def send(self, *messages: Mapping[str, object]) -> list[dict[str, Any]]:
        """Send messages one by one, each to its queue."""
        found: list[dict[str, Any]] = self.call("send", messages=[*messages])["results"]
        return found

    def batch(self, *messages: Mapping[str, object]) -> dict[str, Any]:
        """Send messages as one client batch."""
        found: dict[str, Any] = self.call("batch", messages=[*messages])["result"]
        return found

    def transaction(self, message: Mapping[str, object], state: str) -> dict[str, Any]:
        """Send a message in a transaction that ends as COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
        found: dict[str, Any] = self.call("transaction", message=dict(message), state=state)[
            "result"
        ]
        return found

    def bounds(self, topic: str, queue: int = 0) -> tuple[int, int]:
        """Return the lowest queue offset and the next one, as the broker's store has them."""
        found = self.call("bounds", topic=topic, queue=queue)
        return found["min"], found["max"]

    def pull(
        self, topic: str, queue: int = 0, offset: int = 0, tag: str = "*"
    ) -> list[dict[str, Any]]:
        """Return all messages of a queue from an offset on."""
        found: list[dict[str, Any]] = self.call(
            "pull", topic=topic, queue=queue, offset=offset, tag=tag
        )["messages"]
        return found

    def bodies(self, topic: str, queue: int = 0, offset: int = 0) -> list[bytes]:
        """Return the bodies of all messages of a queue from an offset on."""
        return [body_of(message) for message in self.pull(topic, queue, offset)]

    def consume(
        self,
        group: str,
        topic: str,
        count: int = 0,
        *,
        wanted: Collection[tuple[bytes, int]] = (),
        failures: Mapping[bytes, int] | None = None,
        max_retries: int | None = None,
        is_broadcast: bool = False,
    ) -> list[dict[str, Any]]:
        """Consume as a group; all that failed has been sent back, and offsets are saved in the broker's memory.

        Args:
            group: the group's name.
            topic: the topic.
            count: does not end before that many deliveries.
            wanted: does not end before each of these bodies was delivered at that retry, 0 for the first delivery.
            failures: how often a body fails first.
            max_retries: how many retries there are before a dead letter; None for the client's 16.
            is_broadcast: every member gets all messages, and nothing is sent back.
        """
        failing = {_text(body): times for body, times in (failures or {}).items()}
        found: list[dict[str, Any]] = self.call(
            "consume", group=group, topic=topic, count=count, failures=failing,
            wanted=[[_text(body), retry] for body, retry in wanted],
            max_retries=max_retries, broadcast=is_broadcast,
        )["deliveries"]  # fmt: skip
        return found

    def check_prepared(self) -> None:
        """Look once at all prepared messages, and ask the producers of those that are due, as the broker does every minute."""
        self.call("check")

    def save(self) -> None:
        """Write the offsets of groups and of delays, as the broker does every few seconds."""
        self.call("save")

    def query(self, topic: str, key: str) -> list[dict[str, Any]]:
        """Return the messages that the broker's index gives for a key."""
        found: list[dict[str, Any]] = self.call("query", topic=topic, key=key)["messages"]
        return found


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


class BrokerError(JavaStoreError):
    """A broker that did not start."""


def sent(topic: str, body: bytes, queue: int = 0, **more: object) -> dict[str, object]:
    """Return a message as the driver takes it: more is tag, keys, properties, delay_level, flag."""
    return {"topic": topic, "body": _text(body), "queue": queue, **more}


def body_of(message: Mapping[str, Any]) -> bytes:
    """Return the body of a message that the driver showed."""
    return base64.b64decode(message["body"])
