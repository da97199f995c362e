"""A master with a desk and name servers, as its slaves see it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.penstock_replicate.test_connection import serving
from tests.unit.penstock_replicate.test_desk import free_port

from penstock import ConfigError
from penstock.testing import open_store
from penstock_replicate.master.ha import HaReplicator
from penstock_replicate.remoting.connection import RemotingConnection
from penstock_replicate.remoting.registration import REGISTER, UNREGISTER
from penstock_replicate.remoting.remoting_frames import RemotingFrame
from penstock_replicate.remoting.slave_front import SlaveFront, reachable
from penstock_replicate.remoting.tables import ALL_TOPICS


def test_a_front_registers_and_answers_until_it_closes() -> None:
    told: list[RemotingFrame] = []

    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        told.append(frame)
        writer.write(frame.answer().encode())

    async def story() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with serving(answering) as names:
            front = SlaveFront(address, dict, name_servers=[names], broker="b", cluster="c")
            await front.start("0.0.0.0:10912")
            async with await RemotingConnection.open(address, 5) as connection:
                await connection.request(ALL_TOPICS, 5)
            async with asyncio.timeout(10):
                while not told:
                    await asyncio.sleep(0.005)
            assert front.stats() == {"answered": 1, "name_servers_failed": 0}
            await front.close()
        assert [each.code for each in told] == [REGISTER, UNREGISTER]
        assert told[0].fields["haServerAddr"] == "127.0.0.1:10912"
        assert told[0].fields["brokerAddr"] == address

    asyncio.run(story())


@pytest.mark.parametrize(
    ("address", "other", "found"),
    [
        ("10.0.0.1:2", "10.0.0.9:1", "10.0.0.1:2"),
        ("0.0.0.0:2", "10.0.0.9:1", "10.0.0.9:2"),
        ("[::]:2", "[fe80::1]:1", "[fe80::1]:2"),
    ],
)
def test_an_address_of_all_of_a_machine_is_told_as_the_desks(
    address: str, other: str, found: str
) -> None:
    assert reachable(address, other) == found


def test_a_store_answers_slaves_at_its_desk(tmp_path: Path) -> None:
    port = free_port()
    settings: dict[str, Any] = {
        "replicate.use": "ha",
        "replicate.ha.listen": "127.0.0.1:0",
        "replicate.ha.desk": f"127.0.0.1:{port}",
    }
    with open_store(tmp_path / "store", strategies=[HaReplicator], **settings) as store:
        store.create_topic("orders", queues=3)

        async def asked() -> bytes:
            async with await RemotingConnection.open(f"127.0.0.1:{port - 2}", 5) as connection:
                return (await connection.request(ALL_TOPICS, 5)).body

        table = json.loads(asyncio.run(asked()))["topicConfigTable"]
        assert table["orders"]["readQueueNums"] == 3
        with pytest.raises(ConfigError, match="desk"):
            open_store(tmp_path / "other", strategies=[HaReplicator], **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"desk": "nowhere"},
        {"desk": "127.0.0.1:2"},
        {"name_servers": ["127.0.0.1:9876"]},
        {"name_servers": ["nowhere"], "desk": "127.0.0.1:10911"},
    ],
)
def test_addresses_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    given: dict[str, Any] = {f"replicate.ha.{name}": value for name, value in settings.items()}
    with pytest.raises(ConfigError, match=r"replicate\.ha"):
        open_store(
            tmp_path / "store", strategies=[HaReplicator], **{"replicate.use": "ha", **given}
        )
