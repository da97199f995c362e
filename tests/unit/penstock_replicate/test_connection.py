"""Requests over a connection: the answer that belongs to each, and what ends the connection."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock_replicate.remoting.connection import (
    RefusedRequestError,
    RemotingConnection,
    split_address,
)
from penstock_replicate.remoting.remoting_frames import (
    RemotingDecoder,
    RemotingError,
    RemotingFrame,
)

Answering = Callable[[RemotingFrame, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answering: Answering) -> AsyncIterator[str]:
    """The address of a server that does with each request what the test says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RemotingDecoder()
        try:
            while data := await reader.read(1 << 16):
                for frame in decoder.feed(data):
                    await answering(frame, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def peer(answering: Answering) -> AsyncIterator[RemotingConnection]:
    """A connection to such a server."""
    async with (
        serving(answering) as address,
        await RemotingConnection.open(address, 5) as connection,
    ):
        yield connection


def test_the_answer_is_found_among_others() -> None:
    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        # A request of the server may have the number of ours.
        writer.write(RemotingFrame(code=40, opaque=frame.opaque).encode())
        writer.write(RemotingFrame(code=0, opaque=frame.opaque + 9, flag=1).encode())
        writer.write(frame.answer(body=b"%d" % frame.code).encode())

    async def story() -> None:
        async with peer(answering) as connection:
            for code in (21, 43):
                assert (await connection.request(code, 5)).body == b"%d" % code

    asyncio.run(story())


def test_another_code_than_success_is_an_error_with_its_remark() -> None:
    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writer.write(frame.answer(17, remark="no such topic").encode())

    async def story() -> None:
        async with peer(answering) as connection:
            with pytest.raises(RefusedRequestError, match="request 21 with code 17: no such topic"):
                await connection.request(21, 5)

    asyncio.run(story())


def test_no_answer_in_time_is_an_error() -> None:
    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0")

    async def story() -> None:
        async with peer(answering) as connection:
            with pytest.raises(ConnectionError, match=r"within 0\.05 s"):
                await connection.request(21, 0.05)

    asyncio.run(story())


def test_a_closed_connection_and_garbage_are_errors() -> None:
    async def closing(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def garbling(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">I", 1 << 30))

    async def flooding(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        writer.write(RemotingFrame(code=40).encode() * 2000)

    async def story() -> None:
        for answering, error, text in (
            (closing, ConnectionError, "closed"),
            (garbling, RemotingError, "bytes"),
            (flooding, ConnectionError, "nobody asked for"),
        ):
            async with peer(answering) as connection:
                with pytest.raises(error, match=text):
                    await connection.request(21, 5)

    asyncio.run(story())


def test_a_peer_that_is_not_there_is_an_error() -> None:
    async def story() -> None:
        with pytest.raises(OSError, match="1"):
            await RemotingConnection.open("127.0.0.1:1", 1)

    asyncio.run(story())


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:9999999999", "host:-1", "host:x", "host:²"])  # fmt: skip
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(text)


def test_addresses_are_split() -> None:
    assert split_address("127.0.0.1:10911") == ("127.0.0.1", 10911)
    assert split_address("[::1]:80") == ("::1", 80)
