"""What the timer tests put, and a program that has a store open with Penstock while they run; see `main`."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.interop.brokers import Broker, body_of, sent
from tests.interop.compare import facts
from tests.interop.programs import wait_for_end
from tests.interop.takeover import opened, without_added
from tests.lanes import eventually

from penstock import Store
from penstock.files import Files
from penstock.format.hashes import java_hash
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import read_check
from penstock_messaging.timers.timer_log import TimerLog
from penstock_messaging.timers.timer_message import timer_of
from penstock_messaging.timers.timer_queue import entry_of
from penstock_messaging.timers.timer_units import TimerUnit
from penstock_messaging.timers.unit_chains import slots_ms

HOUR_MS = 3_600_000
WORKER = "penstock-timers"
TOPIC, QUEUE = "orders", 1
# One file of the timer log has 20 units, the last one without room for a blank after it.
SETTINGS = {"timerFlushIntervalMs": 500, "mappedFileSizeTimerLog": 52 * 20 + 30}
Records = dict[tuple[str, int], dict[str, Any]]


def timer(body: str, due_ms: int, **properties: str) -> dict[str, object]:
    """Return a message with a time as a broker's client sends it."""
    given = {"a": "b", "TIMER_DELIVER_MS": str(due_ms), **properties}
    return sent(TOPIC, body.encode(), QUEUE, tag="t", keys=f"k-{body}", properties=given)


def records_of_broker(broker: Broker) -> Records:
    """Return all that waits or waited, and all that is delivered, as the Java client shows it."""
    return {
        (topic, shown["queue_offset"]): without_added(shown)
        for topic, queue in ((TOPIC, QUEUE), (TIMER_TOPIC, 0))
        for shown in broker.pull(topic, queue)
    }


def records_of_penstock(store: Store) -> Records:
    """Return the same as Penstock reads it."""
    return {
        (topic, message.queue_offset): facts(message)
        for topic, queue in ((TOPIC, QUEUE), (TIMER_TOPIC, 0))
        if store.max_offset(topic, queue)
        for message in store.scan(topic, queue=queue)
    }


def delivered_by(broker: Broker, wanted: set[str]) -> Counter[str]:
    """Return how often each body is delivered, once all wanted ones are."""

    def found() -> Counter[str]:
        each = Counter(body_of(shown).decode() for shown in broker.pull(TOPIC, QUEUE))
        return each if wanted <= set(each) else Counter()

    return eventually(found, f"{wanted} are delivered")


def wait_until_saved(root: Path, time_ms: int) -> None:
    """Return when it is saved that everything was delivered and taken in that was due or put before a time."""

    def is_saved() -> bool:
        check = read_check(Files(), root)
        return check is not None and check.read_ms > time_ms

    eventually(is_saved, f"saved up to {time_ms}")


def bodies(store: Store) -> Counter[str]:
    return Counter(message.body.decode() for message in store.scan(TOPIC, queue=QUEUE))


def unit_as_taken_in(store: Store, unit: TimerUnit) -> TimerUnit:
    """Return the unit that Penstock writes for the same record at the same time."""
    message = store.at(unit.log_offset)
    found = timer_of(message)
    entry = entry_of(message, found, unit.enqueue_ms)
    return TimerUnit(*entry, java_hash(found.topic.decode()))


def check_units(store: Store, root: Path) -> None:
    """The units of both have the same fields, and name records as both take them in."""
    found = TimerLog(Files(), root).read()
    check = read_check(Files(), root)
    assert found.damage == ""
    assert check is not None
    for slot_ms, row in zip(slots_ms(found.units).tolist(), found.units, strict=True):
        _, _, kind, enqueue_ms, _, log_offset, size, topic_hash, _ = row.item()
        unit = TimerUnit(slot_ms, log_offset, size, kind, enqueue_ms, topic_hash)
        expected = unit_as_taken_in(store, unit)
        # What Penstock delivered or cancelled before its unit was saved is in a second that is over.
        assert unit.slot_ms == expected.slot_ms or unit.slot_ms < check.read_ms
        assert unit._replace(slot_ms=0) == expected._replace(slot_ms=0)


def run(root: Path, plan: Mapping[str, Any]) -> None:
    """Put, cancel, wait until that is delivered which comes soon, and say so; ends when it is told to."""
    store = opened(root)
    now_ms = int(time.time() * 1000)
    put = {}
    for body, delay_ms in plan["puts"]:
        put[body] = store.put(
            TOPIC, body.encode(), queue=QUEUE, tag="t", keys=[f"k-{body}".replace(" ", "-")], properties={"a": "b"},
            **({"delay": delay_ms / 1000} if delay_ms % 2 else {"deliver_at": (now_ms + delay_ms) / 1000}),
        )  # fmt: skip
    for message in [*store.scan(TIMER_TOPIC)]:
        if message.body.decode() in plan["cancels"]:
            assert store.cancel_delayed(message.message_id), message.body
            assert not store.cancel_delayed(message.message_id), message.body
    wanted = set(plan["wanted"])
    for message in store.scan(TOPIC, queue=QUEUE, follow=True):
        wanted.discard(message.body.decode())
        if not wanted:
            break
    wait_until_saved(root, max(each.store_time_ms for each in store.scan(TOPIC, queue=QUEUE)))
    wait_for_end()
    store.close()


def main() -> None:
    """Do what the second argument says in the store that the first one names."""
    run(Path(sys.argv[1]), json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
