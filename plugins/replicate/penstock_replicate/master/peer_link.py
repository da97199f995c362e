"""One connection to a copy: bytes out with backpressure, bytes in to whoever handles them, and why it ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.contracts import LentFile
from penstock_replicate.master.loop_thread import TaskBell
from penstock_replicate.wire.limits import WireViolation

# Beyond it, nothing more is written until the peer has taken some.
_UNSENT_BYTES = 512 << 10
# A segment is lent for two minutes: see `ReplicatedLog.lend_file`.
_SENDFILE_S = 60.0
# Bytes that come before they are handled: at most one read of the system more.
_KEPT_BYTES = 64 << 10


class LinkEndedError(Exception):
    """The connection has ended; `PeerLink.reason` says why. It never leaves this package."""


class _Descriptor:
    """A file for `loop.sendfile`, which only asks for its descriptor."""

    mode = "rb"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


class PeerLink(asyncio.Protocol):
    """One connection. Used in the loop's thread only.

    Attributes:
        bell: rung when bytes have come or gone, when the log has advanced, and when the connection has ended.
        on_data: handles what comes; may raise `WireViolation`, which ends the connection.
        heard_s: when the peer last sent anything, in the loop's time.
        sent_s: when something was last written.
        sent_bytes: how much was written.
        reason: why the connection ended; None while it has not.
        is_fault: it ended because of something that people must be told.
    """

    def __init__(
        self, serve: "Callable[[PeerLink], Coroutine[Any, Any, None]]", silence_s: float
    ) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._transport: asyncio.Transport | None = None
        self._is_full = False
        self.bell = TaskBell()
        self.on_data: Callable[[bytes], None] = self._keep
        self.kept = b""
        self.name = "?"
        self.heard_s = self.sent_s = 0.0
        self.sent_bytes = 0
        self.reason: str | None = None
        self.is_fault = False
        self.task: asyncio.Task[None] | None = None

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        address = transport.get_extra_info("peername")
        self.name = f"{address[0]}:{address[1]}" if address else "?"
        loop = asyncio.get_running_loop()
        self.heard_s = self.sent_s = loop.time()
        self.task = loop.create_task(self._serve(self))

    def data_received(self, data: bytes) -> None:
        """Hand over what came."""
        if self.reason is not None:
            return
        self.heard_s = asyncio.get_running_loop().time()
        try:
            self.on_data(data)
        except WireViolation as error:
            self.end(f"the copy sent {error}", is_fault=True)

    def eof_received(self) -> bool:
        """Close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note why."""
        if self.reason is None:
            self.reason = (
                f"the connection failed: {exc}" if exc else "the copy closed the connection"
            )
        self.bell.ring()

    def pause_writing(self) -> None:
        """The peer does not take what was written."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        self._is_full = False
        self.bell.ring()

    # --- called by what serves

    @property
    def can_sendfile(self) -> bool:
        """Whether the system can send a file on it by itself."""
        return self._transport is not None and not self._transport.get_extra_info("sslcontext")

    def end(self, reason: str, *, is_fault: bool = False) -> None:
        """Close at once."""
        if self.reason is None:
            self.reason, self.is_fault = reason, is_fault
        if self._transport is not None:
            self._transport.abort()
        self.bell.ring()

    def end_after(self, data: bytes, reason: str) -> None:
        """Close once the peer has taken `data`, or does not take it for as long as a peer may be silent."""
        self.write(data)
        if self.reason is None and self._transport is not None:
            self.reason, self.is_fault = reason, True
            self._transport.close()
            asyncio.get_running_loop().call_later(self._silence_s, self._transport.abort)

    def _keep(self, data: bytes) -> None:
        self.kept += data
        if len(self.kept) > _KEPT_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self.bell.ring()

    def handle_by(self, on_data: Callable[[bytes], None]) -> None:
        """Hand over what has come, and what comes."""
        self.on_data, data, self.kept = on_data, self.kept, b""
        if data:
            self.data_received(data)
        if self._transport is not None and self.reason is None:
            self._transport.resume_reading()

    def check(self) -> None:
        """Raise `LinkEndedError` if the connection has ended, or the peer was silent for too long."""
        now = asyncio.get_running_loop().time()
        if self.reason is None and now - self.heard_s > self._silence_s:
            self.end(f"the copy was silent for {self._silence_s:g} s", is_fault=True)
        if self.reason is not None:
            raise LinkEndedError

    async def rest(self, at_most_s: float) -> None:
        """Wait for the bell; raises `LinkEndedError`."""
        self.check()
        await self.bell.wait(min(at_most_s, self._silence_s))
        self.check()

    def write(self, *parts: bytes | memoryview) -> None:
        """Write without waiting."""
        if self._transport is not None and self.reason is None:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
            self._count(sum(map(len, parts)))

    def _count(self, size: int) -> None:
        self.sent_bytes += size
        self.sent_s = asyncio.get_running_loop().time()

    async def send(self, *parts: bytes | memoryview) -> None:
        """Write, and wait until the peer has taken enough of it; raises `LinkEndedError`."""
        self.write(*parts)
        while self._is_full:
            self.bell.silence()
            await self.rest(self._silence_s)
        self.check()

    async def send_file(self, header: bytes, lent: LentFile, size: int) -> None:
        """Write a header, and after it bytes of a file, without a copy in this process; raises `LinkEndedError`."""
        assert self._transport is not None
        assert lent.descriptor is not None
        self.check()
        self.write(header)
        loop = asyncio.get_running_loop()
        file: Any = _Descriptor(lent.descriptor)
        try:
            async with asyncio.timeout(_SENDFILE_S):
                sent = await loop.sendfile(self._transport, file, lent.position, size)
        except TimeoutError:
            self.end(f"the copy took less than {size} bytes in {_SENDFILE_S:.0f} s", is_fault=True)
        except (OSError, RuntimeError) as error:
            self.end(f"the connection failed: {error}")
        else:
            self._count(sent)
            # Nothing was read meanwhile; a peer that takes bytes is alive.
            self.heard_s = loop.time()
            if sent != size:
                self.end(f"a segment ended {size - sent} bytes early", is_fault=True)
        self.check()
