"""Our follower follows a real RocketMQ master: the log, the queues, and the tables beside it; either side ends on the way.

PENSTOCK_KILLS says how often the master is killed; see `tests.conftest.kills`.
"""

import asyncio
import base64
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import kills
from tests.interop.brokers import Broker, sent
from tests.interop.replicas import (
    SEGMENT_BYTES,
    SETTINGS,
    log_bytes,
    read_copy,
    same_answers,
    same_logs,
    table,
    until,
)
from tests.unit.penstock_replicate.test_desk import free_port

from penstock.testing import open_store
from penstock_replicate.following.follow import follow
from penstock_replicate.following.follower import LogFollower
from penstock_replicate.remoting.table_client import fetch_tables
from penstock_replicate.wire.plain import ASKS_FOR_PENSTOCK, encode_report

VERSIONS = ("4.9.7", "5.3.3")
# A Penstock follower waits for so long for the answer of a Penstock master; some more, on a busy machine.
SILENCE_S = 4.0


class JavaMaster:
    """A broker at ports that stay the same."""

    def __init__(self, root: Path, make: Callable[[], Broker]) -> None:
        self.root, self._make = root, make
        port = free_port()
        self.settings = {"listenPort": port, "haListenPort": free_port(), "haSendHeartbeatInterval": 500}  # fmt: skip
        self.chance = random.Random(7)
        self.broker = self.start()

    def start(self) -> Broker:
        self.broker = self._make()
        self.broker.start(self.root, self.settings)
        self.broker.create("orders", 3)
        return self.broker

    def fill(self, count: int) -> None:
        """Send messages in every way; records cross the ends of segments."""
        chance, broker = self.chance, self.broker
        for number in range(count):
            body, queue = chance.randbytes(chance.choice((1, 10, 3000))), chance.randrange(3)
            way = number % 6
            if way == 0:
                broker.batch(*(sent("orders", body, queue, keys="many") for _ in range(5)))
            elif way == 1:
                broker.transaction(sent("orders", body, queue), "COMMIT_MESSAGE")
            elif way == 2:
                broker.send(sent("orders", body, queue, delay_level=1))
            else:
                broker.send(*(sent("orders", body, queue, keys=f"k{number}") for _ in range(6)))

    def settled_end(self) -> int:
        """Return where the log ends once nothing is added to it any more, such as delayed deliveries."""
        end, since = self.broker.end(), time.monotonic()
        while time.monotonic() < since + 1.5:
            time.sleep(0.1)
            if self.broker.end() != end:
                end, since = self.broker.end(), time.monotonic()
        return end


def following(root: Path, master: JavaMaster, **more: Any) -> LogFollower:
    return follow(
        root, f"127.0.0.1:{master.settings['haListenPort']}", remoting=f"127.0.0.1:{master.settings['listenPort']}",
        **SETTINGS, **more,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_our_follower_follows_a_real_master(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    master = JavaMaster(tmp_path / "master", lambda: make_broker(version))
    master.fill(5)
    master.broker.consume("billing", "orders", 5, seconds=3)
    root = tmp_path / "follower"
    # An empty slave gets only the last file of a broker.
    assert master.broker.end() < SEGMENT_BYTES
    with following(root, master) as follower:
        assert follower.wait_caught_up(30)
        master.fill(25)
        assert follower.wait_caught_up(30)
    with following(root, master, protocol="rocketmq") as follower:
        master.fill(15)
        # The master is killed, and comes again. What it had not written of its own tables would be gone.
        for _ in range(max(kills(4), 1)):
            master.broker.save()
            master.broker.kill()
            master.start()
            master.fill(20)
        end = master.settled_end()
        assert follower.wait_caught_up(60, log_offset=end)
        until(
            "the tables have come",
            lambda: (
                "orders@billing" in table(root, "consumerOffset.json", "offsetTable")
                and "orders" in table(root, "topics.json", "topicConfigTable")
                and "1" in table(root, "delayOffset.json", "offsetTable")
                and "billing" in table(root, "subscriptionGroup.json", "subscriptionGroupTable")
            ),
            40,
        )
        tables = asyncio.run(fetch_tables(f"127.0.0.1:{master.settings['listenPort']}"))
        assert tables.log_end == end
        master.broker.stop()
    same_logs(master.root, root, 0, end)
    assert end > 2 * SEGMENT_BYTES
    with (
        read_copy(master.root, tmp_path / "master-copy") as theirs,
        open_store(root, read_only=True) as ours,
    ):
        assert same_answers(theirs, ours, ["many"]) > 100


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_master_ignores_a_report_of_minus_1(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """A Penstock follower says -1 first, and so learns that a RocketMQ master is none of ours, and then reports as a slave does."""
    broker = make_broker(version)
    broker.start(tmp_path, {"haSendHeartbeatInterval": 500})
    broker.create("orders")
    broker.send(sent("orders", b"a message"))
    end = broker.end()

    async def story() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ha_port)
        writer.write(encode_report(ASKS_FOR_PENSTOCK))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), SILENCE_S)
        writer.write(encode_report(0))
        found, log = b"", b""
        async with asyncio.timeout(30):
            while len(log) < end:
                found += await reader.readexactly(12)
                size = int.from_bytes(found[8:12], "big")
                assert int.from_bytes(found[:8], "big") == len(log)
                log += await reader.readexactly(size)
                found = b""
        writer.close()
        return log

    assert asyncio.run(story())[:end] == log_bytes(tmp_path, 0, end)


def test_bodies_survive_the_way(make_broker: Callable[[str], Broker], tmp_path: Path) -> None:
    """What a client sent to the broker is what a reader of our follower gets."""
    master = JavaMaster(tmp_path / "master", lambda: make_broker("5.3.3"))
    told = [f"message {n}".encode() for n in range(50)]
    master.broker.send(*(sent("orders", body) for body in told))
    root = tmp_path / "follower"
    with following(root, master, protocol="rocketmq") as follower:
        assert follower.wait_caught_up(30, log_offset=master.broker.end())
        with open_store(root, read_only=True) as store:
            until("readers see them", lambda: store.max_offset("orders", 0) == len(told))
            assert [message.body for message in store.scan("orders", 0)] == told
            assert base64.b64decode(master.broker.pull("orders")[0]["body"]) == told[0]
