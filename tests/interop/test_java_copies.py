"""A real slave follows our master, and our follower a real master: the logs are equal byte for byte."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.javastore import JavaStore, message
from tests.lanes import at_night, eventually
from tests.replicas.test_sockets import SMALL, WAIT_S, master, status_of

import penstock
from penstock import Durability, Message
from penstock.store.store import Store
from penstock_replicate import follow

QUICK = {"haSendHeartbeatInterval": 200}
# Filler, records that fit into one chunk of 32 KiB, and some that do not.
SIZES = (0, 10, 700, 3000, 30_000, 50_000)
SETTINGS: dict[str, Any] = {
    "replicate.ha.rocketmq_slaves": True, "replicate.ha.wait_for": "received", "replicate.ha.timeout_ms": 30_000,
    "retention.use": [],
}  # fmt: skip


def wait_for_end(found: Callable[[], int], end: int) -> None:
    eventually(lambda: found() == end)


def java_end(java: JavaStore) -> int:
    return int(java.call("state")["max_offset"])


def fill(store: Store, chance: random.Random) -> int:
    for number in range(40):
        body = chance.randbytes(SIZES[number % len(SIZES)])
        store.put("orders", body, queue=number % 3, keys=[f"k{number}"], wait=False)
        if number % 9 == 0:
            store.put_many([Message("bills", body[:300], queue=0)] * 7, atomic=True)
    return int(store.stats()["log_end_offset"])


def log_of(root: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))[:end]


@pytest.mark.parametrize("version", ["4.9.8", at_night("5.3.3")])
def test_a_real_slave_follows_our_master(java: JavaStore, java2: JavaStore, tmp_path: Path) -> None:
    """It is killed once while it receives."""
    root, slave, chance = tmp_path / "master", tmp_path / "slave", random.Random(5)
    there = Durability.ON_DISK_HERE_RECEIVED_THERE
    with master(root, **SETTINGS) as store:
        # An empty slave gets no more than the last segment.
        last = store.put("orders", b"before", queue=0)
        end = last.log_offset + last.size
        for slave_java in (java, java2):
            assert slave_java.open(slave, {"brokerRole": "SLAVE", **QUICK})
            slave_java.call("follow", master=status_of(root)["listen"])
            for _ in range(2):
                wait_for_end(partial(java_end, slave_java), end)
                end = fill(store, chance)
            if slave_java is java:
                java.kill()
                # A segment or queue file that it was about to make has no bytes yet. Java refuses a store with one.
                for file in slave.rglob("0" * 10 + "*"):
                    if file.stat().st_size == 0:
                        file.unlink()
        eventually(lambda: store.put("orders", b"x", queue=0).durability == there)
        last = store.put("orders", b"acknowledged", queue=0)
        end = last.log_offset + last.size
        assert (last.durability, java_end(java2)) == (there, end)
        dump = java2.dump()
        for topic, queue in (("orders", 0), ("orders", 2), ("bills", 0)):
            found = [each["log_offset"] for each in dump[topic, queue]["messages"]]
            assert found == [each.log_offset for each in store.scan(topic, queue=queue)]
        java2.close()
    assert end > 10 * SMALL["geometry.segment_bytes"]
    assert log_of(slave, end) == log_of(root, end)


@pytest.mark.parametrize("version", ["5.3.3", at_night("4.9.8")])
def test_our_follower_follows_a_real_master(java: JavaStore, tmp_path: Path) -> None:
    root, copy, chance, end = tmp_path / "master", tmp_path / "copy", random.Random(6), 0
    java.open(root, {"brokerRole": "ASYNC_MASTER", **QUICK})
    listen = f"127.0.0.1:{java.call('ha_port')['port']}"
    for round_ in range(4):
        # Every other time, the follower is there before the messages are.
        if round_ % 2:
            end = fill_java(java, chance)
        with follow(copy, listen, protocol="rocketmq", environ={}, **SMALL) as follower:
            end = end if round_ % 2 else fill_java(java, chance)
            wait_for_end(lambda: follower.status()["received"], end)
            assert follower.wait_caught_up(WAIT_S)
    assert end > 10 * SMALL["geometry.segment_bytes"]
    assert log_of(copy, end) == log_of(root, end)
    with penstock.open(copy, environ={}, read_only=True) as store:
        assert len([*store.scan("orders")]) == 4 * 40
        assert not [each for each in store.verify() if not each.is_note]


def fill_java(java: JavaStore, chance: random.Random) -> int:
    for n in range(40):
        java.put(message("orders", chance.randbytes(SIZES[n % len(SIZES)]), queue=n % 3))
    return int(java.call("state")["max_offset"])
