"""Masters that a test scripts: they serve bytes of a log as RocketMQ's or Penstock's master does, and break rules on request."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import penstock

CHUNK = struct.Struct(">qi")
SEGMENT_BYTES = 64 << 10


def filled(path: Path, count: int = 20, size: int = 100, topic: str = "orders") -> int:
    """Put messages to a store, which is made if it is not there; return the end of its log."""
    with penstock.open(path, **settings()) as store:
        end = 0
        for number in range(count):
            receipt = store.put(topic, b"%06d" % number + bytes(size), keys=[f"k{number}"])
            end = receipt.log_offset + receipt.size
        return end


def settings() -> dict[str, Any]:
    """Return the settings of the stores in these tests: small segments."""
    return {"geometry.segment_bytes": SEGMENT_BYTES}


def log_of(path: Path) -> bytes:
    """Return the bytes of a log's files, which begin at log offset 0."""
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))


class PlainMaster:
    """A RocketMQ master of a log in memory, in threads; one connection at a time.

    Attributes:
        log: the bytes; a test may add some.
        base: the log offset of the first byte.
        reports: what the slave has reported.
        change: may change what is sent, to break rules.
    """

    def __init__(self, log: bytes = b"", base: int = 0, *, chunk_bytes: int = 32768) -> None:
        self.log, self.base = log, base
        self.chunk_bytes = chunk_bytes
        self.heartbeat_s = 0.3
        self.reports: list[int] = []
        self.connections = 0
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.is_mute = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._peer: socket.socket | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    @property
    def end(self) -> int:
        return self.base + len(self.log)

    def drop(self) -> None:
        """Close the connection that there is."""
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed = True
        self.drop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._peer = peer
            with peer, contextlib.suppress(OSError):
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        peer.settimeout(0.02)
        position, sent_at, partial = -1, time.monotonic(), b""
        while not self._is_closed:
            try:
                data = peer.recv(1 << 16)
                if not data:
                    return
                partial += data
            except TimeoutError:
                pass
            whole = len(partial) - len(partial) % 8
            if whole:
                (report,) = struct.unpack(">q", partial[whole - 8 : whole])
                partial = partial[whole:]
                self.reports.append(report)
                if position < 0 <= report:
                    last_file = self.end - self.end % SEGMENT_BYTES
                    position = max(last_file, self.base) if report == 0 else report
            if position < 0 or self.is_mute:
                continue
            chunk = self.log[position - self.base : position - self.base + self.chunk_bytes]
            chunk = chunk[: SEGMENT_BYTES - position % SEGMENT_BYTES]
            if chunk or time.monotonic() - sent_at >= self.heartbeat_s:
                peer.settimeout(5)
                peer.sendall(self.change(CHUNK.pack(position, len(chunk)) + chunk))
                peer.settimeout(0.02)
                position, sent_at = position + len(chunk), time.monotonic()
