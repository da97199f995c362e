"""RocketMQ's own protocol: sessions recorded between real brokers, and its traps, one by one."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.lanes import SEED, eventually, rounds
from tests.replicas.fakes import SEGMENT, FakeLog, store_id
from tests.replicas.logs import READING, MasterLog
from tests.replicas.logs import SEGMENT as STORED
from tests.replicas.test_copies import copies_of
from tests.replicas.test_sockets import (
    SMALL,
    WAIT_S,
    copy_of,
    is_closed,
    line_to,
    logs,
    master,
    refusal,
    status_of,
)
from tests.replicas.test_wire import garbled

import penstock
from penstock.contracts import FollowBegin, Replica
from penstock.errors import ReplicationError
from penstock.testing import FaultyFiles, ManualClock
from penstock_replicate import StoreFollower, follow, rocketmq
from penstock_replicate.copies import Copies
from penstock_replicate.follower import Mine
from penstock_replicate.peer import Accept, Action, Close, Feed, Hash, Read, Send
from penstock_replicate.rocketmq import PlainFollowerPeer, PlainMasterPeer, chunk, report

TIMES: dict[str, Any] = {"heartbeat_ms": rocketmq.REPORT_MS, "silence_ms": rocketmq.SILENCE_MS}
NEW = Mine(master="m:1", replica=None, fresh_store=store_id(9))
COPY = Replica(history="1" * 32, store=store_id(2), role="follower", protocol="rocketmq")
# Between a real slave (S) and a real master (M): milliseconds, and the first bytes that were said.
SESSIONS = {
    "4.9.8": """
        5087 S 0000000000000000
        5099 M 000000000000000000001560000000cddaa320a7375337b9000000030000000000000000000000000000000000000000
        5103 S 0000000000001560
        10127 S 0000000000001560
        10154 M 000000000000156000000000
        15158 S 0000000000001560
        15161 M 000000000000156000000000
        15718 M 0000000000001560000000cd000000cddaa320a7375337b900000001000000000000000000000000000000000000156000000000
        15718 S 000000000000162d
        20725 S 000000000000162d
        20743 M 000000000000162d00000000
        24398 M 000000000000162d0000011e0000011edaa320a76d86dacc00000000000000000000000000000003000000000000162d
        24400 S 000000000000174b""",
    "5.3.3": """
        6 S 0000000000000000
        19 M 000000000000000000003537000000ffdaa320a7375337b900000002000000000000000000000000000000000000000000000000
        43 S 0000000000003537
        5048 S 0000000000003537
        5102 M 000000000000353700000000
        6142 M 0000000000003537000000ff000000ffdaa320a7375337b900000001000000000000000000000000000000000000353700000000
        6150 S 0000000000003636
        11150 S 0000000000003636
        11227 M 000000000000363600000000""",
}


def said(session: str) -> Iterator[tuple[int, str, bytes]]:
    """Yield what was said; each chunk is filled up to the size that its header states."""
    for line in session.split("\n")[1:]:
        at, who, text = line.split()
        data = bytes.fromhex(text)
        yield int(at), who, data.ljust(12 + int.from_bytes(data[8:12], "big") if who == "M" else 8)


def record(at: int, size: int, magic: int = 0xDAA320A7) -> bytes:
    """Return what is a record for those who do not look at its CRC."""
    head = size.to_bytes(4, "big") + magic.to_bytes(4, "big") + bytes(20) + at.to_bytes(8, "big")
    return head.ljust(size, b"r")[:size]


def log_of(*sizes: int, segment: int = SEGMENT, min_offset: int = 0) -> FakeLog:
    """Return a log of records of these sizes, and of filler where their segment has no room."""
    data = bytearray()
    for size in sizes:
        room = segment - len(data) % segment
        if room < size + 8:
            data += record(0, room, 0xCBD43194)
        data += record(len(data), size)
    log = FakeLog(bytes(data), min_offset=min_offset)
    log.segment_bytes = segment
    return log


class Served:
    """The master's end of a slave's connection, whose actions are carried out at once."""

    def __init__(
        self, log: FakeLog, first: int | None = None, copies: Copies | None = None, address: str = "s:1",
        now_ms: int = 0,
    ) -> None:  # fmt: skip
        self.log, self.sent, self.end = log, list[bytes](), ""
        self.copies = copies or copies_of(log, wait_for="received")
        self.peer = PlainMasterPeer(log, self.copies, address, is_served=True, now_ms=now_ms, **TIMES)  # fmt: skip
        if first is not None:
            self.hear(first)

    def hear(self, log_offset: int) -> None:
        self.do(self.peer.take(report(log_offset)))

    def do(self, actions: Sequence[Action]) -> None:
        todo = [*actions]
        while todo:
            match todo.pop(0):
                case Send(data):
                    self.sent.append(bytes(data))
                case Read(log_offset, size):
                    todo += self.peer.read_done(self.log.read(log_offset, size))
                case Close(reason=reason):
                    self.end = reason


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_both_ends_say_what_real_ones_said_to_each_other(session: str) -> None:
    log, now_ms = log_of(segment=1 << 20), next(said(session))[0]
    served, slave = Served(log, now_ms=now_ms), PlainFollowerPeer(NEW, now_ms=now_ms, **TIMES)
    by_slave = slave.start()
    for at, who, data in said(session):
        by_slave += slave.tick(at)
        if who == "S":
            served.hear(int.from_bytes(data, "big"))
            continue
        by_slave += [*slave.take(data), *slave.landed(slave.master_visible, 0)]
        served.do(served.peer.tick(at))
        if len(data) > 12:
            log.put(record(log.visible_offset, len(data) - 12))
            served.do(served.peer.advanced())
        assert served.sent[-1][:12] == data[:12]
    assert len(served.sent) == sum(who == "M" for _, who, _ in said(session))
    assert log.reached == log.visible_offset
    by_real = [data for _, who, data in said(session) if who == "S"]
    assert [action.data for action in by_slave if isinstance(action, Send)] == by_real


def test_a_heartbeat_comes_5_s_after_the_last_chunk() -> None:
    served = Served(log_of(), 0)
    served.do(served.peer.tick(3000))
    served.log.put(record(0, 100))
    served.do(served.peer.advanced())
    for at in (7999, 8000):
        served.do(served.peer.tick(at))
        assert len(served.sent) == at - 7998
    assert served.sent == [chunk(0, record(0, 100)), chunk(100)]


# --- a slave of ours


@pytest.mark.parametrize(
    ("reports", "word"),
    [([4200], "within a record"), ([8190], "within a record"),
     ([9001], "ends at 9001, and the master's log at 8996"), ([100], "the master's log begins at 4096"),
     ([-1], "ends at -1"),
     *(([8192, 8500, wrong], f"a report of log offset {wrong},") for wrong in (8997, 8499, -1, 8192))],
)  # fmt: skip
def test_a_report_that_cannot_be_served_is_refused(reports: list[int], word: str) -> None:
    """RocketMQ sends what corrupts the slave's log, or heartbeats for ever."""
    served = Served(log_of(*[402] * 22, min_offset=4096))
    for each in reports:
        served.hear(each)
    assert word in served.end
    assert bool(served.sent) == (len(reports) > 1)
    (copy,) = served.copies.status()
    assert (copy["last_error"], copy["is_connected"]) == (served.end, False)


def test_chunks_end_with_records_and_what_is_too_large_for_a_slave_comes_in_pieces() -> None:
    sizes = [Random(n).randrange(36, 12_000) for n in range(99)]
    log = log_of(6 << 20, *sizes, 200_000, *sizes, 5 << 20, 100, segment=(6 << 20) + 8)
    at, whole, last = log.segment_bytes, log.segment_bytes, 0
    for data in Served(log, log.segment_bytes).sent:
        size, begins = len(data) - 12, at == whole
        assert data == chunk(at, bytes(log.data[at : at + size]))
        at += size
        while whole < at:
            last = int.from_bytes(log.data[whole : whole + 4], "big")
            whole += last
        assert size <= rocketmq.CHUNK_BYTES or (begins and size == last <= rocketmq.CHUNK_BYTES_MAX)
        assert at == whole or last > rocketmq.CHUNK_BYTES_MAX
    assert at == log.visible_offset


def test_an_empty_slave_begins_at_the_last_file_and_counts_for_what_comes_after() -> None:
    """A put that ended before the slave's begin was told that it is there."""
    log = log_of(3000)
    copies = copies_of(log, wait_for="received")
    log.put(bytes(log_of(*[3000] * 3).data[3000:]))
    served = Served(log, 0, copies)
    assert served.sent[0][:8] == report(8192)
    served.hear(0)
    served.hear(log.visible_offset)
    assert (log.reached, served.end) == (0, "")
    copies.tick(3000)
    assert log.reached == log.visible_offset


@pytest.mark.parametrize("wait_for", ["received", "disk"])
def test_a_slave_has_received_and_never_synced_and_those_of_one_host_count_once(wait_for: str) -> None:  # fmt: skip
    log = log_of()
    copies = copies_of(log, needed=2, wait_for=wait_for)
    served = [Served(log, 0, copies, address) for address in ("s:1", "s:2", "t:1")]
    log.put(record(0, 100))
    for each, count in zip(served, (1, 1, 2), strict=True):
        each.do(each.peer.advanced())
        each.hear(100)
        is_enough = count == 2 and wait_for == "received"
        assert (log.reached, log.available, each.end) == (100 * is_enough, is_enough, "")


def test_what_retention_removes_ends_the_connection() -> None:
    served = Served(log_of(100))
    served.peer.take(report(0))
    served.do(served.peer.read_done(None))
    assert "clear the slave's store" in served.end


@pytest.mark.parametrize("size", [0, 7, 101, 5 << 20])
def test_what_is_no_record_is_not_sent(size: int) -> None:
    log = log_of(100, segment=8 << 20)
    log.put(size.to_bytes(4, "big") + bytes(96))
    served = Served(log, 0)
    assert served.sent == [chunk(0, record(0, 100))]
    assert "no record at 100" in served.end


# --- a copy of a broker


def met(mine: Mine, *chunks: bytes) -> list[Action]:
    peer = PlainFollowerPeer(mine, now_ms=0, **TIMES)
    return [*peer.start(), *(action for each in chunks for action in peer.take(each))]


def mine(replica: Replica | None, end: int = 200) -> Mine:
    return Mine(master="m:1", replica=replica, fresh_store=store_id(9), segment_bytes=SEGMENT, end_offset=end)  # fmt: skip


def test_a_new_copy_is_made_when_a_record_has_begun_and_not_before() -> None:
    head = record(SEGMENT, 36)
    pieces = [chunk(SEGMENT + at, head[at : at + 9]) for at in range(0, 36, 9)]
    start, accept, feed = met(NEW, chunk(SEGMENT), *pieces)
    assert (start, feed) == (Send(report(0)), Feed(SEGMENT, head))
    assert isinstance(accept, Accept)
    assert (accept.replica.role, accept.replica.protocol) == ("follower", "rocketmq")
    assert accept.begin == FollowBegin(segment_bytes=None, log_offset=SEGMENT)


@pytest.mark.parametrize(
    ("mine", "data", "word"),
    [
        (NEW, chunk(0, b"x" * 36), "no record at 0"), (NEW, chunk(0, record(7, 100)), "no record at 0"),
        (mine(None, 0), chunk(9, b"x"), "file begins at 9"),
        (mine(COPY), chunk(100, record(100, 100)), "100 instead of 200"),
        (mine(COPY), chunk(201), "201 instead of 200"), (NEW, chunk(-1, b"x"), "a chunk of"),
        (NEW, (0).to_bytes(8, "big") + (1 << 23).to_bytes(4, "big"), "a chunk of"),
    ],
)  # fmt: skip
def test_bytes_that_cannot_continue_the_log_change_nothing(mine: Mine, data: bytes, word: str) -> None:  # fmt: skip
    _, close = met(mine, data)
    assert isinstance(close, Close)
    assert word in close.reason


@pytest.mark.parametrize(("what", "word"), [("role", "master"), ("protocol", "penstock")])
def test_a_store_that_was_no_copy_of_a_broker_is_refused(what: str, word: str) -> None:
    replica: Replica = attrs.evolve(COPY, **{what: word})  # type: ignore[arg-type] # texts
    (close,) = met(mine(replica))
    assert isinstance(close, Close)
    assert (close.is_final, word in close.reason) == (True, True)


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_store_that_was_no_copy_is_compared_from_its_last_segment_on(is_equal: bool) -> None:
    """Any log with a record where that of the copy ended was joined to it."""
    own, end = record(SEGMENT, 300), SEGMENT + 300
    peer = PlainFollowerPeer(mine(None, end), now_ms=0, **TIMES)
    assert peer.start() == [Hash(SEGMENT, end)]
    # However long that takes, nothing is asked for before, or there would be nothing to compare.
    assert peer.tick(100_000) == []
    assert peer.hashed(SEGMENT, end, sha256(own).digest()) == [Send(report(SEGMENT))]
    theirs = own if is_equal else own[:-1] + b"?"
    assert not peer.take(chunk(SEGMENT) + chunk(SEGMENT, theirs[:100]))
    found = peer.take(chunk(SEGMENT + 100, theirs[100:] + record(end, 100)))
    if is_equal:
        assert [type(each) for each in found] == [Accept, Feed]
        assert found[1] == Feed(end, record(end, 100))
    else:
        (close,) = found
        assert isinstance(close, Close)
        assert (close.is_final, close.needs_copy) == (True, True)


def test_only_a_copy_of_a_broker_is_one_by_a_heartbeat() -> None:
    """A master that does not have the position sends heartbeats, too."""
    assert [type(each) for each in met(mine(None, 0), chunk(0))] == [Send]
    assert [type(each) for each in met(mine(COPY), chunk(200))] == [Send, Accept]


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def followed(path: Path, **settings: Any) -> Iterator[tuple[StoreFollower, socket.socket]]:
    """Yield a copy of a broker that the test plays, and the broker's end of its connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        follow(path, address_of(server), protocol="rocketmq", environ={}, **settings) as copy,
        server.accept()[0] as line,
    ):
        assert line.recv(8) == report(0)
        yield copy, line


def real_chunks(raw: bytes, chance: Random) -> Iterator[bytes]:
    """Yield a log in chunks that end anywhere, though within one file."""
    at = 0
    while at < len(raw):
        stop = min(at + chance.choice((1, 50, 3000)), at - at % STORED + STORED, len(raw))
        yield chunk(at, raw[at:stop])
        at = stop


def test_garbled_streams_end_in_a_closed_connection_or_do_no_harm(log: MasterLog) -> None:
    ends = 0
    for number in range(rounds(gate=1500, night=500_000)):
        chance, expected = Random(f"{SEED} {number}"), None
        copy, served = PlainFollowerPeer(NEW, now_ms=0, **TIMES), Served(log_of(100, 200, 300), 0)
        stream = garbled(b"".join(real_chunks(log.raw[:3000], chance)), chance)
        reports = garbled(b"".join(map(report, (0, 100, 300, 600, 600))), chance)
        while stream or reports:
            size = chance.randrange(9, 200)
            for action in copy.take(stream[:size]):
                ends += isinstance(action, Close)
                if isinstance(action, Feed):
                    assert expected in (None, action.log_offset), f"PENSTOCK_SEED={SEED}, {number}"
                    expected = action.log_offset + len(action.data)
            served.do(served.peer.take(reports[: size // 9]))
            assert served.log.reached <= 600, f"PENSTOCK_SEED={SEED}, {number}"
            stream, reports = stream[size:], reports[size // 9 :]
        ends += bool(served.end)
    assert ends > 500


# --- over a socket

SLAVES: dict[str, Any] = {"replicate.ha.rocketmq_slaves": True}


def test_both_protocols_are_served_at_one_address_and_a_copy_keeps_its_own(tmp_path: Path) -> None:
    m, c, plain = tmp_path / "m", tmp_path / "c", tmp_path / "plain"
    with master(m, **SLAVES) as store:
        listen = status_of(m)["listen"]
        for _ in range(2):
            with (
                copy_of(c, listen) as ours,
                follow(plain, listen, protocol="rocketmq", environ={}, **SMALL) as copy,
            ):
                for number in range(60):
                    store.put("t", bytes(number * 100))
                # A put waits for one of them.
                assert ours.wait_caught_up(WAIT_S)
                assert copy.wait_caught_up(WAIT_S)
        for path, protocol in ((c, "rocketmq"), (plain, "penstock")):
            refusal(path, listen, r"penstock master|not copies", protocol=protocol)
    assert logs(m) == logs(c) == logs(plain)
    assert penstock.promote(plain, environ={}).role == "master"


def test_a_slave_may_say_its_first_word_after_more_than_5_s(tmp_path: Path) -> None:
    """A copy of Penstock's own may not."""
    m, clock = tmp_path / "m", ManualClock(1_700_000_000_000)
    with master(m, clock=clock, **SLAVES) as store, line_to(m) as line:
        end = store.put("t", b"").size
        clock.now_ms += 19_000
        # What the connections are told of the time comes before the status.
        eventually(lambda: status_of(m)["visible"] == end)
        line.sendall(report(0))
        assert line.recv(8) == report(0)


def test_a_master_that_serves_no_slave_says_so_in_its_status(tmp_path: Path) -> None:
    with master(tmp_path / "m"):
        with line_to(tmp_path / "m") as line:
            line.sendall(report(0))
            assert is_closed(line)
        (refused,) = eventually(lambda: status_of(tmp_path / "m")["copies"])
    assert "replicate.ha.rocketmq_slaves = true" in refused["last_error"]


def test_a_master_of_other_segments_leaves_no_folder(tmp_path: Path) -> None:
    with (
        followed(tmp_path / "c") as (copy, line),
        pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"),
    ):
        line.sendall(chunk(65536, record(65536, 100)))
        copy.wait(WAIT_S)
    assert not (tmp_path / "c").exists()


def test_a_file_of_another_size_than_a_segment_ends_the_following(log: MasterLog, tmp_path: Path) -> None:  # fmt: skip
    at, settings = 0, {**READING, "geometry.segment_bytes": 2 * STORED}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        follow(tmp_path / "c", address_of(server), protocol="rocketmq", environ={}, **settings) as copy,
    ):  # fmt: skip
        for _ in range(5):
            with server.accept()[0] as line:
                at = int.from_bytes(line.recv(8), "big")
                line.sendall(chunk(at, log.raw[at:STORED]))
                while line.recv(8):
                    pass
        with pytest.raises(ReplicationError, match="to the end of a segment as large as the master's"):  # fmt: skip
            copy.wait(WAIT_S)
    (found,) = logs(tmp_path / "c")
    assert found[:at] == log.raw[:at]
    assert not found[at:].strip(b"\0")


def test_a_copy_that_syncs_each_record_reports_none_before_its_sync(log: MasterLog, tmp_path: Path) -> None:  # fmt: skip
    """It reported each quarter of a second of a slow sync. Then it is not silent, or its master takes it for dead."""
    files, may_sync = FaultyFiles(), threading.Event()
    may_sync.set()

    def wait(call: str, _path: Path) -> None:
        assert "sync" not in call or may_sync.wait(WAIT_S)

    files.plan.watch = wait
    first, end = log.begins[1], log.begins[2]
    with (
        followed(tmp_path / "c", files=files, flush="sync", **READING) as (_, line),
        contextlib.ExitStack() as stack,
    ):
        stack.callback(may_sync.set)
        line.sendall(chunk(0, log.raw[:first]))
        assert line.recv(8) == report(first)
        may_sync.clear()
        line.sendall(chunk(first, log.raw[first:end]))
        # A heartbeat, after a while.
        assert line.recv(8) == report(first)
        assert status_of(tmp_path / "c")["received"] == end
        may_sync.set()
        assert line.recv(8) == report(end)
