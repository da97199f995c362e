"""RocketMQ's default replication protocol, both roles; and how two Penstock peers find out that they are.

Layout (big-endian)::

    slave to master   report := end_of_log:i64
    master to slave   chunk  := log_offset:i64  size:i32  data[size]      # size 0: a heartbeat; its offset is the next byte to come

There is no handshake. A Penstock follower's first report is `ASKS_FOR_PENSTOCK`, -1: a RocketMQ master ignores it, and waits for another
one. A Penstock master answers it at once with a chunk whose log offset is `PENSTOCK`, which no log reaches, and whose data is a frame,
its hello (`frames`). From there on both sides send frames. A chunk may end inside a record; a report is sent after each chunk, and every
5 seconds.
"""

from collections.abc import Iterator
from struct import Struct

import attrs

from penstock_replicate.wire.limits import DATA_BYTES_MAX, FRAME_BYTES_MAX, WireViolation

REPORT = Struct(">q")
CHUNK_HEADER = Struct(">qi")
ASKS_FOR_PENSTOCK = -1
PENSTOCK = int.from_bytes(b"PENSTOCK")
# What RocketMQ sends at most in one chunk, and what its slaves have memory for less the header.
ROCKETMQ_CHUNK_BYTES = 32768
ROCKETMQ_CHUNK_BYTES_MAX = DATA_BYTES_MAX - CHUNK_HEADER.size


def encode_report(end_offset: int) -> bytes:
    """Return a slave's report that its log ends at `end_offset`."""
    return REPORT.pack(end_offset)


def encode_chunk_header(log_offset: int, size: int) -> bytes:
    """Return the header of `size` bytes of the log from `log_offset` on."""
    return CHUNK_HEADER.pack(log_offset, size)


def encode_greeting(hello: bytes) -> bytes:
    """Return a master's answer to `ASKS_FOR_PENSTOCK`: the encoded frame of its hello in a chunk."""
    return CHUNK_HEADER.pack(PENSTOCK, len(hello)) + hello


class ReportDecoder:
    """A master's side: the bytes from a slave to reports. Keeps at most 7 bytes. Not thread-safe."""

    def __init__(self) -> None:
        self._partial = b""

    def last(self, data: bytes) -> int | None:
        """Return the last whole report that `data` completes, as a RocketMQ master does; None if it completes none."""
        joined = self._partial + data
        count = len(joined) // REPORT.size
        self._partial = joined[count * REPORT.size :]
        if not count:
            return None
        (found,) = REPORT.unpack_from(joined, (count - 1) * REPORT.size)
        if found < 0:
            raise WireViolation(f"a report of log offset {found}")
        return int(found)


@attrs.frozen
class Chunk:
    """Bytes of the log from `log_offset` on; none is a heartbeat."""

    log_offset: int
    data: bytes | memoryview


class ChunkDecoder:
    """A slave's side: the bytes from a master to chunks, in memory for one chunk. Not thread-safe.

    Attributes:
        hello: a Penstock master's first frame, as bytes, once it has come; then `rest` are the bytes after it, which are frames.
    """

    def __init__(self) -> None:
        self._partial = bytearray()
        self.hello: bytes | None = None
        self.rest = b""

    def chunks(self, data: bytes | memoryview) -> Iterator[Chunk]:
        """Yield the chunks that `data` completes, in order; all are to be taken. None comes after a `hello`."""
        self._partial += data
        while self.hello is None and len(self._partial) >= CHUNK_HEADER.size:
            log_offset, size = CHUNK_HEADER.unpack_from(self._partial)
            limit = FRAME_BYTES_MAX if log_offset == PENSTOCK else DATA_BYTES_MAX
            if log_offset < 0 or not 0 <= size <= limit:
                raise WireViolation(f"a chunk of {size} bytes at log offset {log_offset}")
            stop = CHUNK_HEADER.size + size
            if len(self._partial) < stop:
                return
            body = bytes(memoryview(self._partial)[CHUNK_HEADER.size : stop])
            del self._partial[:stop]
            if log_offset == PENSTOCK:
                self.hello, self.rest = body, bytes(self._partial)
                self._partial.clear()
            else:
                yield Chunk(log_offset, body)
