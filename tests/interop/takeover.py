"""What a takeover test does and sees on each side, in one form: deliveries, and the records of a directory by their place."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.brokers import Broker, body_of
from tests.interop.compare import facts
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.programs import run_program, wait_for_end

import penstock
from penstock import Store
from penstock.contracts import Consumer
from penstock.contracts.dispatcher import DELAY_SECONDS
from penstock.format.rocketmq_json import parse_rocketmq_json

SETTINGS: dict[str, Any] = {**SMALL_GEOMETRY, "retention.use": []}
# Nothing takes so long unless it never comes.
LIMIT_S = 120
SCHEDULE, RETRY, DEAD = "SCHEDULE_TOPIC_XXXX", "%RETRY%", "%DLQ%"
# What the Java client adds to the messages that it gives to a program.
ADDED = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
# Topic, queue, queue offset.
Place = tuple[str, int, int]
Records = dict[Place, dict[str, Any]]


class Delivery(NamedTuple):
    """One message in the hands of a group; `answer` is "ok", "failed" or "none"."""

    group: str
    place: Place
    body: str
    retries: int
    answer: str


def opened(root: Path, **more: Any) -> Store:
    """Open a store with the sizes that these tests' brokers have."""
    return penstock.open(root, environ={}, **SETTINGS, **more)


def config(root: Path, name: str) -> dict[str, Any]:
    """Return one of a broker's configuration files, parsed."""
    return parse_rocketmq_json((root / "config" / name).read_text())


def committed(root: Path, group: str) -> dict[tuple[str, int], int]:
    """Return a group's offsets by topic and queue, as `consumerOffset.json` has them."""
    path = root / "config" / "consumerOffset.json"
    table = config(root, path.name)["offsetTable"] if path.exists() else {}
    return {
        (name.partition("@")[0], int(queue)): int(offset)
        for name, queues in table.items() if name.split("@")[1:] == [group]
        for queue, offset in queues.items()
    }  # fmt: skip


def of_broker(broker: Broker, root: Path) -> Records:
    """Return all records of messages, delays, retries and dead letters that the Java client pulls, by place."""
    found: Records = {}
    for topic, about in config(root, "topics.json")["topicConfigTable"].items():
        if topic in (SCHEDULE, "orders") or topic.startswith((RETRY, DEAD)):
            for queue in range(about["readQueueNums"]):
                for shown in broker.pull(topic, queue):
                    found[topic, queue, shown["queue_offset"]] = without_added(shown)
    return found


def without_added(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record from what the client shows."""
    kept = {name: value for name, value in shown.items() if name not in ("tag", "keys", "failed")}
    properties = {k: v for k, v in shown["properties"].items() if k not in ADDED | {"__CRC32#"}}
    return kept | {"properties": properties}


def of_penstock(root: Path) -> Records:
    """Return the same from a store that is opened read-only."""
    found: Records = {}
    with opened(root, read_only=True) as store:
        for topic, queues in store.topics(system=True).items():
            if topic in (SCHEDULE, "orders") or topic.startswith((RETRY, DEAD)):
                for queue in queues:
                    for message in store.scan(topic, queue=queue):
                        found[topic, queue, message.queue_offset] = facts(message)
    return found


def of_client(
    group: str, deliveries: list[dict[str, Any]], records: Records | None = None
) -> list[Delivery]:
    """Return the deliveries of a Java consumer; each is compared with its record, if records are given."""
    found = []
    for shown in deliveries:
        count = shown["reconsume_times"]
        place = (RETRY + group if count else shown["topic"], shown["queue"], shown["queue_offset"])
        answer = "failed" if shown["failed"] else "ok"
        found.append(Delivery(group, place, body_of(shown).decode(), count, answer))
        if records is not None and place in records:
            stored = records[place]
            first = stored["properties"].get("RETRY_TOPIC", stored["topic"])
            expected = stored | {"topic": first}
            seen = without_added(shown)
            # The client gives a retried message as one of its first topic, and drops no property.
            assert seen == expected, place
    return found


def handle(
    consumer: Consumer,
    group: str,
    wanted: Collection[tuple[str, int]],
    answers: Mapping[str, list[int]],
    acks_max: int = 1 << 30,
) -> Iterator[Delivery]:
    """Answer what a group gets until it has got what is wanted, and all that there is.

    Args:
        consumer: of the group.
        group: its name.
        wanted: bodies, each with the retry, 0 for the first delivery.
        answers: of a body: for its first delivery, its first retry ...: the delay level with which it is refused.
        acks_max: what comes after so many messages is not answered.
    """
    missing = set(wanted)
    while missing or (acks_max > 0 and any(each.lag for each in consumer.lag())):
        messages = consumer.poll(50, timeout=LIMIT_S)
        assert messages, f"{group} did not get {missing}"
        for message in messages:
            stored = message.stored
            body, count = message.body.decode(), stored.reconsume_times
            place = (stored.topic, stored.queue, stored.queue_offset)
            # What a process held when it was killed counts as tried once more.
            assert count + 1 <= message.attempt <= count + 2
            if count:
                properties = stored.all_properties
                assert message.topic == properties["RETRY_TOPIC"] == "orders"
                assert message.message_id == properties["ORIGIN_MESSAGE_ID"]
            levels = answers.get(body, [])
            if acks_max <= 0:
                yield Delivery(group, place, body, count, "none")
            elif count < len(levels):
                message.nack(delay=DELAY_SECONDS[levels[count] - 1])
                yield Delivery(group, place, body, count, "failed")
            else:
                message.ack()
                yield Delivery(group, place, body, count, "ok")
            acks_max -= 1
            missing.discard((body, count))


def run_member(
    root: Path,
    plan: Mapping[str, Any],
    *,
    is_killed: bool,
    until: Callable[[list[Delivery]], bool],
) -> list[Delivery]:
    """Run a program that puts and consumes with Penstock, and end it; returns what it was given. See `main`."""

    def given(lines: list[str]) -> list[Delivery]:
        found = [json.loads(line) for line in lines]
        return [Delivery(group, tuple(place), *rest) for group, place, *rest in found]

    return given(
        run_program(
            "tests.interop.takeover",
            str(root),
            json.dumps(plan),
            is_killed=is_killed,
            until=lambda lines: until(given(lines)),
        )
    )


def main() -> None:
    """Put, consume, put what nobody consumes, and wait to be ended."""
    root, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    store = opened(root)
    for body, more in plan["puts"]:
        store.put("orders", body.encode(), tag="t", properties={"a": "b"}, **more)
    consumers = []
    for about in plan["groups"]:
        group, wanted = about["group"], [(body, count) for body, count in about["wanted"]]
        consumer = store.consumer(group, "orders", max_retries=about["max_retries"])
        consumers.append(consumer)
        for delivery in handle(consumer, group, wanted, about["answers"], about["acks_max"]):
            print(json.dumps(delivery), flush=True)
    for body, more in plan["last"]:
        store.put("orders", body.encode(), tag="t", **more)
    wait_for_end()
    for consumer in consumers:
        consumer.close()
    store.close()


if __name__ == "__main__":
    main()
