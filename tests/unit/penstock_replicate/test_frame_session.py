"""A follower's conversation with a Penstock master: here a script that breaks rules."""

import asyncio
import contextlib
import socket
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scripted_masters import SEGMENT_BYTES, bodies, filled, log_of

from penstock.errors import ReplicationError
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.follow import follow
from penstock_replicate.following.frame_session import ACK_S, FrameSession
from penstock_replicate.following.standing import Standing
from penstock_replicate.wire.decoding import FrameDecoder
from penstock_replicate.wire.frames import (
    Ack,
    AnyFrame,
    Auth,
    Data,
    FrameType,
    Heartbeat,
    Hello,
    RefusalCode,
    Refused,
    Removed,
    Side,
    encode,
    encode_data_header,
)
from penstock_replicate.wire.limits import DATA_BYTES_MAX
from penstock_replicate.wire.plain import encode_chunk_header, encode_greeting
from penstock_replicate.wire.proof import make_nonce

assert ACK_S > 1
Script = Callable[["FrameMaster", int], bytes]


class FrameMaster:
    """A Penstock master: greets, accepts, and then sends what a script gives for each connection."""

    def __init__(self, end: int, script: Script) -> None:
        self.hello = Hello(
            history="ab" * 16, epochs=((1, 0),), segment_bytes=SEGMENT_BYTES, min_offset=0, end_offset=end, store="m",
            nonce=make_nonce(), needs_proof=False,
        )  # fmt: skip
        self.script = script
        self.after_greeting = b""
        self.connections = 0
        self.heard: list[AnyFrame] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        self.connections += 1
        peer.settimeout(5)
        assert len(peer.recv(8)) == 8
        peer.sendall(encode_greeting(encode(self.hello)) + self.after_greeting)
        decoder = FrameDecoder(frozenset(FrameType))
        is_following = False
        while True:
            data = peer.recv(1 << 16)
            if not data:
                return
            for frame in decoder.frames(data):
                self.heard.append(frame)
                if frame.type is FrameType.FOLLOW and not is_following:
                    is_following = True
                    peer.sendall(self.script(self, self.connections))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def right(log: bytes) -> bytes:
    return encode(Heartbeat(len(log), 0)) + encode(Data(0, log))


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    end = filled(tmp_path / "m")
    return log_of(tmp_path / "m")[:end]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (bytes(9), "breaks the protocol"),
        (b"\xff\xff\xff\xff\x05\0\0\0\0", "breaks the protocol"),
        (b"\0\0\0\x05\x63abcd", "unknown type"),
        (encode(Heartbeat(9, 0))[:-1] + b"\1", "changed on the way"),
        (encode(Auth(bytes(32))), "not expected here"),
        (encode(Data(8, b"x")), "multiple|not valid|expected"),
        (encode(Data(0, b"garbage that is no record at all")), "not valid"),
        (encode(Removed(4711, "orders")), "has sent only 0"),
        (encode(Side("a", b"1", more=True)) + encode(Side("b", b"1")), "part of another file"),
        (encode(Refused(RefusalCode.CLOSING, "closing")), "is closing"),
        (encode_chunk_header(0, 5) + b"hello", "breaks the protocol"),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_ends_the_connection_and_the_next_one_goes_on(
    tmp_path: Path, log: bytes, wrong: bytes, said: str
) -> None:
    master = FrameMaster(len(log), lambda _, count: wrong if count == 1 else right(log))
    try:
        with follow(tmp_path / "c", master.address) as follower:
            assert follower.wait_caught_up(10, log_offset=len(log)), follower.status()
            assert any(word in str(follower.status().last_error) for word in said.split("|"))
        assert master.connections == 2
    finally:
        master.close()
    assert bodies(tmp_path / "c") == list(range(20))


def test_a_follower_acknowledges_whole_records_and_what_is_on_disk(
    tmp_path: Path, log: bytes
) -> None:
    def script(_master: FrameMaster, _count: int) -> bytes:
        return b"".join(encode(Data(at, log[at : at + 333])) for at in range(0, len(log), 333))

    master = FrameMaster(len(log), script)
    try:
        with follow(tmp_path / "c", master.address) as follower:
            assert follower.wait_caught_up(10, log_offset=len(log))
    finally:
        master.close()
    acks = [frame for frame in master.heard if isinstance(frame, Ack)]
    assert acks[-1].received_end == len(log)
    assert all(ack.flushed_end <= ack.received_end for ack in acks)
    assert [ack.received_end for ack in acks] == sorted(ack.received_end for ack in acks)


def test_a_file_that_may_not_travel_is_not_written(tmp_path: Path, log: bytes) -> None:
    def script(_master: FrameMaster, _count: int) -> bytes:
        evil = encode(Side("../evil", b"{}")) + encode(Side("penstock/replica", b"{}"))
        return evil + right(log)

    master = FrameMaster(len(log), script)
    try:
        with follow(tmp_path / "c", master.address) as follower:
            assert follower.wait_caught_up(10, log_offset=len(log))
    finally:
        master.close()
    assert not (tmp_path / "evil").exists()
    assert '"follower"' in (tmp_path / "c" / "penstock" / "replica").read_text()


def test_compressed_frames_are_not_all_in_memory_at_once(tmp_path: Path) -> None:
    zipped = zlib.compress(bytes(DATA_BYTES_MAX), 9)
    bombs = (encode_data_header(0, len(zipped), zipped=True) + zipped) * 100
    master = FrameMaster(0, lambda *_: b"")
    master.close()

    async def story() -> None:
        session = FrameSession(Channel(), Standing(lambda: 5, 1, "a:1"), tmp_path, 5)
        session.greeted(encode(master.hello), bombs)
        for _ in range(100):
            assert isinstance(await session._next(1), Data)
        with pytest.raises(ConnectionLostError, match="does not answer"):
            await session._next(0.01)

    tracemalloc.start()
    try:
        asyncio.run(story())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * DATA_BYTES_MAX


@pytest.mark.parametrize("code", [RefusalCode.REMOVED, RefusalCode.HISTORY, "from the future"])
def test_what_a_master_says_before_its_proof_sets_no_store_aside(
    tmp_path: Path, log: bytes, code: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 32)
    master = FrameMaster(len(log), lambda *_: right(log))
    try:
        with follow(tmp_path / "c", master.address) as follower:
            assert follower.wait_caught_up(10, log_offset=len(log))
        master.after_greeting = encode(Refused(code, "begin anew"))
        with pytest.raises(ReplicationError, match="does not prove"):
            follow(
                tmp_path / "c", master.address, secret_file=str(secret), full_copy=True
            ).wait_caught_up(10)
    finally:
        master.close()
    assert not list(tmp_path.glob("c.*"))
    assert bodies(tmp_path / "c") == list(range(20))
