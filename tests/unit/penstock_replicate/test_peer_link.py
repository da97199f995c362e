import asyncio
from typing import Any

import pytest

from penstock_replicate.master.peer_link import LinkEndedError, PeerLink
from penstock_replicate.wire.limits import WireViolation


class ToyTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 7) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True


async def nothing(_link: PeerLink) -> None:
    pass


def made() -> tuple[PeerLink, ToyTransport]:
    link, transport = PeerLink(nothing, 0.05), ToyTransport()
    link.connection_made(transport)
    return link, transport


def test_bytes_are_kept_until_they_are_handled_and_not_without_limit() -> None:
    async def story() -> None:
        link, transport = made()
        link.data_received(b"ab")
        link.data_received(bytes(70_000))
        paused = [transport.is_paused]
        taken: list[bytes] = []
        link.handle_by(taken.append)
        link.data_received(b"c")
        paused.append(transport.is_paused)
        assert paused == [True, False]
        assert b"".join(taken) == b"ab" + bytes(70_000) + b"c"

    asyncio.run(story())


def test_a_violation_ends_the_connection_with_its_reason() -> None:
    def refuse(_data: bytes) -> None:
        raise WireViolation("a frame of nonsense")

    async def story() -> None:
        link, transport = made()
        link.handle_by(refuse)
        link.data_received(b"x")
        assert transport.is_aborted
        assert (link.reason, link.is_fault) == ("the copy sent a frame of nonsense", True)
        with pytest.raises(LinkEndedError):
            link.check()

    asyncio.run(story())


def test_a_writer_waits_while_the_peer_takes_nothing_and_silence_ends_it() -> None:
    async def story() -> None:
        link, transport = made()
        link.pause_writing()
        asyncio.get_running_loop().call_later(0.01, link.resume_writing)
        await link.send(b"a", b"b")
        assert transport.written == [b"ab"]
        link.pause_writing()
        with pytest.raises(LinkEndedError):
            await link.send(b"c")
        assert "silent for 0.05 s" in str(link.reason)

    asyncio.run(story())
