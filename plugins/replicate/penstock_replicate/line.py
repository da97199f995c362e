"""A connection that one thread makes, reads and writes, without an event loop: that of a follower to its master.

Nothing waits for longer than `SLICE_S` without looking around, so that a follower can close, or be promoted, while a
master is unreachable or silent.
"""

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from ssl import SSLContext, SSLSocket, SSLWantReadError, SSLWantWriteError

from penstock_replicate.wire import host_and_port

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
        self._memory = memoryview(bytearray(_RECEIVE_BYTES))

    def connect(self, timeout_s: float) -> None:
        """Make the connection; raises `OSError`, or `ValueError` for a host that cannot be."""
        end_s, error = time.monotonic() + timeout_s, OSError("no such host")
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            self._use(socket.socket(family, kind, protocol))
            number = self._socket.connect_ex(address)
            if number == errno.EINPROGRESS:
                self._wait(select.POLLOUT, end_s)
                number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not number:
                self._begin(end_s)
                return
            error = OSError(number, os.strerror(number))
        raise error

    def _use(self, made: socket.socket) -> None:
        made.setblocking(False)
        self.close()
        self._socket = made

    def _begin(self, end_s: float) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return
        encrypted = self._tls.wrap_socket(
            self._socket, server_hostname=self._host, do_handshake_on_connect=False
        )
        self._socket = encrypted
        self._tried(encrypted.do_handshake, end_s)

    def _tried(self, call: Callable[[], int | None], end_s: float) -> int | None:
        """Return what a call of the socket returns, once it need not wait."""
        while True:
            try:
                return call()
            except (BlockingIOError, SSLWantWriteError):
                self._wait(select.POLLOUT, end_s)
            except SSLWantReadError:
                self._wait(select.POLLIN, end_s)

    def _wait(self, event: int, end_s: float) -> None:
        """Return when the socket is ready; raises `LineError` when it is too late."""
        while not self._is_ready(event, SLICE_S):
            if not self._look():
                raise LineError("this side closes")
            if time.monotonic() >= end_s:
                raise LineError("no answer")

    def _is_ready(self, event: int, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(timeout_s * 1000))

    def receive(self, timeout_s: float) -> bytes:
        """Return what has come, b"" if nothing comes in a time; raises `OSError` if the connection has ended."""
        encrypted = self._socket if isinstance(self._socket, SSLSocket) else None
        is_pending = encrypted is not None and encrypted.pending()
        if not is_pending and not self._is_ready(select.POLLIN, timeout_s):
            return b""
        try:
            size = self._socket.recv_into(self._memory)
        except (BlockingIOError, SSLWantReadError):
            return b""
        if not size:
            raise LineError("the other side has closed the connection")
        return bytes(self._memory[:size])

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send bytes; raises `OSError` if the connection has ended, or the other side does not read for a time."""
        left, end_s = memoryview(data), time.monotonic() + timeout_s
        while left:
            left = left[self._tried(lambda: self._socket.send(left), end_s) :]  # noqa: B023 - it is called here

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
