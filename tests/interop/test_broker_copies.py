"""A copy of a whole broker goes on where the broker was; a whole broker is a slave of Penstock, and then the master."""

import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.interop.brokers import sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker
from tests.interop.takeover import SETTINGS, committed, config, handle, opened
from tests.interop.test_java_copies import SETTINGS as SERVING
from tests.interop.test_java_copies import fill, log_of, wait_for_end
from tests.interop.timers import HOUR_MS, WORKER, timer
from tests.lanes import NIGHT, at_night, eventually
from tests.replicas.test_sockets import WAIT_S, master, status_of

import penstock
from penstock.files import Files
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.timers.timer_check import read_check
from penstock_replicate import follow

QUICK = {"haSendHeartbeatInterval": 200}
BROKER = {**QUICK, "messageDelayLevel": "1s 1s 1s 1h " + " ".join(["1s"] * 14)}
GEOMETRY: dict[str, Any] = {**SMALL_GEOMETRY}
HOUR_LEVEL = 4


@pytest.mark.parametrize("version", ["5.3.3", at_night("4.9.7"), at_night("5.5.0")])
def test_a_copy_of_a_broker_goes_on_where_the_broker_was(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """A group has read a half, one delayed message is delivered, and others wait."""
    root, copy, broker = tmp_path / "broker", tmp_path / "copy", make_broker(version)
    has_timers = version > "5"
    broker.start(root, {**BROKER, **({"timerFlushIntervalMs": 500} if has_timers else {})})
    broker.create("orders", 2)

    def messages(*names: str, **more: Any) -> Iterator[dict[str, object]]:
        for number, name in enumerate(names):
            yield sent("orders", name.encode(), number % 2, tag="t", keys=f"k-{name}", **more)

    broker.send(*messages("1", "2", "3"), *messages("soon", delay_level=1))
    with follow(
        copy, broker.ha, protocol="rocketmq", broker=broker.listen, environ={}, **GEOMETRY
    ) as follower:
        broker.consume("billing", "orders", 4)
        waits = [*messages("in an hour", delay_level=HOUR_LEVEL)]
        if has_timers:
            waits.append(timer("at a time", int(time.time() * 1000) + HOUR_MS))
        broker.send(*waits, *messages("4", "5"))
        assert follower.wait_caught_up(WAIT_S)
        assert follower.status()["beside_error"] == ""
        eventually(lambda: config(copy, "delayOffset.json")["offsetTable"].get("1") == 1)
        end = follower.status()["received"]
        broker.stop()
    assert (read_check(Files(), copy) is not None) == has_timers
    assert log_of(copy, end) == log_of(root, end)
    check_files(copy, root)
    penstock.promote(copy, environ={})
    clock, workers = ManualClock(int(time.time() * 1000) + 3 * HOUR_MS), ManualWorkers()
    with open_store(copy, clock=clock, spawn=workers, **SETTINGS):
        for name in ("penstock-deliver", *[WORKER] * 4 * has_timers):
            workers.run(name)
    with opened(copy) as store, store.consumer("billing", "orders") as consumer:
        wanted = {"4", "5", "in an hour", *["at a time"] * has_timers}
        found = [
            each.body for each in handle(consumer, "billing", {(body, 0) for body in wanted}, {})
        ]
        assert sorted(found) == sorted(wanted)
        assert [each.body for each in store.find("k-soon", "orders")] == [b"soon"]
    if NIGHT:
        before = committed(copy, "billing")
        broker.start(copy, BROKER)
        broker.create("bills")
        assert broker.bounds("orders", 0)[1] == before["orders", 0]
        broker.stop()
        assert committed(copy, "billing") == before


def check_files(copy: Path, root: Path) -> None:
    """Check that a copy has the files beside the log that its broker has, as far as nothing changes by itself."""
    assert committed(copy, "billing") == committed(root, "billing")
    for name, table, entry in (
        ("topics.json", "topicConfigTable", "orders"), ("subscriptionGroup.json", "subscriptionGroupTable", "billing"),
    ):  # fmt: skip
        ours, theirs = (config(each, name)[table] for each in (copy, root))
        assert ours[entry] == theirs[entry]


def registered(names: str, ha: str) -> socket.socket:
    """Tell a name server where a master listens for slaves, and a wrong place for what they ask.

    It knows that as long as the connection lasts.
    """
    topics = {
        "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
        "topicConfigTable": {},
    }
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": topics}).encode()
    fields = {
        "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "cluster-a", "brokerId": "0",
        "haServerAddr": ha, "compressed": "false", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }  # fmt: skip
    head = {
        "code": 103,
        "language": "PYTHON",
        "version": 409,
        "opaque": 1,
        "flag": 0,
        "extFields": fields,
    }
    header = json.dumps(head).encode()
    host, _, port = names.rpartition(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(
        (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body
    )
    assert b'"code":0' in line.recv(1 << 16)
    return line


@pytest.mark.parametrize("version", ["4.9.7", at_night("5.3.3"), at_night("5.5.0")])
def test_a_broker_is_a_slave_of_penstock_and_then_the_master(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """It asks for what is beside the log as well, where nobody listens, and goes on.

    One of 5.x finds us by its name server only.
    """
    root, slave, broker = tmp_path / "master", tmp_path / "slave", make_broker(version)
    with master(root, **SERVING) as store:
        last, ha = store.put("orders", b"before", queue=0), status_of(root)["listen"]
        end = last.log_offset + last.size
        more = {} if version > "5" else {"haMasterAddress": ha}
        broker.start(slave, {**QUICK, "brokerRole": "SLAVE", "brokerId": 1, **more})
        with registered(broker.names, ha):
            for _ in range(2):
                broker.call("register")
                wait_for_end(lambda: int(broker.call("end")["end"]), end)
                broker.call("sync")
                end = fill(store, Random(8))
            wait_for_end(lambda: int(broker.call("end")["end"]), end)
        bodies = {n: [each.body for each in store.scan("orders", queue=n)] for n in range(3)}
    broker.stop()
    assert log_of(slave, end) == log_of(root, end)
    broker.start(slave, QUICK)
    broker.create("orders", 3)
    assert {n: broker.bodies("orders", n) for n in range(3)} == bodies
