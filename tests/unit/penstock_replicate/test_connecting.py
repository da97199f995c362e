"""What the master speaks: found out by its answer, or by its silence."""

import asyncio
import ssl
from pathlib import Path

import pytest

from penstock.files import Files
from penstock_replicate.following import connecting
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.connecting import Greeter
from penstock_replicate.following.options import Address, FollowOptions
from penstock_replicate.wire.plain import encode_chunk_header, encode_greeting


def greeting(answer: bytes, options: FollowOptions, *, knows_penstock: bool = False) -> tuple[tuple[bytes, bytes] | None, bytes]:  # fmt: skip
    heard = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard += await reader.read(100)
        writer.write(answer)
        await reader.read()
        writer.close()

    async def main() -> tuple[bytes, bytes] | None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        channel = await Channel.connect(host, port, None)
        try:
            greeter = Greeter(options, Files())
            return await greeter.greet(channel, knows_penstock=knows_penstock)
        finally:
            await asyncio.sleep(0.05)
            channel.abort()
            server.close()
            await asyncio.sleep(0.05)

    return asyncio.run(main()), heard


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "GREETING_S", 0.2)
    monkeypatch.setattr(connecting, "KNOWN_GREETING_S", 0.3)


ANY = FollowOptions(master=Address("127.0.0.1", 1))


def test_a_penstock_master_greets(tmp_path: Path) -> None:
    found, heard = greeting(encode_greeting(b"hello") + b"more", ANY)
    assert found == (b"hello", b"more")
    assert heard == b"\xff" * 8


def test_a_master_that_closes_without_a_word_may_want_something_else() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        channel = await Channel.connect(host, port, None)
        try:
            with pytest.raises(ConnectionLostError, match=r"without an answer; .*TLS"):
                await Greeter(ANY, Files()).greet(channel, knows_penstock=False)
            with pytest.raises(ConnectionLostError, match=r": \S.*; this side uses TLS"):
                await Channel.connect(host, port, ssl.create_default_context())
        finally:
            channel.abort()
            server.close()
            await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_rocketmq_master_is_silent() -> None:
    assert greeting(b"", ANY)[0] is None


@pytest.mark.parametrize(("options", "knows_penstock"), [(ANY, True), (FollowOptions(master=ANY.master, protocol="penstock"), False)])  # fmt: skip
def test_silence_of_a_master_that_must_be_penstock_ends_the_connection(options: FollowOptions, knows_penstock: bool) -> None:  # fmt: skip
    with pytest.raises(ConnectionLostError, match="does not answer as a Penstock master"):
        greeting(b"", options, knows_penstock=knows_penstock)


def test_nothing_is_asked_where_the_protocol_is_given() -> None:
    assert greeting(b"", FollowOptions(master=ANY.master, protocol="rocketmq")) == (None, b"")


@pytest.mark.parametrize("answer", [encode_chunk_header(0, 0), b"\xff" * 12])
def test_another_answer_ends_the_connection(answer: bytes) -> None:
    with pytest.raises(ConnectionLostError):
        greeting(answer, ANY)
