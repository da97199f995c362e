"""A connection: bytes in, in bounded memory; and why it ended."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock_replicate.following.channel import BUFFERED_BYTES, Channel, ConnectionLostError

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(peer: Peer, own: Callable[[Channel], Awaitable[None]]) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(peer(reader, writer))
            await asyncio.wait({task, asyncio.ensure_future(ended.wait())}, return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            writer.transport.abort()
            await ended.wait()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        channel = await Channel.connect(host, port, None)
        try:
            await own(channel)
        finally:
            channel.abort()
            ended.set()
            server.close()
            await asyncio.sleep(0.05)

    asyncio.run(main())


async def collect(channel: Channel) -> bytes:
    found = b""
    while True:
        try:
            found += await channel.receive(5)
        except ConnectionLostError:
            return found


def test_all_bytes_come_in_order_and_then_the_reason() -> None:
    sent = bytes(range(256)) * 20_000

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(2) == b"hi"
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def own(channel: Channel) -> None:
        assert await channel.receive(0.02) == b""
        channel.send(b"hi")
        assert await collect(channel) == sent
        with pytest.raises(ConnectionLostError, match="the master closed the connection"):
            await channel.receive(1)

    talk(peer, own)


def test_what_is_not_taken_is_not_read() -> None:
    wrote = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal wrote
        while True:
            writer.write(bytes(1 << 20))
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except (TimeoutError, ConnectionError):
                writer.close()
                return
            wrote += 1 << 20

    async def own(channel: Channel) -> None:
        await asyncio.sleep(1.0)
        assert channel._size <= BUFFERED_BYTES + (1 << 20)
        assert wrote < 64 << 20

    talk(peer, own)


def test_reports_are_left_out_while_the_peer_does_not_read() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)
        writer.close()

    async def own(channel: Channel) -> None:
        for _ in range(1000):
            if not channel.send_latest(bytes(1 << 15)):
                return
        pytest.fail("it never stopped")

    talk(peer, own)


def test_a_wake_ends_the_waiting() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def own(channel: Channel) -> None:
        asyncio.get_running_loop().call_later(0.05, channel.wake)
        began = asyncio.get_running_loop().time()
        assert await channel.receive(20) == b""
        assert asyncio.get_running_loop().time() - began < 10

    talk(peer, own)


def test_a_peer_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1:1 cannot be reached"):
        asyncio.run(Channel.connect("127.0.0.1", 1, None))
