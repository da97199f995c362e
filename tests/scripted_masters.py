"""Masters that a test scripts: they serve bytes of a log as RocketMQ's or Penstock's master does, and break rules on request."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import penstock
from penstock_replicate.master.ha import HaReplicator

CHUNK = struct.Struct(">qi")
SEGMENT_BYTES = 64 << 10


def filled(path: Path, count: int = 20, size: int = 100) -> int:
    """Put messages to a store, which is made if it is not there; return the end of its log."""
    with penstock.open(path, **settings()) as store:
        return put_some(store, count, size)


def settings(segment_bytes: int = SEGMENT_BYTES) -> dict[str, Any]:
    """Return the settings of the stores in these tests: small segments."""
    return {"geometry.segment_bytes": segment_bytes}


@contextlib.contextmanager
def serving(path: Path, **given: Any) -> Iterator[tuple[penstock.Store, str]]:
    """Open a store as a Penstock master; yields the store and the address where it listens."""
    options = {f"replicate.ha.{name}": value for name, value in given.items()}
    options.setdefault("replicate.ha.listen", "127.0.0.1:0")
    # What these tests wait for at the end of a master's life is not a copy.
    options.setdefault("replicate.ha.timeout_ms", 1000)
    with penstock.open(path, replicate="ha", **{**settings(), **options}) as store:
        engine = store._engine
        assert engine is not None
        assert engine.copying is not None
        master = engine.copying.replicator
        assert isinstance(master, HaReplicator)
        assert master.address is not None
        yield store, master.address


def put_some(store: penstock.Store, count: int, size: int = 100, *, first: int = 0) -> int:
    """Put messages; return the end of the last one."""
    end = 0
    for number in range(first, first + count):
        receipt = store.put("orders", b"%06d" % number + bytes(size), keys=[f"k{number}"])
        end = receipt.log_offset + receipt.size
    return end


def bodies(path: Path) -> list[int]:
    """Return the numbers of the messages that a reader of a store finds."""
    with penstock.open(path, read_only=True) as store:
        return [int(m.body[:6]) for m in store.scan("orders")]


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
