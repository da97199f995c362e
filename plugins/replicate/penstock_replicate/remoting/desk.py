"""The desk: answers what Java slaves of our master ask for beside the log.

It listens on a port and on the one two below it, since slaves ask for topics and timers there. It is no broker: it takes no messages
and serves none, and any other request is answered as one that is not supported. Nothing in a request changes anything.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from penstock.escape import get_logger
from penstock_replicate.remoting.connection import split_address
from penstock_replicate.remoting.remoting_frames import (
    NOT_SUPPORTED,
    SYSTEM_ERROR,
    RemotingDecoder,
    RemotingFrame,
)
from penstock_replicate.remoting.tables import TABLE_REQUESTS, answer_to

logger = get_logger(__name__)

# Requests of slaves have no body.
_REQUEST_BYTES_MAX = 1 << 20
_READ_BYTES = 64 << 10
_CONNECTIONS_MAX = 64
# As a broker: a connection without a request for so long is closed, and one that does not take its answers.
_IDLE_S = 120.0
_FAST_PORT_BELOW = 2
_KNOWN = frozenset(each.code for each in TABLE_REQUESTS)


class Desk:
    """The desk of one master. Used in one event loop.

    Args:
        address: HOST:PORT to listen on; PORT - 2 as well.
        contents: returns the files beside the log by name, as `beside.SideReader.contents`.

    Attributes:
        answered: how many requests were answered with success.
    """

    def __init__(self, address: str, contents: Callable[[], Mapping[str, bytes]]) -> None:
        self._host, self._port = split_address(address)
        self._contents = contents
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self.answered = 0

    async def start(self) -> None:
        """Listen; raises `OSError` if a port is taken, and listens on none then."""
        try:
            for port in (self._port, self._port - _FAST_PORT_BELOW):
                server = await asyncio.start_server(self._serve, self._host, port)
                self._servers.append(server)
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections, and listen no more."""
        for server in self._servers:
            server.close()
        open_ones = list(self._connections)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        self._servers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_welcome = len(self._connections) < _CONNECTIONS_MAX
        self._connections.add(task)
        try:
            if is_welcome:
                await self._answer_all(reader, writer)
        except (OSError, TimeoutError) as error:
            peer = writer.get_extra_info("peername")
            logger.info("the connection of %s to the desk is closed: %s", peer, error)
        except asyncio.CancelledError:
            # The desk closes; the task ends as if nothing had happened, since its server would log it otherwise.
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RemotingDecoder(_REQUEST_BYTES_MAX)
        while True:
            async with asyncio.timeout(_IDLE_S):
                data = await reader.read(_READ_BYTES)
            if not data:
                return
            for frame in decoder.feed(data):
                # A slave sends requests only; an answer is one to nothing.
                if frame.is_response or frame.is_one_way:
                    continue
                writer.write(self._answer(frame).encode())
                async with asyncio.timeout(_IDLE_S):
                    await writer.drain()
                # Many requests that came at once must not keep the loop, which also sends the log, from its other work.
                await asyncio.sleep(0)

    def _answer(self, frame: RemotingFrame) -> RemotingFrame:
        body = answer_to(frame.code, self._contents())
        if body is not None:
            self.answered += 1
            return frame.answer(body=body)
        if frame.code in _KNOWN:
            return frame.answer(SYSTEM_ERROR, remark="this master has none")
        # With a space first, as in a broker.
        return frame.answer(NOT_SUPPORTED, remark=f" request type {frame.code} not supported")
