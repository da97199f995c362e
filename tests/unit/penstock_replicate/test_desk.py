"""The desk answers slaves on both ports, and nothing that is sent to it harms it or its other connections."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping

import pytest
from tests.unit.penstock_replicate.test_side_names import GOOD

from penstock_replicate.remoting import desk as desks
from penstock_replicate.remoting.connection import RefusedRequestError, RemotingConnection
from penstock_replicate.remoting.desk import Desk
from penstock_replicate.remoting.remoting_frames import (
    BINARY_CODEC,
    IS_ONE_WAY,
    NOT_SUPPORTED,
    SYSTEM_ERROR,
    RemotingDecoder,
    RemotingFrame,
)
from penstock_replicate.remoting.tables import (
    ALL_OFFSETS,
    ALL_REQUEST_MODES,
    ALL_TOPICS,
    TIMER_CHECK,
)


def free_port() -> int:
    """Return a port that is free, and so is the one two below it."""
    while True:
        with socket.socket() as upper, socket.socket() as lower:
            upper.bind(("127.0.0.1", 0))
            port: int = upper.getsockname()[1]
            with contextlib.suppress(OSError):
                lower.bind(("127.0.0.1", port - 2))
                return port


@contextlib.asynccontextmanager
async def open_desk(contents: Mapping[str, bytes] = GOOD) -> AsyncIterator[tuple[Desk, int]]:
    port = free_port()
    desk = Desk(f"127.0.0.1:{port}", lambda: contents)
    await desk.start()
    try:
        yield desk, port
    finally:
        await desk.close()


def test_both_ports_answer() -> None:
    async def story() -> None:
        async with open_desk() as (desk, port):
            for each in (port, port - 2):
                async with await RemotingConnection.open(f"127.0.0.1:{each}", 5) as connection:
                    topics = await connection.request(ALL_TOPICS, 5)
                    assert json.loads(topics.body)["topicConfigTable"] == {"orders": {}}
                    modes = await connection.request(ALL_REQUEST_MODES, 5)
                    assert modes.body == b'{"messageRequestModeMap":{}}'
            assert desk.answered == 4

    asyncio.run(story())


def test_other_requests_are_refused_and_the_connection_goes_on() -> None:
    async def story() -> None:
        async with (
            open_desk({}) as (desk, port),
            await RemotingConnection.open(f"127.0.0.1:{port}", 5) as connection,
        ):
            with pytest.raises(RefusedRequestError, match="request type 310 not supported") as sent:
                await connection.request(310, 5, body=b"a message")
            assert sent.value.code == NOT_SUPPORTED
            with pytest.raises(RefusedRequestError, match="has none") as timers:
                await connection.request(TIMER_CHECK, 5)
            assert timers.value.code == SYSTEM_ERROR
            await connection.request(ALL_OFFSETS, 5)
            assert desk.answered == 1

    asyncio.run(story())


def test_the_answer_has_the_codec_of_the_request_and_one_way_gets_none() -> None:
    async def story() -> None:
        async with open_desk() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(RemotingFrame(code=15, opaque=1, flag=IS_ONE_WAY).encode())
            writer.write(RemotingFrame(code=ALL_TOPICS, opaque=2).answer().encode())
            writer.write(RemotingFrame(code=ALL_TOPICS, opaque=3, codec=BINARY_CODEC).encode())
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            (found,) = RemotingDecoder().feed(
                struct.pack(">I", length) + await reader.readexactly(length)
            )
            assert (found.opaque, found.codec, found.code) == (3, BINARY_CODEC, 0)
            writer.close()

    asyncio.run(story())


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, struct.pack(">I", 2 << 20) + bytes(100), bytes(100)])  # fmt: skip
def test_garbage_closes_only_its_own_connection(data: bytes) -> None:
    async def story() -> None:
        async with (
            open_desk() as (_, port),
            await RemotingConnection.open(f"127.0.0.1:{port}", 5) as good,
        ):
            await good.request(ALL_TOPICS, 5)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(100), 5) == b""
            writer.close()
            await good.request(ALL_TOPICS, 5)

    asyncio.run(story())


def test_too_many_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "_CONNECTIONS_MAX", 2)

    async def story() -> None:
        async with open_desk() as (_, port):
            first = [await RemotingConnection.open(f"127.0.0.1:{port}", 5) for _ in range(2)]
            for each in first:
                await each.request(ALL_TOPICS, 5)
            more = await RemotingConnection.open(f"127.0.0.1:{port}", 5)
            with pytest.raises(ConnectionError):
                await more.request(ALL_TOPICS, 5)
            for each in (*first, more):
                await each.close()

    asyncio.run(story())


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "_IDLE_S", 0.05)

    async def story() -> None:
        async with open_desk() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 5) == b""
            writer.close()

    asyncio.run(story())


def test_a_port_that_is_taken_is_an_error_and_nothing_listens() -> None:
    async def story() -> None:
        async with open_desk() as (_, port):
            # Its lower port is the other desk's upper one.
            second = Desk(f"127.0.0.1:{port + 2}", dict)
            with pytest.raises(OSError, match="in use"):
                await second.start()
            with pytest.raises(OSError):  # noqa: PT011 - whichever reason
                await RemotingConnection.open(f"127.0.0.1:{port + 2}", 1)

    asyncio.run(story())


def test_many_requests_at_once_leave_the_loop_time_for_others() -> None:
    many = b"".join(RemotingFrame(code=9999, opaque=n).encode() for n in range(500))
    asked: list[int] = []
    turns = 0

    def contents() -> Mapping[str, bytes]:
        asked.append(turns)
        return GOOD

    async def story() -> None:
        nonlocal turns
        desk = Desk(f"127.0.0.1:{(port := free_port())}", contents)
        await desk.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(many)
        while len(asked) < 500:
            turns += 1
            await asyncio.sleep(0)
        writer.close()
        await desk.close()
        assert reader is not None

    asyncio.run(story())
    assert len(set(asked)) > 400
