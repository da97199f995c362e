"""The thread with the event loop of a master, and the threads that do its file work.

The loop touches no file: what may wait for a disk runs `aside`. Connections are protocols, not tasks, so that closing
them leaves none behind. A forked child closes its copies of the sockets, without a word to the other sides.
"""

import asyncio
import contextlib
import queue
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.escape import get_logger
from penstock.files.lock_file import leave_in_child

if TYPE_CHECKING:
    from penstock_replicate.serving import Link

logger = get_logger(__name__)
T = TypeVar("T")
_RECEIVE_BYTES = 64 << 10
# How long a closed connection may send what it still has to say.
LAST_WORDS_S = 1.0
_FILE_THREADS = 2
# How long a closing waits for a disk that does not answer: the threads are daemons.
_JOIN_S = 10.0


def tried(job: Callable[[], T]) -> T | BaseException:
    """Return what a job returns or raises."""
    try:
        return job()
    except BaseException as error:
        return error


class Loop:
    """A daemon thread with an event loop, and daemon threads for what may wait for a disk.

    Attributes:
        loop: the event loop.
        links: the open connections.
        tls: how connections are encrypted; None if they are not.
        memory: what a connection has received, until it is taken.
    """

    def __init__(self, links_max: int, tls: ssl.SSLContext | None) -> None:
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
            threading.Thread(target=target, name="penstock-ha", daemon=True)
            for target in (self.loop.run_forever, *[self._work] * _FILE_THREADS)
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

    async def listen(self, make: "Callable[[], Link]", host: str, port: int) -> str:
        """Accept connections; return the address, with the port that the system has chosen if it is 0."""
        server = await self.loop.create_server(make, host, port)
        self._servers.append(server)
        found, real = server.sockets[0].getsockname()[:2]
        return f"[{found}]:{real}" if ":" in found else f"{found}:{real}"

    def add(self, link: "Link") -> bool:
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
        end = self.loop.time() + LAST_WORDS_S
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
