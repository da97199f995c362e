"""Prepared messages in one directory that goes from a broker to Penstock and on, with kills: each is finished once, by the rules of both.

What a broker asks its producers, and Penstock its check-back, is answered by a property of the message.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker, body_of, sent
from tests.interop.compare import facts
from tests.interop.jvms import MakeBroker
from tests.interop.programs import run_program, wait_for_end
from tests.interop.takeover import opened, without_added
from tests.lanes import at_night, eventually

from penstock.contracts import Prepared

HALF, REMOVED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# The group of the driver's producer.
GROUP = "transactions"
COMMIT, ROLLBACK = {"ON_CHECK": "COMMIT_MESSAGE"}, {"ON_CHECK": "ROLLBACK_MESSAGE"}
# A broker checks when it is told to.
SETTINGS = {"transactionCheckInterval": 3_600_000, "transactionTimeOut": 1}
# What a broker or its client adds to a message.
OF_BROKERS = {"WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "__CRC32#", "ON_CHECK", "a"}
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
    eventually(lambda: [each.checks > 0 for each in store.prepared()] == [True])
    # These stay open: no check-back comes within a block.
    prepare(b"open, to commit", COMMIT).__enter__()
    prepare(b"open, to roll back", ROLLBACK).__enter__()
    wait_for_end()
    store.close()


def bodies(broker: Broker) -> Counter[str]:
    return Counter(one.decode() for queue in (0, 1) for one in broker.bodies("orders", queue))


def prepared_in(root: Path) -> set[bytes]:
    """Return the bodies of prepared messages that a broker or Penstock has not noted as finished."""
    with opened(root, read_only=True) as store:
        # A check leaves a message as it was, and prepares it once more.
        latest = {each.body: b"%d" % each.queue_offset for each in store.scan(HALF)}
        # Each note names one message, or several: `1,2,`.
        notes = b",".join(each.body for each in store.scan(REMOVED)).split(b",")
    return {body for body, offset in latest.items() if offset not in notes}


def checked_by(broker: Broker, root: Path) -> set[bytes]:
    """Let a broker check once; returns the bodies of what it asks the producers about, which it has prepared once more."""
    _, end = broker.bounds(HALF)
    broker.check_prepared()
    _, stop = broker.bounds(HALF)
    with opened(root, read_only=True) as store:
        return {each.body for each in store.read(HALF, 0, end, 100).messages if stop > end}


def start(broker: Broker, root: Path, prepared: set[bytes]) -> None:
    """Start a broker that knows a producer of the group, which it asks from now on."""
    broker.start(root, SETTINGS)
    broker.create("orders", 2)
    broker.transaction(sent("orders", b"of the broker", properties=ROLLBACK), "ROLLBACK_MESSAGE")
    eventually(lambda: prepared_in(root) == prepared)


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


@pytest.mark.parametrize(
    ("version", "is_killed"),
    [("5.3.3", True), at_night("5.3.3", False), at_night("4.9.7", False), at_night("4.9.7", True)],
)
def test_a_broker_finishes_what_penstock_has_prepared(
    version: str, is_killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    run_program("tests.interop.test_prepared", str(tmp_path), is_killed=is_killed)
    opens = {b"open, to commit", b"open, to roll back", b"unknown"}
    broker = make_broker(version)
    start(broker, tmp_path, opens)
    assert checked_by(broker, tmp_path) == opens
    eventually(lambda: prepared_in(tmp_path) == {b"unknown"})
    everything = Counter(["committed", "committed too", "committed by a check", "open, to commit"])
    assert bodies(broker) == everything
    for _ in range(2):
        assert checked_by(broker, tmp_path) == {b"unknown"}, "nothing is committed again"
    shown = orders(broker)
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
    start(broker, tmp_path, set())
    assert checked_by(broker, tmp_path) == set()
    shown = orders(broker)
    assert Counter(body_of(one).decode() for one in shown) == everything + Counter(["unknown"])
    end(broker, is_killed=False)
    assert_same_records(tmp_path, shown)


@pytest.mark.parametrize(
    ("version", "is_killed"),
    [("4.9.7", False), at_night("4.9.7", True), at_night("5.3.3", False), at_night("5.3.3", True)],
)
def test_penstock_finishes_what_a_broker_has_prepared(
    version: str, is_killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Of a broker of 5.x that is killed within 3 s, the removals are missing: a commit is recognised by its copy."""
    broker = make_broker(version)
    broker.start(tmp_path, SETTINGS)
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
    eventually(lambda: bodies(broker) == Counter(["committed"]))
    end(broker, is_killed=is_killed)
    with opened(tmp_path, check_back=answer, **AT_ONCE) as store:
        (left,) = eventually(lambda: [*store.prepared()] if len(store.prepared()) == 1 else [])
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
    start(broker, tmp_path, {b"unknown"})
    assert checked_by(broker, tmp_path) == {b"unknown"}
    shown = orders(broker)
    assert Counter(body_of(one).decode() for one in shown) == Counter(["committed", "open, to commit"])  # fmt: skip
    end(broker, is_killed=False)
    assert_same_records(tmp_path, shown)


if __name__ == "__main__":
    main()
