"""The thread with the event loop of a master, its connections, and the threads that do its file work.

The loop touches no file: what may wait for a disk runs `aside`. Connections are protocols, not tasks, so that closing
them leaves none behind. A forked child closes its copies of the sockets, without a word to the other sides.
"""

import asyncio
import contextlib
import queue
import ssl
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from penstock.escape import get_logger
from penstock.files.lock_file import leave_in_child
from penstock_replicate.peer import Action, Close, Machine, Send

logger = get_logger(__name__)
T = TypeVar("T")
_RECEIVE_BYTES = 64 << 10
# The bytes that are not sent yet, from which on no more of the log is read.
_UNSENT_BYTES = 1 << 20
# How long a closed connection may send what it still has to say.
_LAST_WORDS_S = 1.0
_HANDSHAKE_S = 5.0
# How long a closing waits for a disk that does not answer: the threads are daemons.
_JOIN_S = 10.0


def tried(job: Callable[[], T]) -> T | BaseException:
    """Return what a job returns or raises."""
    try:
        return job()
    except BaseException as error:
        return error


class Link(asyncio.BufferedProtocol):
    """A connection: gives its machine what comes, and carries its actions out. For the loop's thread."""

    peer: Machine

    def __init__(self, loop: "Loop") -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.is_full = self.is_over = self._is_begun = False
        self._full_since_s = 0.0
        self._early = bytearray()

    @abstractmethod
    def begin(self, address: str) -> Sequence[Action]:
        """Make the machine; return its first actions."""

    @abstractmethod
    def do(self, action: Action) -> None:
        """Carry out an action that is neither `Send` nor `Close`."""

    def ended(self, close: Close | None, reason: str) -> None:
        """Called once, when the machine has closed the connection or, if `close` is None, when it was lost."""

    def run(self, actions: Sequence[Action]) -> None:
        """Carry out actions in their order."""
        try:
            for action in actions:
                if isinstance(action, Send):
                    transport = self.transport
                    if self._is_begun and transport is not None and not transport.is_closing():
                        transport.write(action.data)
                elif isinstance(action, Close):
                    self._over(action, action.reason)
                else:
                    self.do(action)
        except Exception:
            logger.exception("a connection was closed")
            self.abort("it was closed by an error here")

    def tick(self, now_ms: int, silence_ms: int) -> None:
        """Let the machine look at the time."""
        self.run(self.peer.tick(now_ms))
        full_s = self.loop.loop.time() - self._full_since_s
        if self.is_full and full_s * 1000 >= silence_ms:
            self.abort("the other side does not read")

    def _over(self, close: Close | None, reason: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended(close, reason)
            if self.transport is not None:
                self.transport.close()
                self.loop.loop.call_later(_LAST_WORDS_S, self.transport.abort)

    def abort(self, reason: str) -> None:
        """Close the connection without sending what is left."""
        self.leave(reason)
        if self.transport is not None:
            self.transport.abort()

    def leave(self, reason: str) -> None:
        """Close the connection when what was sent is on its way."""
        self._over(None, reason)

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the machine and begin, unless there are too many connections."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        actions = self.begin(f"{host}:{port}")
        if not self.loop.add(self):
            self.abort("too many connections")
        elif self.loop.tls is not None:
            transport.pause_reading()
            self._encrypting = self.loop.loop.create_task(self._encrypt(transport, actions))
        else:
            self._begun(transport, actions)

    async def _encrypt(self, transport: asyncio.Transport, actions: Sequence[Action]) -> None:
        """Begin to encrypt, and then to speak."""
        tls = self.loop.tls
        assert tls is not None
        try:
            encrypted = await self.loop.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except BaseException as error:
            # Nobody else says that the connection is lost.
            self.connection_lost(OSError(f"TLS has failed: {error!r}"))
            if not isinstance(error, OSError):
                raise
            return
        if encrypted is None or self.is_over:
            # It was closed meanwhile.
            transport.abort()
            self.connection_lost(None)
        else:
            self._begun(encrypted, actions)

    def _begun(self, transport: asyncio.Transport, actions: Sequence[Action]) -> None:
        self.transport, self._is_begun = transport, True
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self.run(actions)
        if self._early:
            self.data_received(bytes(self._early))

    def get_buffer(self, _size: int) -> memoryview:
        """Return where asyncio puts what comes: to allocate its own buffer takes longer than to receive an answer."""
        return self.loop.memory

    def buffer_updated(self, size: int) -> None:
        """Give the machine what has come."""
        self.data_received(bytes(self.loop.memory[:size]))

    def data_received(self, data: bytes) -> None:
        """Give the machine what has come."""
        if not self._is_begun:
            # With the last words of the handshake, of whose end this side has not been told yet.
            self._early += data
        elif not self.is_over:
            self.run(self.peer.take(data))

    def pause_writing(self) -> None:
        """Note that much is not sent yet."""
        # Each time anew: in a catch-up it is full nearly always, and the other side reads.
        self.is_full, self._full_since_s = True, self.loop.loop.time()

    def resume_writing(self) -> None:
        """Note that most of it is sent."""
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._over(None, str(exc or "the other side has closed the connection"))
        self.loop.links.discard(self)


class Loop:
    """A daemon thread with an event loop, and daemon threads for what may wait for a disk.

    Attributes:
        loop: the event loop.
        links: the open connections.
        tls: how connections are encrypted; None if they are not.
        memory: what a connection has received, until it is taken.
    """

    def __init__(
        self,
        name: str,
        *,
        links_max: int,
        threads: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls, self.memory = tls, memoryview(bytearray(_RECEIVE_BYTES))
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_log_error)
        self.links: set[Link] = set()
        self._links_max = links_max
        self._servers: list[asyncio.Server] = []
        self._is_closing = self._is_child = False
        self._ending = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target in (self.loop.run_forever, *[self._work] * threads)
        ]
        leave_in_child(self)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor that of the parent process."""
        return not self._is_child and not self.loop.is_closed()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop, soon; does nothing once it is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *args)

    def aside(self, job: Callable[[], T], then: Callable[[T | BaseException], object]) -> None:
        """Run a job in another thread, and give the loop what it has returned or raised."""
        self._jobs.put(lambda: self.post(then, tried(job)))

    async def listen(self, make: Callable[[], Link], host: str, port: int) -> str:
        """Accept connections; return the address, with the port that the system has chosen if it is 0."""
        server = await self.loop.create_server(make, host, port)
        self._servers.append(server)
        found, real = server.sockets[0].getsockname()[:2]
        return f"[{found}]:{real}" if ":" in found else f"{found}:{real}"

    def add(self, link: Link) -> bool:
        """Note a new connection; return False if there are too many, or the loop is about to close."""
        if self._is_closing or len(self.links) >= self._links_max:
            return False
        self.links.add(link)
        return True

    def close(self) -> bool:
        """End all connections, tasks and threads; a second call does nothing.

        Returns whether the threads have ended: one may wait for a disk.
        """
        with self._ending:
            if self.is_open and self._threads[0].is_alive():
                self.call(self._wind_down())
                self.loop.call_soon_threadsafe(self.loop.stop)
                for _ in self._threads[1:]:
                    self._jobs.put(None)
                for thread in self._threads:
                    thread.join(_JOIN_S)
            if self.is_open:
                self.loop.close()
            return self._is_child or not any(thread.is_alive() for thread in self._threads)

    async def _wind_down(self) -> None:
        """Close everything until nothing is left: what was accepted in the meantime comes to light one by one."""
        self._is_closing = True
        for server in self._servers:
            for each in server.sockets:
                self.loop.remove_reader(each.fileno())
        # What was accepted a moment ago must begin before its server is closed, or asyncio drops the open socket.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        end = self.loop.time() + _LAST_WORDS_S
        while True:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks and not self.links:
                return
            for task in tasks:
                task.cancel()
            for link in [*self.links]:
                leave = link.abort if self.loop.time() >= end else link.leave
                leave("this side closes")
            await asyncio.sleep(0.001)

    def leave(self) -> None:
        """In a forked child, close what belongs to the parent. Neither side of a connection notices it."""
        self._is_child = True
        private: Any = self.loop
        # First, or the parent's loop would forget its sockets too.
        private._selector.close()
        sockets: list[Any] = [each for server in self._servers for each in server.sockets]
        sockets += [
            link.transport.get_extra_info("socket") for link in self.links if link.transport
        ]
        for each in (private._ssock, private._csock, *(each._sock for each in sockets)):
            with contextlib.suppress(OSError):
                each.close()


def _log_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.error("%s", context.get("message"), exc_info=context.get("exception"))
