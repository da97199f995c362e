"""Garbled streams to a master: each must end in a closed connection, with bounded memory, and change nothing else.

`python -m tests.fuzz.streams --count 1000000 --seed 1` runs as many as one likes; the tests run a sample. A stream is a conversation of a
RocketMQ slave or a Penstock follower in which bytes were changed, left out, repeated or made up, cut into pieces of random sizes. It goes
through all of the master but the socket.
"""

import argparse
import asyncio
import logging
import random
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from tests.ha_peers import SEGMENT_BYTES, MemoryLog, context_of

from penstock_replicate.master.bandwidth import Bandwidth
from penstock_replicate.master.copies import CopyTable
from penstock_replicate.master.ha_options import HaOptions
from penstock_replicate.master.listener import Listener
from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.peer_link import PeerLink
from penstock_replicate.master.side_feed import SideFeed
from penstock_replicate.wire import frames as wire
from penstock_replicate.wire.decoding import FrameDecoder
from penstock_replicate.wire.limits import FRAME_BYTES_MAX, WireViolation
from penstock_replicate.wire.plain import ChunkDecoder, encode_chunk_header, encode_report

HISTORY = "ab" * 16
# What a decoder may keep: one frame, and one piece.
_KEPT_MAX = FRAME_BYTES_MAX + 4 + (1 << 16)
_ROUNDS_MAX = 300


class SinkTransport(asyncio.Transport):
    """Takes whatever is written, and says when the connection was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # So that nothing is sent by the system itself: there is no socket.
        return {"peername": ("127.0.0.1", 7), "sslcontext": True}.get(name, default)

    def write(self, data: Any) -> None:
        """Forget it."""

    def pause_reading(self) -> None:
        """Do nothing: the stream is short."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True


def hello(rng: random.Random, log: MemoryLog) -> wire.Hello:
    return wire.Hello(
        history=rng.choice([HISTORY, None, "cd" * 16]), epochs=rng.choice([((1, 0),), (), ((1, 0), (2, 700))]),
        segment_bytes=rng.choice([SEGMENT_BYTES, SEGMENT_BYTES, 4096]), min_offset=0, end_offset=log.visible_offset, store="f",
        nonce="00" * 32, needs_proof=rng.random() < 0.1,
    )  # fmt: skip


def frame(rng: random.Random, log: MemoryLog) -> bytes:
    """Return a frame of any type, mostly with values that make sense."""
    end = rng.choice([0, 100, log.visible_offset, log.visible_offset + 1, 1 << 62])
    low = rng.randrange(0, 5000)
    digest = wire.RangeDigest(
        low, low + rng.choice([1, 100, 1 << 20]), rng.choice([None, "00" * 32])
    )
    made: list[wire.Frame] = [
        hello(rng, log), wire.Auth(rng.randbytes(32)), wire.Follow(end_offset=0, is_empty=True),
        wire.Follow(end_offset=end, is_empty=False, digests=(digest,), compress=rng.random() < 0.5), wire.Ack(end, 0), wire.Ack(0, 0),
        wire.DigestQuestion(((low, low + 9),) * rng.randrange(1, 5)), wire.Heartbeat(end, 1), wire.Refused("x", "y"), wire.Data(end, b"d" * low),
        wire.Side("config/topics.json", b"{}", rng.random() < 0.5), wire.Removed(end, "t"), wire.CoverageNote(), wire.DigestAnswer((digest,)),
    ]  # fmt: skip
    return wire.encode(rng.choice(made))


def conversation(rng: random.Random, log: MemoryLog) -> bytes:
    """Return what a peer might send, before it is garbled."""
    kind = rng.random()
    if kind < 0.3:
        reports = [0, 0, log.starts[3], log.visible_offset, log.visible_offset + 1, 55, -2, 1 << 62]
        return b"".join(encode_report(rng.choice(reports)) for _ in range(rng.randrange(1, 6)))
    if kind < 0.4:
        return rng.randbytes(rng.randrange(0, 200))
    begin = encode_report(-1)
    if kind < 0.7:
        good = attrs.evolve(
            hello(rng, log),
            history=HISTORY,
            epochs=((1, 0),),
            segment_bytes=SEGMENT_BYTES,
            needs_proof=False,
        )
        begin += wire.encode(good) + wire.encode(wire.Follow(end_offset=0, is_empty=True))
    elif kind < 0.9:
        begin += wire.encode(hello(rng, log))
    return begin + b"".join(frame(rng, log) for _ in range(rng.randrange(0, 6)))


def garbled(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them changed, left out, repeated or added."""
    out = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 100)]
        elif kind == 4:
            out[at : at + 4] = rng.choice(
                [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\x40\0\x40", b"\x7f\xff\xff\xff"]
            )
        else:
            del out[at:]
    return bytes(out)


def pieces(rng: random.Random, data: bytes) -> Iterator[bytes]:
    at = 0
    largest = rng.choice([1, 7, 64, 1 << 16])
    while at < len(data):
        size = rng.randrange(1, largest + 1)
        yield data[at : at + size]
        at += size


class StreamFuzz:
    """A master without a socket, in one event loop."""

    def __init__(self, root: Path) -> None:
        (root / "penstock").mkdir(exist_ok=True)
        self.log = MemoryLog(root)
        self.log.put(500, 30)
        context = context_of(root)
        self.copies = CopyTable(self.log, context, 1 << 20)
        parts = MasterParts(
            log=self.log, context=context, options=HaOptions(), copies=self.copies, bandwidth=Bandwidth(0, time.monotonic),
            sides=SideFeed(lambda: {"config/topics.json": b"{}"}, self.log, 1000, lambda: None), history=HISTORY, epochs=((1, 0),),
            secret=None, time_s=time.monotonic,
        )  # fmt: skip
        self.listener = Listener(parts, None)

    async def run(self, seed: int) -> str:
        """Run one stream to its end; return why the master closed the connection."""
        rng = random.Random(seed)
        link = PeerLink(self.listener._serve, 20)
        transport = SinkTransport()
        link.connection_made(transport)
        for piece in pieces(rng, garbled(rng, conversation(rng, self.log))):
            if transport.is_closed:
                break
            link.data_received(piece)
            await asyncio.sleep(0)
            assert len(link.kept) <= _KEPT_MAX, seed
        link.connection_lost(None)
        assert link.task is not None
        for _ in range(_ROUNDS_MAX):
            if link.task.done():
                break
            await asyncio.sleep(0 if _ < _ROUNDS_MAX // 2 else 0.005)
        assert link.task.done(), f"seed {seed}: the connection is still served"
        assert link.reason is not None, seed
        assert "a bug" not in link.reason, f"seed {seed}: {link.reason}"
        assert not self.listener.links, seed
        assert self.copies.in_sync_count == 0, seed
        return link.reason


def decode_all(seed: int, log: MemoryLog) -> None:
    """Feed one garbled stream to the decoders of a follower: only `WireViolation` may come out."""
    rng = random.Random(seed)
    data = b"".join(frame(rng, log) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.3:
        body = zlib.compress(bytes(rng.randrange(1, 100_000)))
        data += wire.encode_data_header(7, len(body), zipped=True) + body
    frames, chunks = FrameDecoder(frozenset(wire.FrameType)), ChunkDecoder()
    plain = encode_chunk_header(rng.randrange(99), 50) + bytes(50) + data
    for decode, stream in ((frames.frames, data), (chunks.chunks, plain)):
        try:
            for piece in pieces(rng, garbled(rng, stream)):
                for _ in decode(piece):
                    pass
                assert len(frames._partial) <= _KEPT_MAX, seed
                assert len(chunks._partial) <= _KEPT_MAX, seed
        except WireViolation:
            continue


async def run_all(fuzz: StreamFuzz, first: int, count: int) -> dict[str, int]:
    """Run streams with the seeds from `first` on; return how often connections ended for which kind of reason."""
    reasons: dict[str, int] = {}
    for seed in range(first, first + count):
        decode_all(seed, fuzz.log)
        reason = " ".join(word for word in (await fuzz.run(seed)).split()[:6] if word.isalpha())
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.streams", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first stream; each next one has the next number"
    )
    asked = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = asyncio.run(run_all(StreamFuzz(Path(folder)), asked.seed, asked.count))
        for reason, count in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{count:9} {reason}")
        print(
            f"{asked.count} streams in {time.monotonic() - began:.0f} s: each ended in a closed connection"
        )


if __name__ == "__main__":
    main()
