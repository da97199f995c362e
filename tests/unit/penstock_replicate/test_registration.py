"""Name servers are told of the master at each interval, and when it closes."""

import asyncio
import contextlib
import json
import logging
import zlib

import pytest
from tests.unit.penstock_replicate.test_connection import serving

from penstock_replicate.remoting.registration import (
    REGISTER,
    UNREGISTER,
    BrokerNames,
    Registration,
)
from penstock_replicate.remoting.remoting_frames import RemotingFrame

NAMES = BrokerNames(
    broker="broker-a", cluster="shop", address="10.0.0.1:10911", ha_address="10.0.0.1:10912"
)


def name_server(
    told: list[RemotingFrame], code: int = 0
) -> contextlib.AbstractAsyncContextManager[str]:
    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        told.append(frame)
        writer.write(frame.answer(code, remark="no").encode())

    return serving(answering)


async def until(told: list[RemotingFrame], count: int) -> None:
    async with asyncio.timeout(10):
        while len(told) < count:
            await asyncio.sleep(0.005)


def test_all_name_servers_are_told_again_and_again_and_at_the_end() -> None:
    async def story() -> None:
        first: list[RemotingFrame] = []
        second: list[RemotingFrame] = []
        async with name_server(first) as one, name_server(second) as two:
            registration = Registration([one, two], NAMES, interval_s=0.01)
            registration.start()
            await until(first, 3)
            await until(second, 3)
            await registration.close()
            for told in (first, second):
                assert {each.code for each in told[:-1]} == {REGISTER}
                assert told[-1].code == UNREGISTER
                assert told[-1].fields == NAMES.fields()
            assert registration.troubles == {}
            await registration.close()

    asyncio.run(story())


def test_a_registration_says_who_and_where_and_no_topics() -> None:
    async def story() -> None:
        told: list[RemotingFrame] = []
        async with name_server(told) as server:
            registration = Registration([server], NAMES)
            await registration.register()
            await registration.close()
        frame = told[0]
        fields = frame.fields
        assert fields["brokerId"] == "0"
        assert (fields["brokerAddr"], fields["haServerAddr"]) == (
            "10.0.0.1:10911",
            "10.0.0.1:10912",
        )
        assert int(fields["bodyCrc32"]) == zlib.crc32(frame.body) & 0x7FFFFFFF
        assert json.loads(frame.body)["topicConfigSerializeWrapper"]["topicConfigTable"] == {}

    asyncio.run(story())


def test_a_name_server_that_fails_is_named_once_and_keeps_none_of_the_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        told: list[RemotingFrame] = []
        refusing: list[RemotingFrame] = []
        async with name_server(told) as good, name_server(refusing, 1) as bad:
            registration = Registration(["127.0.0.1:1", bad, good, "nonsense"], NAMES)
            with caplog.at_level(logging.WARNING):
                await registration.register()
                await registration.register()
            assert len(told) == len(refusing) == 2
            assert set(registration.troubles) == {"127.0.0.1:1", bad, "nonsense"}
            assert len(caplog.records) == 3
            await registration.close()

    asyncio.run(story())


def test_a_name_server_keeps_one_connection_and_gets_a_new_one_if_that_ends() -> None:
    """A name server forgets a broker when its connection is closed."""
    writers: list[asyncio.StreamWriter] = []

    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(frame.answer().encode())

    async def story() -> None:
        async with serving(answering) as server:
            registration = Registration([server], NAMES, interval_s=0.01)
            registration.start()
            async with asyncio.timeout(10):
                while len(writers) < 3:
                    await asyncio.sleep(0.005)
                assert len(set(map(id, writers))) == 1
                writers[0].transport.abort()
                while writers[-1] is writers[0]:
                    await asyncio.sleep(0.005)
            await registration.close()

    asyncio.run(story())
