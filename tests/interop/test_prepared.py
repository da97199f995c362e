"""Prepared messages in one directory that goes from a broker to Penstock and on, with kills: each is finished once, by the rules of both.

What a broker asks its producers, and Penstock its check-back, is answered by a property of the message.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker, body_of, sent
from tests.interop.compare import facts
from tests.interop.takeover import opened, without_added

from penstock.contracts import Prepared

VERSIONS = ("4.9.7", "5.3.3")
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
# The group of the driver's producer.
GROUP = "transactions"
COMMIT, ROLLBACK = {"ON_CHECK": "COMMIT_MESSAGE"}, {"ON_CHECK": "ROLLBACK_MESSAGE"}
# 5.x notes for up to 3 s only in memory that a message was committed: checked sooner, it is committed again.
CHECKS = {"transactionCheckInterval": 5000, "transactionTimeOut": 100}
NO_CHECKS = {"transactionCheckInterval": 3_600_000}
# What a broker or its client adds to a message.
OF_BROKERS = {"WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "__CRC32#", "ON_CHECK", "a"}
LIMIT_S = 60
AT_ONCE: dict[str, Any] = {
    "extensions.messaging.check_immunity_ms": 0,
    "extensions.messaging.check_interval_ms": 200,
}


def answer(prepared: Prepared) -> Any:
    """Answer a check-back as the driver does."""
    wanted = prepared.message.all_properties.get("ON_CHECK", "")
    return {"COMMIT_MESSAGE": "commit", "ROLLBACK_MESSAGE": "rollback"}.get(wanted)


def main() -> None:
    """Prepare messages, finish some, let one be checked, and wait to be ended."""
    # The others are finished below, or by the broker.
    checked = b"committed by a check"
    store = opened(
        Path(sys.argv[1]), check_back=lambda p: answer(p) if p.message.body == checked else None, **AT_ONCE
    )  # fmt: skip

    def prepare(body: bytes, properties: Mapping[str, str], group: str = GROUP) -> Prepared:
        return store.prepare(
            "orders", body, group=group, queue=1, tag="t", keys=["k", "l"], flag=7,
            properties={"a": "b", **properties},
        )  # fmt: skip

    with prepare(b"committed", COMMIT), prepare(b"committed too", {}):
        pass
    prepare(b"rolled back", ROLLBACK).rollback()
    prepare(b"committed by a check", COMMIT)
    prepare(b"unknown", {})
    while len(store.prepared()) > 1 or store.prepared()[0].checks == 0:
        time.sleep(0.01)
    # These stay open: no check-back comes within a block.
    prepare(b"open, to commit", COMMIT).__enter__()
    prepare(b"open, to roll back", ROLLBACK).__enter__()
    print("ready", flush=True)
    sys.stdin.readline()
    store.close()


def run(root: Path, *, is_killed: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.interop.test_prepared", str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if is_killed:
            child.kill()
        else:
            child.communicate("end\n", 60)
            assert child.returncode == 0


def bodies(broker: Broker) -> Counter[str]:
    return Counter(one.decode() for queue in (0, 1) for one in broker.bodies("orders", queue))


def known_producer(broker: Broker) -> None:
    """Let the broker know a producer of the group, which it asks from now on. 5.x may ask about this message, too."""
    broker.transaction(sent("orders", b"of the broker", properties=ROLLBACK), "ROLLBACK_MESSAGE")


def until(is_reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def end(broker: Broker, *, is_killed: bool) -> None:
    if is_killed:
        broker.kill()
    else:
        broker.stop()


def assert_same_records(root: Path, shown: list[dict[str, Any]]) -> None:
    """Every field that the Java client shows is the one that Penstock reads, and commits name their half message."""
    with opened(root, read_only=True) as store:
        halves = {m.log_offset: m for m in store.scan(HALF)}
        for one in shown:
            (message,) = store.read("orders", one["queue"], one["queue_offset"], 1).messages
            assert facts(message) == without_added(one)
            half = halves[message.prepared_offset]
            assert message.all_properties == half.all_properties
            copied = ("body", "flag", "born_time_ms", "born_host", "reconsume_times")
            for name in copied:
                assert getattr(message, name) == getattr(half, name), name
            assert message.sys_flag & 0xC == 0x8
        assert [each.text for each in store.verify(deep=True)] == []


def orders(broker: Broker) -> list[dict[str, Any]]:
    return [one for queue in (0, 1) for one in broker.pull("orders", queue)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_finishes_what_penstock_has_prepared(
    version: str, is_killed: bool, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    # A broker of 5.x writes down what is finished after this time; a check before that would commit it again.
    settings = CHECKS | ({"transactionOpBatchInterval": 300} if version.startswith("5") else {})
    run(tmp_path, is_killed=is_killed)
    before = {"committed", "committed too", "committed by a check"}
    broker = make_broker(version)
    broker.start(tmp_path, settings)
    broker.create("orders", 2)
    known_producer(broker)
    everything = Counter(before | {"open, to commit"})
    until(lambda: bodies(broker) >= everything, "the open message was not committed")
    # Two rounds more: nothing is committed again.
    time.sleep(2.5 * CHECKS["transactionCheckInterval"] / 1000)
    shown = orders(broker)
    assert Counter(body_of(one).decode() for one in shown) == everything
    broker.save()
    end(broker, is_killed=is_killed)
    assert_same_records(tmp_path, shown)
    with opened(tmp_path) as store:
        (left,) = store.prepared()
        assert (left.message.body, left.group, left.topic, left.queue) == (b"unknown", GROUP, "orders", 1)  # fmt: skip
        assert left.checks > 1
        left.commit()
        assert store.prepared() == []
    broker = make_broker(version) if is_killed else broker
    broker.start(tmp_path, settings)
    known_producer(broker)
    time.sleep(1.5 * CHECKS["transactionCheckInterval"] / 1000)
    shown = orders(broker)
    assert Counter(body_of(one).decode() for one in shown) == everything + Counter(["unknown"])
    end(broker, is_killed=False)
    assert_same_records(tmp_path, shown)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_penstock_finishes_what_a_broker_has_prepared(
    version: str, is_killed: bool, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """Of a broker of 5.x that is killed within 3 s, the removals are missing: a commit is recognised by its copy."""
    broker = make_broker(version)
    broker.start(tmp_path, NO_CHECKS)
    broker.create("orders", 2)

    def send(body: str, state: str, properties: Mapping[str, str] = {}) -> None:
        broker.transaction(
            sent("orders", body.encode(), 1, tag="t", keys="k l", flag=7, properties={"a": "b", **properties}), state,
        )  # fmt: skip

    send("committed", "COMMIT_MESSAGE", COMMIT)
    send("rolled back", "ROLLBACK_MESSAGE", ROLLBACK)
    send("open, to commit", "UNKNOW", COMMIT)
    send("open, to roll back", "UNKNOW", ROLLBACK)
    send("unknown", "UNKNOW")
    until(lambda: bodies(broker) == Counter(["committed"]), "not committed")
    end(broker, is_killed=is_killed)
    with opened(tmp_path, check_back=answer, **AT_ONCE) as store:
        until(lambda: len(store.prepared()) == 1, "not finished")
        (left,) = store.prepared()
        assert left.message.body == b"unknown"
        mine = store.prepare("orders", b"prepared here", group=GROUP, queue=1, tag="t", keys=["k", "l"])  # fmt: skip
        named = [set(each.message.all_properties) for each in (left, mine)]
        assert named[1] - {"TRANSACTION_CHECK_TIMES"} <= named[0] | {"__transactionId__"}
        assert named[0] - OF_BROKERS - {"TRANSACTION_CHECK_TIMES"} <= named[1]
        for each in (left, mine):
            about = each.message
            assert (about.sys_flag & 0xC, about.prepared_offset, about.queue) == (0, 0, 0)
        mine.rollback()
    if is_killed:
        broker = make_broker(version)
    broker.start(tmp_path, CHECKS)
    known_producer(broker)
    time.sleep(1.5 * CHECKS["transactionCheckInterval"] / 1000)
    shown = orders(broker)
    assert Counter(body_of(one).decode() for one in shown) == Counter(["committed", "open, to commit"])  # fmt: skip
    end(broker, is_killed=False)
    assert_same_records(tmp_path, shown)


if __name__ == "__main__":
    main()
