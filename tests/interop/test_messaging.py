"""Groups, retries, delays and topics change hands: from Penstock to a real broker with the Java client, and the reverse."""

import base64
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker, body_of, sent
from tests.interop.javastore import SMALL_GEOMETRY

import penstock
from penstock import Store
from penstock.format.rocketmq_json import parse_rocketmq_json

VERSIONS = ("4.9.7", "5.3.3")
# The file of offsets is written at most this long after an acknowledgement.
INTAKE_S = 1.5
SETTINGS: dict[str, Any] = {**SMALL_GEOMETRY, "retention.use": []}

# What a program does with Penstock before a broker takes the directory over.
OURS = textwrap.dedent("""
    import json, sys, time
    import penstock
    settings = json.loads(sys.argv[2])
    store = penstock.open(sys.argv[1], environ={}, **settings)
    store.create_topic("orders", queues=2)
    for number in range(10):
        store.put("orders", b"order %d" % number, queue=number % 2, tag="t", keys=[f"k{number}"], properties={"a": "b"})
    for number in range(3):
        store.put("orders", b"reminder %d" % number, queue=1, delay_level=5, keys=[f"r{number}"])
    consumer = store.consumer("billing", "orders")
    messages = {m.body.decode(): m for m in consumer.poll(10, timeout=10)}
    while len(messages) < 10:
        messages |= {m.body.decode(): m for m in consumer.poll(10, timeout=10)}
    consumer.ack([messages[f"order {n}"] for n in (0, 1, 2, 3, 6)])
    messages["order 4"].nack(delay_level=3)
    messages["order 5"].nack()
    print("ready", flush=True)
    sys.stdin.readline()
    consumer.close()
    store.close()
""")


def run_ours(root: Path, how: str) -> None:
    """Run that program; `how` is "closed" or "killed"."""
    import json  # noqa: PLC0415

    child = subprocess.Popen(
        [sys.executable, "-c", OURS, str(root), json.dumps(SETTINGS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    if how == "killed":
        time.sleep(INTAKE_S)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    else:
        child.communicate("go on\n", timeout=60)
        assert child.returncode == 0


def opened(root: Path, **more: Any) -> Store:
    return penstock.open(root, environ={}, **SETTINGS, **more)


def config(root: Path, name: str) -> dict[str, Any]:
    return parse_rocketmq_json((root / "config" / name).read_text())


@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_takes_over_and_finishes(
    version: str, how: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    run_ours(root, how)
    broker = make_broker(version)
    broker.start(root)
    # Order 7, 8 and 9 were not answered, 4 and 5 were refused; the reminders are due.
    taken = broker.consume("billing", "orders", 9, failures={b"order 4": 1})
    wanted = [b"order %d" % n for n in (4, 5, 7, 8, 9)] + [b"reminder %d" % n for n in range(3)]
    good = sorted(body_of(one) for one in taken if not one["failed"])
    assert good == sorted(wanted)
    times = {body_of(one): one["reconsume_times"] for one in taken}
    assert times == {
        body: int(body in (b"order 4", b"order 5")) + (body == b"order 4") for body in wanted
    }
    for one in taken:
        name, _, number = body_of(one).decode().partition(" ")
        properties = one["properties"]
        assert one["topic"] == "orders"
        assert one["keys"] == f"{name[0] if name == 'reminder' else 'k'}{number}"
        if name == "order":
            assert (one["tag"], properties["a"]) == ("t", "b")
    topics = config(root, "topics.json")["topicConfigTable"]
    assert (topics["orders"]["readQueueNums"], topics["orders"]["writeQueueNums"]) == (2, 2)
    assert "%RETRY%billing" in topics
    assert "billing" in config(root, "subscriptionGroup.json")["subscriptionGroupTable"]
    broker.stop()
    with opened(root) as store:
        assert not [each.text for each in store.verify() if not each.is_note]
        with store.consumer("billing", "orders") as consumer:
            assert consumer.poll(10, timeout=1.5) == []
            assert sum(consumer.lag().values()) == 0


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_penstock_takes_over_and_finishes(
    version: str, how: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    broker = make_broker(version)
    broker.start(root, {"messageDelayLevel": "4s " * 17 + "4s", "flushConsumerOffsetInterval": 300})
    broker.create("orders", 2)
    broker.send(
        *(sent("orders", b"order %d" % n, n % 2, tag="t", keys=f"k{n}", properties={"a": "b"}) for n in range(10))
    )  # fmt: skip
    # One more than there are: the client saves its offsets meanwhile, and the retries come later.
    failures = {b"order 4": 9, b"order 5": 9}
    taken = broker.consume("billing", "orders", 11, failures=failures, seconds=3)
    assert len(taken) == 10
    broker.send(sent("orders", b"reminder", 1, delay_level=2), sent("orders", b"order 10", 0))
    if how == "killed":
        broker.kill()
    else:
        broker.stop()
    done: dict[bytes, Any] = {}
    with opened(root) as store, store.consumer("billing", "orders", max_retries=2) as consumer:
        wanted = {b"order 4", b"order 5", b"reminder", b"order 10"}
        end = time.monotonic() + 60
        while time.monotonic() < end and not (
            wanted <= set(done) and done[b"order 4"].attempt == done[b"order 5"].attempt == 3
        ):
            for message in consumer.poll(10, timeout=1):
                done[message.body] = message
                fails = {b"order 4": (2,), b"order 5": (2, 3)}.get(message.body, ())
                if message.attempt in fails:
                    message.nack(delay_level=1)
                else:
                    message.ack()
        # A broker that was killed may not have saved the last offsets: what it delivered comes again.
        assert wanted <= set(done) if how == "killed" else wanted == set(done)
        retried = done[b"order 4"]
        assert (retried.attempt, retried.topic, retried.tag) == (3, "orders", "t")
        assert retried.properties["RETRY_TOPIC"] == "orders"
        assert done[b"reminder"].topic == "orders"
    broker = make_broker(version)
    broker.start(root)
    dead = broker.pull("%DLQ%billing")
    assert [body_of(one) for one in dead] == [b"order 5"]
    assert dead[0]["properties"]["RETRY_TOPIC"] == "orders"
    assert broker.consume("billing", "orders", 1, seconds=5) == []
    topics = config(root, "topics.json")["topicConfigTable"]
    assert topics["%DLQ%billing"]["readQueueNums"] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_delays_and_retries_are_those_of_a_broker(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """The same messages through both: every field but times, offsets and ids is the same, in the schedule topic too."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    broker = make_broker(version)
    broker.start(theirs)
    broker.create("orders", 2)
    broker.send(sent("orders", b"late", 1, tag="t", keys="k", delay_level=2, properties={"a": "b"}), sent("orders", b"refused", 0))  # fmt: skip
    assert len(broker.consume("g", "orders", 3, failures={b"refused": 1})) == 3
    broker.stop()
    with opened(ours) as store:
        store.create_topic("orders", queues=2)
        store.put(
            "orders", b"late", queue=1, tag="t", keys=["k"], delay_level=2, properties={"a": "b"}
        )
        store.put("orders", b"refused", queue=0)
        done = []
        with store.consumer("g", "orders") as consumer:
            for message in consumer:
                done.append(message.body)
                if message.body == b"refused" and message.attempt == 1:
                    message.nack()
                else:
                    message.ack()
                if len(done) == 3:
                    break
        store.flush()
    with opened(theirs, read_only=True) as there, opened(ours, read_only=True) as here:
        assert schedule(here) == schedule(there)


# What a client adds to each message, and what differs by its nature.
OF_CLIENTS = {"UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "ORIGIN_MESSAGE_ID"}


def schedule(store: Store) -> list[Any]:
    """Return the records of the topics of delays and retries, and delivered ones, without what differs by its nature."""
    found = []
    for topic, queues in sorted(store.topics().items()):
        if topic in ("SCHEDULE_TOPIC_XXXX", "orders") or topic.startswith("%"):
            for queue in sorted(queues):
                for m in store.scan(topic, queue):
                    properties = {
                        k: v
                        for k, v in m.all_properties.items()
                        if k not in OF_CLIENTS | {"__CRC32#"}
                    }
                    body = base64.b64encode(m.body).decode()
                    found.append((topic, queue, m.queue_offset, body, m.flag, m.sys_flag, m.reconsume_times, properties))  # fmt: skip
    assert any(each[0] == "SCHEDULE_TOPIC_XXXX" for each in found)
    assert any(each[0] == "%RETRY%g" for each in found)
    return found
