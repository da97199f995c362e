"""A real RocketMQ slave follows our master: the log, the queues, and the tables beside it; either side ends on the way.

PENSTOCK_KILLS says how often the slave is killed; see `tests.conftest.kills`.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import WHOLE, kills
from tests.interop.brokers import Broker
from tests.interop.replicas import (
    SEGMENT_BYTES,
    log_bytes,
    open_master,
    read_copy,
    same_answers,
    same_logs,
    start_slave,
    table,
    until,
)
from tests.unit.penstock_replicate.test_desk import free_port

from penstock import Message, Store

VERSIONS = ("4.9.7", "5.3.3")


class OurMaster:
    """Our master at ports that stay the same; it is killed by going on from a state of its files at that moment."""

    def __init__(self, root: Path, names: str) -> None:
        self.root = root
        self.ha = f"127.0.0.1:{free_port()}"
        self.settings: dict[str, Any] = {
            "replicate.ha.listen": self.ha,
            "replicate.ha.desk": f"127.0.0.1:{free_port()}",
            "replicate.ha.name_servers": [names],
            "replicate.ha.broker_name": "broker-a",
            "replicate.ha.cluster_name": "cluster-a",
            "replicate.ha.heartbeat_ms": 500,
        }
        self.chance = random.Random(5)

    def open(self, **more: Any) -> Store:
        return open_master(self.root, **{**self.settings, **more})

    def fill(self, store: Store, count: int) -> None:
        """Put messages in every way; records cross the ends of segments."""
        chance = self.chance
        for number in range(count):
            body = chance.randbytes(chance.choice((0, 10, 300, 3000)))
            topic, queue = chance.choice(("orders", "bills")), chance.randrange(3)
            way = number % 5
            if way == 0:
                many = [Message(topic, body, queue=queue, keys=["many"]) for _ in range(7)]
                store.put_many(many)
            elif way == 1:
                store.submit(topic, body, queue=queue, tag="t")
            elif way == 2:
                with store.transaction() as batch:
                    batch.put(topic, body, queue=queue, keys=["atomic"])
                    batch.put(topic, b"second", queue=queue)
            elif way == 3:
                store.put(topic, body, queue=queue, delay_level=14 + number % 3)
            else:
                store.put(topic, body, queue=queue, keys=[f"k{number}"])
        store.flush()


def end_of(store: Store) -> int:
    return int(store.stats()["log_end_offset"])


def caught_up(slave: Broker, store: Store) -> None:
    def is_there() -> bool:
        if slave.end() == end_of(store):
            return True
        # By itself it asks the name server for its master only every 30 s.
        slave.register()
        return False

    until("the slave has the whole log of the master", is_there, 60)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_slave_follows_our_master(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    names = make_broker(version).name_server()
    master = OurMaster(tmp_path / "master", names)
    slave_root = tmp_path / "slave"
    with master.open() as store:
        master.fill(store, 40)
        store.create_topic("declared", queues=5)
        store.commit_offset("billing", "orders", offset=3)
        slave = make_broker(version)
        start_slave(slave, slave_root, names)
        caught_up(slave, store)
        for _ in range(3):
            master.fill(store, 60)
            caught_up(slave, store)
        slave.sync()
        until(
            "the tables have come",
            lambda: (
                "declared" in table(slave_root, "topics.json", "topicConfigTable")
                and "orders@billing" in table(slave_root, "consumerOffset.json", "offsetTable")
            ),
        )
        assert table(slave_root, "consumerOffset.json", "offsetTable")["orders@billing"]["0"] == 3
        # The slave is killed, and goes on.
        for _ in range(max(kills(4), 1)):
            slave.kill()
            master.fill(store, 60)
            slave = make_broker(version)
            start_slave(slave, slave_root, names)
            caught_up(slave, store)
    # The master closes and opens again, and the slave finds it by itself; it waits for 5 s before.
    with master.open() as store:
        if version == VERSIONS[0] or WHOLE:
            master.fill(store, 60)
            caught_up(slave, store)
        end = slave.end()
        assert end == end_of(store)
        slave.stop()
        start = min(int(path.name) for path in (slave_root / "commitlog").iterdir())
        same_logs(master.root, slave_root, start, end)
        assert end > start + 5 * SEGMENT_BYTES
        with read_copy(slave_root, tmp_path / "slave-copy") as copy:
            assert same_answers(store, copy, ["many", "atomic"]) > 200


def test_a_master_that_needs_a_copy_waits_for_a_real_slave(
    make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """What was acknowledged as copied is in the slave's log, also after the slave is killed at once."""
    names = make_broker("5.3.3").name_server()
    master = OurMaster(tmp_path / "master", names)
    slave_root = tmp_path / "slave"
    with master.open(**{"replicate.ha.in_sync_replicas": 2, "replicate.ha.timeout_ms": 5000}) as store:  # fmt: skip
        first = store.put("orders", b"nobody is there")
        assert first.status.name == "SLAVE_NOT_AVAILABLE"
        slave = make_broker("5.3.3")
        start_slave(slave, slave_root, names)
        caught_up(slave, store)
        until("the slave is in sync", lambda: store.put("orders", b"x").status.name == "PUT_OK")
        for number in range(200):
            receipt = store.put("orders", b"%d" % number)
            assert receipt.status.name == "PUT_OK"
        end = end_of(store)
        slave.kill()
        found = log_bytes(slave_root, 0, end)
        assert found == log_bytes(master.root, 0, end)
