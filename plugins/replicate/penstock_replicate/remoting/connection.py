"""A connection to a broker or name server: requests out, their answers in."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Mapping
from typing import Self

from penstock_replicate.remoting.remoting_frames import SUCCESS, RemotingDecoder, RemotingFrame

_READ_BYTES = 256 << 10
# Of what a peer may ask of us in between: nothing, and so it is left unanswered.
_FOREIGN_MAX = 1000


class RefusedRequestError(ConnectionError):
    """The other side has answered a request with another code than success.

    Attributes:
        code: the code of the answer.
    """

    def __init__(self, request: int, code: int, remark: str, peer: str) -> None:
        self.code = code
        super().__init__(f"{peer} answers request {request} with code {code}: {remark[:200]}")


class RemotingConnection:
    """One connection. Used by one task at a time; `close` it, or use it in `async with`.

    Attributes:
        peer: HOST:PORT.
    """

    def __init__(
        self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.peer = peer
        self._reader, self._writer = reader, writer
        self._decoder = RemotingDecoder()
        self._frames: deque[RemotingFrame] = deque()
        self._opaques = itertools.count(1)

    @classmethod
    async def open(cls, peer: str, timeout_s: float) -> Self:
        """Return a connection to HOST:PORT; raises `OSError` if there is none in time."""
        host, port = split_address(peer)
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
        except TimeoutError as error:
            raise ConnectionError(f"{peer} does not answer within {timeout_s:g} s") from error
        return cls(peer, reader, writer)

    async def request(
        self,
        code: int,
        timeout_s: float,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingFrame:
        """Return the answer to a request.

        Raises:
            RefusedRequestError: the answer is another one than success; the connection can be used further.
            OSError: the connection is of no use any more; close it.
        """
        sent = RemotingFrame(code=code, opaque=next(self._opaques), fields=fields or {}, body=body)
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(sent.encode())
                await self._writer.drain()
                found = await self._answer_to(sent.opaque)
        except TimeoutError as error:
            raise ConnectionError(
                f"{self.peer} does not answer request {code} within {timeout_s:g} s"
            ) from error
        if found.code != SUCCESS:
            raise RefusedRequestError(code, found.code, found.remark, self.peer)
        return found

    async def _answer_to(self, opaque: int) -> RemotingFrame:
        for _ in range(_FOREIGN_MAX):
            while not self._frames:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise ConnectionError(f"{self.peer} has closed the connection")
                self._frames.extend(self._decoder.feed(data))
            frame = self._frames.popleft()
            if frame.is_response and frame.opaque == opaque:
                return frame
        raise ConnectionError(f"{self.peer} sends {_FOREIGN_MAX} frames that nobody asked for")

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, also of [HOST]:PORT; raises `ValueError` if it is none."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= len("65535")
    if not colon or not host or not is_number or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
