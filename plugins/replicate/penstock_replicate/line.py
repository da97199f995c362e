"""A connection that one thread makes, reads and writes, without an event loop: that of a follower to its master.

Nothing waits for longer than `SLICE_S` without looking around, so that a follower can close, or be promoted, while a
master is unreachable or silent.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from ssl import SSLContext
from typing import Any, TypeVar

from penstock_replicate.wire import ACCEPT_BYTES_MAX, DATA_BYTES_MAX, host_and_port

T = TypeVar("T")
SLICE_S = 0.25
_LEAST_BYTES = 64 << 10
# As the longest frame of the log: the next one is not received with it, and need not be moved. `accept` may be longer.
_RECEIVE_BYTES, _MEMORY_BYTES = DATA_BYTES_MAX + 21, ACCEPT_BYTES_MAX + 2 * _LEAST_BYTES


class LineError(OSError):
    """A connection could not be made, or has ended; the text says why."""


class Line:
    """A TCP connection to a peer that listens. For one thread; `shut` and `leave` are for any other.

    Args:
        address: "HOST:PORT".
        tls: how it is encrypted; None if it is not.
        look: called every `SLICE_S` while a connection is made or bytes are sent; returns whether to go on waiting.
    """

    def __init__(self, address: str, tls: SSLContext | None, look: Callable[[], bool]) -> None:
        self._host, self._port = host_and_port(address)
        self._tls, self._look = tls, look
        self._socket: socket.socket | None = None
        self._closing = threading.Lock()
        # Made once: to allocate as much for each answer takes longer than to receive it.
        self._memory = memoryview(bytearray(_MEMORY_BYTES))
        self._kept = self._size = 0

    def connect(self, timeout_s: float) -> None:
        """Make the connection, to the first address of the host that answers; raises `OSError`.

        Raises `ValueError` for a host that cannot be.
        """
        end_s = time.monotonic() + timeout_s
        found = self._waited(partial(self._resolving().result, SLICE_S), end_s)
        for number, address in enumerate(found):
            now_s = time.monotonic()
            try:
                self._reach(address, now_s + (end_s - now_s) / (len(found) - number))
            except OSError:
                if number == len(found) - 1 or not self._look():
                    raise
            else:
                return

    def _resolving(self) -> Future[list[Any]]:
        """Look the host up in a thread, since nobody can end that; return what will have its addresses."""
        found: Future[list[Any]] = Future()

        def resolve() -> None:
            try:
                found.set_result(
                    socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                )
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=resolve, name="penstock-resolve", daemon=True).start()
        return found

    def _reach(self, address: Any, end_s: float) -> None:
        self.close()
        self._socket = made = socket.socket(*address[:3])
        made.setblocking(False)
        self._waited(partial(self._connect, made, address[4]), end_s)
        made.settimeout(SLICE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._socket = encrypted = self._tls.wrap_socket(
                made, server_hostname=self._host, do_handshake_on_connect=False
            )
            self._waited(encrypted.do_handshake, end_s)

    @staticmethod
    def _connect(made: socket.socket, address: Any) -> None:
        try:
            made.connect(address)
        except BlockingIOError:
            poll = select.poll()
            poll.register(made, select.POLLOUT)
            poll.poll(SLICE_S * 1000)
            # The next call says what has come of it.
            raise TimeoutError from None

    def _waited(self, call: Callable[[], T], end_s: float) -> T:
        """Return what a call returns that waits for one slice, and is repeated then."""
        while True:
            try:
                return call()
            except TimeoutError:
                if not self._look():
                    raise LineError("this side closes") from None
                if time.monotonic() >= end_s:
                    raise LineError("no answer") from None

    def receive(self) -> memoryview:
        """Return what was kept and what has come, nothing if nothing comes in a slice; it is valid until the next call.

        Raises `OSError` if the connection has ended.
        """
        kept, memory = self._kept, self._memory
        try:
            size = self._made.recv_into(memory[kept : max(_RECEIVE_BYTES, kept + _LEAST_BYTES)])
        except TimeoutError:
            return memory[:0]
        if not size:
            raise LineError("the other side has closed the connection")
        self._size, self._kept = kept + size, 0
        return memory[: self._size]

    def keep(self, size: int) -> None:
        """Return the last bytes of what was received again, with what comes next."""
        if size < self._size:
            self._memory[:size] = self._memory[self._size - size : self._size]
        self._kept = size

    def send(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Send bytes; raises `OSError` if the connection has ended, or the other side does not read for a time."""
        left, end_s = memoryview(data), time.monotonic() + timeout_s
        while left:
            left = left[self._waited(lambda: self._made.send(left), end_s) :]  # noqa: B023 - it is called here

    @property
    def _made(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def shut(self) -> None:
        """End a wait of the other thread, whose call raises then."""
        with self._closing, contextlib.suppress(OSError):
            if self._socket is not None:
                # That of the class for TLS would let the other thread go on without it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with self._closing:
            if self._socket is not None:
                self._socket.close()

    def leave(self) -> None:
        """In a forked child, close what belongs to the parent; the other side does not notice it."""
        self._closing = threading.Lock()
        self.close()
