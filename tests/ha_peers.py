"""A log in memory, a master over it, and peers of any kind that talk to it over sockets; for tests of `penstock_replicate.master`."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

import attrs

from penstock.contracts import Context, Geometry, LentFile, Stoppable
from penstock.errors import OffsetError
from penstock.files import Files
from penstock.format.record import BLANK, MAGIC_BLANK, MAGIC_V1
from penstock.runtime.clock import Clock
from penstock_replicate.master.ha import HaReplicator
from penstock_replicate.master.ha_options import HaOptions
from penstock_replicate.wire.decoding import FrameDecoder
from penstock_replicate.wire.frames import AnyFrame, Data, Follow, FrameType, Hello, encode
from penstock_replicate.wire.plain import (
    ASKS_FOR_PENSTOCK,
    Chunk,
    ChunkDecoder,
    encode_report,
)
from penstock_replicate.wire.proof import make_nonce

SEGMENT_BYTES = 1 << 16
ALL = frozenset(FrameType)


class MemoryLog:
    """A log whose records have only size, magic and log offset. Safe from any thread."""

    def __init__(self, root: Path, min_offset: int = 0) -> None:
        self.root, self.segment_bytes = root, SEGMENT_BYTES
        self.min_offset = self.visible_offset = self.begin = min_offset
        self.data = b""
        self.starts: list[int] = []
        self.removed: list[tuple[str, int]] = []
        self.on_advance: Callable[[int], None] = lambda _end: None

    @property
    def flushed_offset(self) -> int:
        return self.visible_offset

    @property
    def wrote_offset(self) -> int:
        return self.visible_offset

    def put(self, size: int = 100, count: int = 1) -> int:
        """Append records, with a blank one at the end of a segment; return the end."""
        for _ in range(count):
            left = SEGMENT_BYTES - self.visible_offset % SEGMENT_BYTES
            if size + BLANK.size > left:
                self._append(BLANK.pack(left, MAGIC_BLANK).ljust(left, b"b"))
            head = pack(">ii20xq", size, MAGIC_V1, self.visible_offset)
            self._append(head.ljust(size, b"r"))
        self.on_advance(self.visible_offset)
        return self.visible_offset

    def _append(self, record: bytes) -> None:
        self.starts.append(self.visible_offset)
        self.data += record
        self.visible_offset += len(record)

    def read(self, log_offset: int, size: int) -> bytes:
        if not self.min_offset <= log_offset <= self.visible_offset:
            raise OffsetError(log_offset, self.min_offset, self.visible_offset)
        segment_end = log_offset - log_offset % SEGMENT_BYTES + SEGMENT_BYTES
        stop = min(log_offset + size, segment_end, self.visible_offset)
        return self.data[log_offset - self.begin : stop - self.begin]

    @contextmanager
    def lend_file(self, log_offset: int) -> Iterator[LentFile]:
        """Lend the log as a file."""
        size = len(self.read(log_offset, SEGMENT_BYTES))
        path = self.root / f"lent-{log_offset}"
        path.write_bytes(self.data)
        with path.open("rb") as file:
            yield LentFile(file.fileno(), log_offset - self.begin, size)

    def time_ms_at(self, log_offset: int) -> int:
        return 0

    def removed_topics(self) -> list[tuple[str, int]]:
        return list(self.removed)


def no_worker(name: str, step: Callable[[], float | None], wakes: Any = None) -> Stoppable:
    raise AssertionError(f"{name}: a replicator has a thread of its own")


def context_of(root: Path) -> Context:
    return Context(
        root=root, files=Files(), clock=Clock(), geometry=Geometry(segment_bytes=SEGMENT_BYTES), spawn=no_worker,
    )  # fmt: skip


@contextmanager
def running_master(log: MemoryLog, **options: Any) -> Iterator[HaReplicator]:
    given: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "heartbeat_ms": 50,
        "silence_ms": 2000,
        "side_interval_ms": 20,
    } | options
    (log.root / "penstock").mkdir(exist_ok=True)
    master = HaReplicator(HaOptions(**given), context_of(log.root), log)
    master.start()
    log.on_advance = master.advanced
    try:
        yield master
    finally:
        master.close()


class WireTalk:
    """A socket to a master. A wait longer than ten seconds fails."""

    def __init__(self, master: HaReplicator, context: Any = None) -> None:
        assert master.address is not None
        host, _, port = master.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=10)
        self.socket = (
            plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        )

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def is_closed(self) -> bool:
        """Read until the master has closed."""
        while self.receive():
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeSlave(WireTalk):
    """A RocketMQ slave: reports, and keeps what comes."""

    def __init__(self, master: HaReplicator, report: int = 0, *, acks: bool = True) -> None:
        super().__init__(master)
        self.begin, self.data, self.acks = report, b"", acks
        self.chunks: list[Chunk] = []
        self._decoder = ChunkDecoder()
        self.send(encode_report(report))

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def take(self) -> None:
        """Take one read of the socket."""
        data = self.receive()
        assert data, "the master has closed the connection"
        for chunk in self._decoder.chunks(data):
            self.chunks.append(chunk)
            if not self.data:
                assert self.begin in (0, chunk.log_offset)
                self.begin = chunk.log_offset
            assert chunk.log_offset == self.end
            self.data += chunk.data
        if self.acks:
            self.send(encode_report(self.end))

    def take_until(self, end_offset: int) -> None:
        while self.end < end_offset or not self.chunks:
            self.take()


class FakeFollower(WireTalk):
    """A Penstock follower: says hello, and keeps what comes."""

    def __init__(self, master: HaReplicator, context: Any = None) -> None:
        super().__init__(master, context)
        self.frames: list[AnyFrame] = []
        self.data, self.begin = b"", 0
        self._frames = FrameDecoder(ALL)
        self.send(encode_report(ASKS_FOR_PENSTOCK))
        chunks = ChunkDecoder()
        while chunks.hello is None:
            data = self.receive()
            assert data, "the master has closed the connection"
            assert not list(chunks.chunks(data))
        (hello,) = self._frames.frames(chunks.hello)
        assert isinstance(hello, Hello)
        self.master = hello
        self.mine = attrs.evolve(hello, nonce=make_nonce(), needs_proof=False, store="follower")

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def ask(self, follow: Follow, **hello: Any) -> None:
        """Send hello and a request to follow."""
        self.begin = follow.end_offset
        self.mine = attrs.evolve(self.mine, **hello)
        self.send(encode(self.mine) + encode(follow))

    def next(self) -> list[AnyFrame]:
        """Return the frames of one read of the socket."""
        data = self.receive()
        assert data, f"the master has closed the connection after {self.frames[-1:]}"
        found = list(self._frames.frames(data))
        for frame in found:
            if isinstance(frame, Data):
                if not self.data:
                    self.begin = frame.log_offset
                assert frame.log_offset == self.end
                self.data += frame.data
        self.frames += found
        return found

    def take_until(self, end_offset: int) -> None:
        while self.end < end_offset:
            self.next()

    def find(self, kind: type) -> Any:
        """Return the first frame of a kind, and wait for it."""
        while True:
            for frame in self.frames:
                if isinstance(frame, kind):
                    return frame
            self.next()


EMPTY = Follow(end_offset=0, is_empty=True)


class Outcomes:
    """Keeps what puts are told, and waits for it."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._came = threading.Condition()

    def __call__(self, outcome: Any) -> None:
        with self._came:
            self.all.append(outcome)
            self._came.notify_all()

    def wait(self, count: int = 1) -> list[Any]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.all) >= count, 10)
        return self.all


def eventually(check: Callable[[], bool]) -> None:
    """Wait until something is so, at most ten seconds."""
    tick = threading.Event()
    for _ in range(2000):
        if check():
            return
        tick.wait(0.005)
    raise AssertionError("it did not come to be so within ten seconds")
