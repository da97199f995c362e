"""One connection to a master: bytes in, in bounded memory, and small frames out.

Invariants:
    * At most `BUFFERED_BYTES` and one read of the system wait in memory; then the connection is not read until they are taken.
    * After `hand_over` nothing waits: bytes are taken as they are read, without a copy, and without another turn of the event loop.
    * Nothing waits in memory to be sent beyond `UNSENT_BYTES`: `send_latest` leaves out what a later call repeats.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Self

BUFFERED_BYTES = 4 << 20
UNSENT_BYTES = 64 << 10
# Asyncio's own reads are of 256 KiB: four wake-ups for each chunk of a master.
READ_BYTES = 1 << 20
CONNECT_S = 5.0


class ConnectionLostError(Exception):
    """The connection has ended, or the peer is silent; the text says which. It never leaves this package."""


class Channel(asyncio.BufferedProtocol):
    """A connection to a master. Used by the event loop's thread only."""

    def __init__(self) -> None:
        self._read_into = memoryview(bytearray(READ_BYTES))
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._ended: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[memoryview], None] | None = None
        self._fault: Exception | None = None

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None) -> Self:
        """Return a new connection; raises `ConnectionLostError`."""
        loop = asyncio.get_running_loop()
        name = host if tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await loop.create_connection(
                    cls, host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError as error:
            text = f"{host}:{port} does not answer within {CONNECT_S:.0f} s"
            raise ConnectionLostError(text) from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectionLostError(f"{host}:{port} cannot be reached: {error}") from error
        return made

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that is read into."""
        return self._read_into

    def buffer_updated(self, nbytes: int) -> None:
        """Hand bytes over, or keep them until they are taken."""
        if self._taker is not None:
            self._hand(self._taker, self._read_into[:nbytes])
            return
        self._chunks.append(bytes(self._read_into[:nbytes]))
        self._size += nbytes
        if self._size > BUFFERED_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def _hand(self, taker: Callable[[memoryview], None], data: memoryview) -> None:
        if self._fault is not None:
            return
        try:
            taker(data)
        except Exception as error:
            # Raised by `receive`, in the task of the session.
            self._fault = error
            self.abort()
            self._wake()

    def eof_received(self) -> bool:
        """Close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note why."""
        self._ended = f"the connection failed: {exc}" if exc else "the master closed the connection"
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- called by a session

    def hand_over(self, taker: Callable[[memoryview], None]) -> None:
        """Call `taker` with the bytes that wait, and with all that come; it must not keep the memory.

        What it raises is raised by `receive`, which returns no bytes from now on.
        """
        while self._chunks:
            taker(memoryview(self._chunks.popleft()))
        self._size = 0
        self._taker = taker
        if self._transport is not None:
            self._transport.resume_reading()

    async def receive(self, timeout_s: float) -> bytes:
        """Return the next bytes; b"" if none come in `timeout_s`, or after `wake`.

        Raises `ConnectionLostError` after the last ones.
        """
        if not self._chunks and self._ended is None and self._fault is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                return b""
            finally:
                self._waiter = None
        if self._fault is not None:
            raise self._fault
        if not self._chunks:
            if self._ended is not None:
                raise ConnectionLostError(self._ended)
            return b""
        data = self._chunks.popleft()
        self._size -= len(data)
        if self._size <= BUFFERED_BYTES // 2 and self._transport is not None:
            self._transport.resume_reading()
        return data

    def wake(self) -> None:
        """End a `receive` that waits: there is something to send, or the session is to end."""
        self._wake()

    def send(self, data: bytes) -> None:
        """Send bytes, in order."""
        if self._transport is not None and self._ended is None:
            self._transport.write(data)

    def send_latest(self, data: bytes) -> bool:
        """Send bytes that a later call will repeat with newer facts; return False if the peer does not read."""
        if self._transport is None or self._transport.get_write_buffer_size() > UNSENT_BYTES:
            return False
        self.send(data)
        return True

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
