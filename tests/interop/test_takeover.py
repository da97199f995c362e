"""One directory goes from a broker to Penstock and on, with kills: nothing is lost, and every field is the same on both sides."""

import base64
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker, sent
from tests.interop.jvms import MakeBroker
from tests.interop.takeover import (
    DEAD,
    RETRY,
    SCHEDULE,
    SETTINGS,
    Delivery,
    Records,
    committed,
    config,
    handle,
    of_broker,
    of_client,
    of_penstock,
    opened,
    run_member,
)
from tests.lanes import at_night

from penstock.testing import ManualClock, ManualWorkers, open_store

# The first retry (level 3) comes soon; a second one waits until somebody else takes the directory over.
BROKERS = {"messageDelayLevel": "1s 1s 1s 1h " + " ".join(["1s"] * 14)}
GROUPS = ("billing", "audit")
HOUR_LEVEL, LAST_LEVEL = 4, 18


class Story:
    """What was sent and delivered so far in one directory, turn by turn."""

    def __init__(self, root: Path, *, is_killed: bool) -> None:
        self.root = root
        self.is_killed = is_killed
        self.sent: set[str] = set()
        self.waiting: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.records: Records = {}

    def messages(self, *names: str, **more: Any) -> list[dict[str, object]]:
        """Return messages as a broker's client sends them, and note them as sent."""
        self.note(names, more)
        return [
            sent("orders", name.encode(), n % 2, tag="t", keys=f"k-{name}".replace(" ", "-"), properties={"a": "b"}, **more)
            for n, name in enumerate(names)
        ]  # fmt: skip

    def puts(self, *names: str, **more: Any) -> list[tuple[str, dict[str, Any]]]:
        """Return messages as `run_member` puts them, and note them as sent."""
        self.note(names, more)
        return [
            (name, {"queue": n % 2, "keys": [f"k-{name}".replace(" ", "-")], **more})
            for n, name in enumerate(names)
        ]

    def note(self, names: tuple[str, ...], more: dict[str, Any]) -> None:
        self.sent |= set(names)
        if more.get("delay_level") in (HOUR_LEVEL, LAST_LEVEL):
            self.waiting |= set(names)

    def wanted(self, group: str) -> set[tuple[str, int]]:
        """Return the first deliveries of what was sent, waits for nothing, and never came to a group."""
        seen = {each.body for each in self.deliveries if each.group == group}
        return {(body, 0) for body in self.sent - seen - self.waiting}

    def turn(
        self, deliveries: list[Delivery], before: dict[str, dict[tuple[str, int], int]]
    ) -> None:
        """Check and add what was delivered in one turn; `before` are the offsets that it began with."""
        for each in deliveries:
            topic, queue, offset = each.place
            done = before[each.group].get((topic, queue), 0)
            assert offset >= done, f"{each} was done before"
        self.deliveries += deliveries

    def offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return what the file of offsets says now."""
        return {group: committed(self.root, group) for group in GROUPS}

    def has_saved(
        self, deliveries: list[Delivery], before: dict[str, dict[tuple[str, int], int]]
    ) -> bool:
        """Return whether the file says for each queue the lowest offset that was not answered in this turn."""
        after = self.offsets()
        answered = {(each.group, each.place) for each in deliveries if each.answer != "none"}
        for group, queue in {(each.group, each.place[:2]) for each in deliveries}:
            offset = before[group].get(queue, 0)
            while (group, (*queue, offset)) in answered:
                offset += 1
            if after[group].get(queue, 0) != offset:
                return False
        return True

    def has_saved_delays(self) -> bool:
        """Return whether the file of delays says that all of level 1 is delivered."""
        done = config(self.root, "delayOffset.json")["offsetTable"].get("1", 0)
        with opened(self.root, read_only=True) as store:
            return int(done) == store.max_offset(SCHEDULE, 0)

    def look(self) -> None:
        """The directory still has every record that was seen before, with every field."""
        ours = of_penstock(self.root)
        for place, record in self.records.items():
            assert ours[place] == record, place
        self.records = ours

    def take_in(self, theirs: Records) -> None:
        """A broker shows every record that we saw, with every field."""
        for place, record in self.records.items():
            assert theirs[place] == record, place
        self.records = theirs

    def end(self, broker: Broker) -> None:
        if self.is_killed:
            broker.kill()
        else:
            broker.stop()


def first_turn(story: Story, broker: Broker) -> None:
    broker.start(story.root, BROKERS)
    broker.create("orders", 2)
    broker.send(*story.messages(*(f"one {n}" for n in range(8))))
    broker.send(
        *story.messages("one soon", delay_level=1),
        *story.messages("one waits", "one waits too", delay_level=HOUR_LEVEL),
    )
    before = story.offsets()
    # Eight, the delayed one, and retries of 4 and 5; 5 waits for its second one.
    failures = {b"one 4": 1, b"one 5": 2}
    taken = of_client("billing", broker.consume("billing", "orders", 11, failures=failures))
    broker.send(*story.messages("one dead"))
    taken += of_client(
        "billing", broker.consume("billing", "orders", 1, failures={b"one dead": 1}, max_retries=0)
    )
    taken += of_client("audit", broker.consume("audit", "orders", 10))
    broker.consume("everyone", "orders", 10, is_broadcast=True)
    broker.save()
    broker.send(*story.messages("one unsaved", "one unsaved too"))
    broker.send(*story.messages("one soon unsaved", delay_level=1))
    taken += of_client("billing", broker.consume("billing", "orders", 3))
    broker.send(*story.messages("one unread"))
    end_turn(story, broker, taken, before)


def end_turn(
    story: Story,
    broker: Broker,
    taken: list[Delivery],
    before: dict[str, dict[tuple[str, int], int]],
) -> None:
    """Check what a broker's turn has shown, end it, and check the offsets that it saved at a close."""
    story.turn(taken, before)
    story.take_in(of_broker(broker, story.root))
    story.end(broker)
    if not story.is_killed:
        assert story.has_saved(taken, before)


def second_turn(story: Story) -> None:
    story.look()
    before = story.offsets()
    others = {
        name: table
        for name, table in config(story.root, "consumerOffset.json")["offsetTable"].items()
        if "@everyone" in name
    }
    puts = story.puts(*(f"two {n}" for n in range(6)), "two dead")
    puts += story.puts("two soon", delay_level=1)
    puts += story.puts("two waits", delay_level=LAST_LEVEL)
    plan: dict[str, Any] = {
        "puts": puts,
        "groups": [
            {
                "group": "billing", "max_retries": 1, "acks_max": 1000,
                "wanted": [*story.wanted("billing"), ("two 1", 1), ("two dead", 1)],
                "answers": {"two 1": [1], "two 2": [LAST_LEVEL], "two dead": [1, 1]},
            },
            {
                "group": "audit", "max_retries": 16, "acks_max": 4,
                "wanted": [*story.wanted("audit")], "answers": {"two 3": [LAST_LEVEL]},
            },
        ],
        "last": story.puts("two unread"),
    }  # fmt: skip
    taken = run_member(
        story.root, plan, is_killed=story.is_killed,
        until=lambda given: story.has_saved(given, before) and story.has_saved_delays(),
    )  # fmt: skip
    story.turn(taken, before)
    assert story.has_saved(taken, before)
    topics = config(story.root, "topics.json")["topicConfigTable"]
    assert (topics["orders"]["readQueueNums"], topics["orders"]["writeQueueNums"]) == (2, 2)
    assert {"%RETRY%billing", "%RETRY%audit", "%DLQ%billing"} <= set(topics)
    assert set(GROUPS) <= set(
        config(story.root, "subscriptionGroup.json")["subscriptionGroupTable"]
    )
    kept = config(story.root, "consumerOffset.json")["offsetTable"]
    assert {name: kept.get(name) for name in others} == others
    story.look()


def third_turn(story: Story, broker: Broker) -> None:
    before = story.offsets()
    broker.start(story.root, BROKERS)
    theirs = of_broker(broker, story.root)
    story.take_in(theirs)
    broker.send(*story.messages(*(f"three {n}" for n in range(4))))
    broker.send(
        *story.messages("three soon", delay_level=2),
        *story.messages("three waits", delay_level=HOUR_LEVEL),
    )
    # What Penstock left: one unread, one that waits and one retry, for a level that is short here. And what is new, with retries.
    failures = {b"three 1": 1, b"three 2": 2}
    wanted = {*story.wanted("billing"), ("two waits", 0), ("two 2", 1), ("three 1", 1), ("three 2", 1)}  # fmt: skip
    given = broker.consume(
        "billing", "orders", wanted={(body.encode(), n) for body, n in wanted}, failures=failures
    )
    records = of_broker(broker, story.root)
    taken = of_client("billing", given, records)
    broker.save()
    broker.send(*story.messages("three unsaved"))
    taken += of_client("billing", broker.consume("billing", "orders", wanted={(b"three unsaved", 0)}))  # fmt: skip
    end_turn(story, broker, taken, before)


def last_turn(story: Story) -> None:
    story.look()
    before = story.offsets()
    workers, later = ManualWorkers(), int(time.time() * 1000) + 3 * 3_600_000
    with open_store(story.root, clock=ManualClock(later), spawn=workers, **SETTINGS):
        workers.run("penstock-deliver")
    with opened(story.root) as store:
        taken: list[Delivery] = []
        for group in GROUPS:
            with store.consumer(group, "orders") as consumer:
                taken += handle(consumer, group, story.wanted(group), {})
                assert not any(each.lag for each in consumer.lag())
        assert [finding.text for finding in store.verify(deep=True) if not finding.is_note] == []
    story.turn(taken, before)
    assert story.has_saved(taken, before)
    story.look()


def check(story: Story) -> None:
    """Nothing was lost, and nothing was made twice but what a kill allows."""
    bodies: dict[str, Counter[str]] = defaultdict(Counter)
    retries: Counter[tuple[str, str, int]] = Counter()
    for (topic, _, _), record in story.records.items():
        body = base64.b64decode(record["body"]).decode()
        bodies[topic][body] += 1
        if topic == SCHEDULE and record["reconsume_times"]:
            group = record["properties"]["REAL_TOPIC"].removeprefix(RETRY)
            retries[group, body, record["reconsume_times"]] += 1
    # A broker that is killed has not saved that it delivered this one.
    twice = {"one soon unsaved"} if story.is_killed else set()
    assert set(bodies["orders"]) == story.sent
    assert {body for body, count in bodies["orders"].items() if count > 1} <= twice
    dead = {"one dead", "two dead"}
    assert bodies[DEAD + "billing"] == Counter(dead)
    for group in GROUPS:
        good = {
            each.body for each in story.deliveries if each.group == group and each.answer == "ok"
        }
        assert good == story.sent - (dead if group == "billing" else set()), group
    # Each refusal made one retry, each retry was delivered to the group's topic once.
    refused = Counter(
        (each.group, each.body, each.retries + 1)
        for each in story.deliveries
        if each.answer == "failed"
    )
    final = {("billing", "one dead", 1), ("billing", "two dead", 2)}
    assert retries == Counter({key: n for key, n in refused.items() if key not in final})
    for group in GROUPS:
        of_group = Counter(body for at, body, _ in retries.elements() if at == group)
        assert bodies[RETRY + group] == of_group


@pytest.mark.parametrize(
    ("version", "is_killed"),
    [("5.3.3", False), at_night("5.3.3", True), at_night("4.9.7", False), at_night("4.9.7", True)],
)
def test_a_directory_goes_to_and_fro(
    version: str, is_killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    story = Story(tmp_path / "store", is_killed=is_killed)
    broker = make_broker(version)
    first_turn(story, broker)
    if is_killed:
        broker = make_broker(version)
    second_turn(story)
    third_turn(story, broker)
    last_turn(story)
    check(story)
