"""Mixed pairs over a proxy that cuts and delays, and changes bodies: the logs are equal in the end, and nothing that was changed is stored.

RocketMQ's protocol and its records protect nothing but bodies: what else is changed on the way cannot be found out.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import EXHAUSTIVE
from tests.interop.brokers import Broker, sent
from tests.interop.replicas import SETTINGS, same_logs, start_slave
from tests.interop.test_replication_java_master import VERSIONS, JavaMaster
from tests.interop.test_replication_java_slave import OurMaster, caught_up, end_of
from tests.replica_proxy import Chaos, ReplicaProxy

from penstock.testing import open_store
from penstock_replicate.following.follow import follow

MARKS = b"\xb7" * 64
ROUNDS = 4


@pytest.mark.parametrize("version", VERSIONS if EXHAUSTIVE else VERSIONS[-1:])
def test_our_follower_stores_nothing_that_was_changed_on_the_way(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    master = JavaMaster(tmp_path / "master", lambda: make_broker(version))
    chance = random.Random(3)
    root = tmp_path / "follower"
    with ReplicaProxy(f"127.0.0.1:{master.settings['haListenPort']}", seed=3) as proxy:
        with follow(
            root, proxy.address, remoting=f"127.0.0.1:{master.settings['listenPort']}", protocol="rocketmq", silence_ms=3000,
            **SETTINGS,
        ) as follower:  # fmt: skip
            master.fill(3)
            assert follower.wait_caught_up(30)
            for number in range(ROUNDS):
                proxy.chaos = (
                    Chaos(garble_bytes=10_000, only_in=MARKS, delay_bytes=50_000)
                    if number % 2
                    else Chaos(cut_bytes=30_000, delay_bytes=20_000, refuse=0.2)
                )
                master.fill(3)
                bodies = (MARKS * chance.randrange(2, 50) for _ in range(60))
                master.broker.send(*(sent("orders", body, 1) for body in bodies))
            proxy.calm()
            end = master.settled_end()
            assert follower.wait_caught_up(60, log_offset=end), follower.status()
        assert proxy.counts["flip"]
        assert proxy.counts["connections"] > ROUNDS / 2, proxy.counts
    master.broker.stop()
    same_logs(master.root, root, 0, end)
    with open_store(root, read_only=True) as store:
        assert [each for each in store.verify() if not each.is_note] == []


def test_a_real_slave_follows_our_master_over_connections_that_are_cut(
    make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """With 4.9.7, which can be told an address other than the one that the name server knows."""
    names = make_broker("4.9.7").name_server()
    master = OurMaster(tmp_path / "master", names)
    slave_root = tmp_path / "slave"
    with (
        master.open() as store,
        ReplicaProxy(master.ha, seed=4, chaos=Chaos(cut_bytes=100_000, delay_bytes=50_000)) as proxy,
    ):  # fmt: skip
        master.fill(store, 20)
        slave = make_broker("4.9.7")
        start_slave(slave, slave_root, names, haMasterAddress=proxy.address)
        for _ in range(ROUNDS):
            master.fill(store, 20)
        proxy.calm()
        caught_up(slave, store)
        assert proxy.counts["connections"] > 1
        slave.stop()
        start = min(int(path.name) for path in (slave_root / "commitlog").iterdir())
        same_logs(master.root, slave_root, start, end_of(store))
