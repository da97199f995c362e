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
from functools import partial
from ssl import SSLContext
from typing import Any, TypeVar

from penstock_replicate.wire import host_and_port

T = TypeVar("T")
SLICE_S = 0.25
_RECEIVE_BYTES = 1 << 20


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
        self._socket = socket.socket()
        self._closing = threading.Lock()
        # Made once: to allocate as much for each answer takes longer than to receive it.
        self._memory = memoryview(bytearray(_RECEIVE_BYTES))

    def connect(self, timeout_s: float) -> None:
        """Make the connection; raises `OSError`, or `ValueError` for a host that cannot be."""
        end_s = time.monotonic() + timeout_s
        *others, last = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in others:
            with contextlib.suppress(ConnectionError):
                self._reach(socket.socket(family, kind, protocol), address, end_s)
                return
        self._reach(socket.socket(*last[:3]), last[4], end_s)

    def _reach(self, made: socket.socket, address: Any, end_s: float) -> None:
        self.close()
        self._socket = made
        made.setblocking(False)
        self._waited(partial(self._connect, address), end_s)
        made.settimeout(SLICE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._socket = encrypted = self._tls.wrap_socket(
                made, server_hostname=self._host, do_handshake_on_connect=False
            )
            self._waited(encrypted.do_handshake, end_s)

    def _connect(self, address: Any) -> None:
        try:
            self._socket.connect(address)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
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

    def receive(self) -> bytes:
        """Return what has come, b"" if nothing comes in a slice; raises `OSError` if the connection has ended."""
        try:
            size = self._socket.recv_into(self._memory)
        except TimeoutError:
            return b""
        if not size:
            raise LineError("the other side has closed the connection")
        return bytes(self._memory[:size])

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send bytes; raises `OSError` if the connection has ended, or the other side does not read for a time."""
        left, end_s = memoryview(data), time.monotonic() + timeout_s
        while left:
            left = left[self._waited(lambda: self._socket.send(left), end_s) :]  # noqa: B023 - it is called here

    def shut(self) -> None:
        """End a wait of the other thread, whose call raises then."""
        with self._closing, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with self._closing:
            self._socket.close()

    def leave(self) -> None:
        """In a forked child, close what belongs to the parent; the other side does not notice it."""
        self._socket.close()
