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
from tests.interop.takeover import opened, without_added

from penstock import Store
from penstock.files import Files
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import read_check

HOUR_MS = 3_600_000
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
        for message in store.scan(topic, queue)
    }


def delivered_by(broker: Broker, wanted: set[str]) -> Counter[str]:
    """Return how often each body is delivered, once all wanted ones are."""
    deadline = time.monotonic() + 60
    while True:
        found = Counter(body_of(shown).decode() for shown in broker.pull(TOPIC, QUEUE))
        if wanted <= set(found):
            return found
        assert time.monotonic() < deadline, f"not delivered: {wanted - set(found)}"
        time.sleep(0.1)


def wait_until_saved(root: Path, time_ms: int) -> None:
    """Return when it is saved that everything was delivered and taken in that was due or put before a time."""
    deadline = time.monotonic() + 60
    while True:
        check = read_check(Files(), root)
        if check is not None and check.read_ms > time_ms:
            return
        assert time.monotonic() < deadline, f"not saved up to {time_ms}: {check}"
        time.sleep(0.05)


def run(root: Path, plan: Mapping[str, Any]) -> None:
    """Put, cancel, wait until that is delivered which comes soon, and say so; ends when it is told to."""
    store = opened(root)
    now_ms = int(time.time() * 1000)
    put = {}
    for body, delay_ms in plan["puts"]:
        put[body] = store.put(
            TOPIC, body.encode(), queue=QUEUE, tag="t", keys=[f"k-{body}"], properties={"a": "b"},
            **({"delay_ms": delay_ms} if delay_ms % 2 else {"deliver_at": now_ms + delay_ms}),
        )  # fmt: skip
    for message in [*store.scan(TIMER_TOPIC)]:
        if message.body.decode() in plan["cancels"]:
            assert store.cancel_delayed(message.message_id), message.body
            assert not store.cancel_delayed(message.message_id), message.body
    wanted = set(plan["wanted"])
    for message in store.scan(TOPIC, QUEUE, follow=True):
        wanted.discard(message.body.decode())
        if not wanted:
            break
    wait_until_saved(root, max(each.store_time_ms for each in store.scan(TOPIC, QUEUE)))
    print("ready", flush=True)
    sys.stdin.readline()
    store.close()


def main() -> None:
    """Do what the second argument says in the store that the first one names."""
    run(Path(sys.argv[1]), json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
