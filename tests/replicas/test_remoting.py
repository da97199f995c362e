"""What a copy of a broker asks for beside the log: answers, hostile ones too, and when they are written."""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.lanes import SEED, eventually, rounds
from tests.replicas.logs import READING, SEGMENT, MasterLog
from tests.replicas.test_rocketmq import address_of
from tests.replicas.test_sockets import WAIT_S, is_closed
from tests.replicas.test_wire import garbled

import penstock
from penstock.errors import ArgumentError, ReplicationError
from penstock.testing import FaultyFiles
from penstock_replicate import StoreFollower, beside, follow, following
from penstock_replicate.beside import trouble_of
from penstock_replicate.line import LineError
from penstock_replicate.remoting import FRAME_BYTES_MAX, Broker
from penstock_replicate.rocketmq import chunk

CHECK = struct.pack(">7q", *range(1, 8))
OFFSETS = b'{"offsetTable":{"t@g":{0:3,1:7}}}'
BODIES = {
    60: CHECK, 45: b'{"offsetTable":{3:1}}', 43: OFFSETS, 201: b'{"subscriptionGroupTable":{}}',
    21: b'{"topicConfigTable":{}}', 28: b'{"table":{"commitLogMaxOffset":"700"}}',
}  # fmt: skip
NAMES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "timercheck"]  # fmt: skip


def frame(header: bytes, body: bytes = b"", *, codec: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body  # fmt: skip


def answer(opaque: Any, body: bytes = b"", *, code: Any = 0, flag: Any = 1) -> bytes:
    return frame(json.dumps({"code": code, "opaque": opaque, "flag": flag, "remark": "why"}).encode(), body)  # fmt: skip


def binary(opaque: int, body: bytes = b"", *, code: int = 0) -> bytes:
    return frame(struct.pack(">hbhiii", code, 0, 479, opaque, 1, 3) + b"why" + bytes(4), body, codec=1)  # fmt: skip


def asked_in(data: bytes) -> tuple[int, int]:
    """Return code and opaque of the one request in some bytes."""
    size, header_bytes = struct.unpack_from(">II", data)
    assert (len(data), size) == (8 + header_bytes, 4 + header_bytes)
    head = json.loads(data[8:])
    assert head["flag"] == 0
    return head["code"], head["opaque"]


class Asked(Broker):
    """A connection to a broker that answers in pieces, the least of a byte."""

    def __init__(self, said: Any = answer, refused: tuple[int, ...] = ()) -> None:
        super().__init__(self.hear, lambda: self.pieces.pop(0))
        self.pieces = list[bytes]()
        self.said, self.refused = said, refused

    def hear(self, request: bytes) -> None:
        code, opaque = asked_in(request)
        raw = self.said(opaque, code=1) if code in self.refused else self.said(opaque, BODIES[code])
        size = max(len(raw) // 500, 1)
        self.pieces += [raw[at : at + size] for at in range(0, len(raw), size)]


def ends(data: bytes, why: str = "breaks the protocol") -> None:
    """Check that these bytes end the connection to a broker."""
    broker = Broker(lambda _: None, iter([data]).__next__)
    with pytest.raises(LineError, match=why):
        broker.ask()


@pytest.mark.parametrize("said", [answer, binary])
def test_a_round_ends_with_the_files_as_the_broker_has_them_and_the_end_of_its_log(said: Any) -> None:  # fmt: skip
    asked = Asked(said)
    for _ in range(2):
        files, refusals = asked.ask()
        assert not refusals
        assert [(each.name, each.log_end) for each in files] == [(f"config/{name}", 700) for name in NAMES]  # fmt: skip
        assert [files[2].data, files[4].data] == [OFFSETS, CHECK.ljust(4096, b"\0")]
    # A broker without timers is one of 4.x.
    asked.refused = (60, 43)
    files, refusals = asked.ask()
    assert (len(files), refusals) == (3, ["config/consumerOffset.json is refused: code 1 why"])
    asked.refused = (28,)
    with pytest.raises(LineError, match="does not say where its log ends"):
        asked.ask()


BAD = {
    "too long": struct.pack(">I", FRAME_BYTES_MAX + 1), "too short": struct.pack(">I", 3),
    "no header": struct.pack(">II", 4, 1), "no codec": frame(b"{}", codec=2), "no JSON": frame(b"{"),
    "a header of too many bytes": frame(b'{"code":0,"opaque":1,"flag":1}'.ljust(2 << 20)), "no object": frame(b"[]"),
    "too deep": frame(b"[" * 100_000), "no number": answer("1"), "no code": answer(1, code=None),
    "no flag": answer(1, flag=True), "a long number": frame(b'{"code":0,"flag":1,"opaque":' + b"9" * 5000 + b"}"),
    "not asked": answer(2), "cut": frame(bytes(5), codec=1),
    "no text": frame(struct.pack(">hbhiii", 0, 0, 0, 1, 1, 2) + b"\xff\xff", codec=1),
}  # fmt: skip


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bytes_that_are_no_answer_end_the_connection(data: bytes) -> None:
    ends(data)


def test_requests_of_a_broker_are_not_answered_and_a_round_has_one_answer_to_each_of_its_own() -> None:  # fmt: skip
    assert (
        len(Asked(lambda *given, **more: answer(1, flag=0) * 3 + answer(*given, **more)).ask()[0])
        == 5
    )
    ends(answer(1) * 2, "no request that is open")
    ends(answer(0), "no request that is open")
    # Between two rounds.
    asked = Asked()
    asked.ask()
    with pytest.raises(LineError, match="no request that is open"):
        asked.ask(answer(6))


@pytest.mark.parametrize(
    "figures",
    [b"", b"\xff", b"[]", b'{"table":1}', b'{"table":{}}', b'{"table":{"commitLogMaxOffset":"x"}}', b"[" * 100_000,
     b'{"table":{"commitLogMaxOffset":-1}}', b'{"table":{"commitLogMaxOffset":Infinity}}',
     b'{"table":{"commitLogMaxOffset":9223372036854775808}}', BODIES[28].replace(b'"70', b" " * (1 << 20) + b'"70')],
)  # fmt: skip
def test_figures_without_the_end_of_the_log_end_the_connection(figures: bytes, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(BODIES, 28, figures)
    with pytest.raises(LineError, match=r"figures|log that ends"):
        Asked().ask()


def test_garbled_answers_do_no_harm() -> None:
    failures = 0
    for number in range(rounds(gate=500, night=100_000)):
        chance = Random(f"{SEED} {number}")
        said = chance.choice((answer, binary))
        stream = garbled(b"".join(said(n + 1, body) for n, body in enumerate(BODIES.values())), chance)  # fmt: skip
        pieces = iter([stream[at : at + 97] for at in range(0, len(stream), 97)])

        def receive(pieces: Iterator[bytes] = pieces) -> bytes:
            piece = next(pieces, None)
            if piece is None:
                raise LineError("no answer")
            return piece

        try:
            files, _ = Broker(lambda _: None, receive).ask()
            assert all(0 <= each.log_end < 1 << 63 for each in files), (
                f"PENSTOCK_SEED={SEED}, {number}"
            )
        except LineError:
            failures += 1
    assert failures > 100


# --- over sockets


def answer_round(line: socket.socket, log_end: int, **changes: bytes) -> None:
    """Answer the six requests of a round."""
    figures = b'{"table":{"commitLogMaxOffset":"%d"}}' % log_end
    for code in BODIES:
        asked, opaque = asked_in(line.recv(4096))
        assert asked == code
        line.sendall(answer(opaque, {**BODIES, 28: figures, 43: changes.get("offsets", OFFSETS)}[code]))  # fmt: skip


Servers = tuple[socket.socket, socket.socket]


@pytest.fixture
def servers() -> Iterator[Servers]:
    """A broker's two sockets, for slaves and for clients."""
    with (
        socket.create_server(("127.0.0.1", 0)) as slaves,
        socket.create_server(("127.0.0.1", 0)) as clients,
    ):
        # And what they accept.
        socket.setdefaulttimeout(WAIT_S)
        yield slaves, clients
        socket.setdefaulttimeout(None)


@contextlib.contextmanager
def asking(
    root: Path, servers: Servers, log_begin: bytes, **settings: Any
) -> Iterator[tuple[StoreFollower, socket.socket, socket.socket]]:
    """Yield a copy of a broker, which has this of its log, and the broker's ends of its two connections."""
    slaves, clients = servers
    with (
        follow(
            root, address_of(slaves), protocol="rocketmq", broker=address_of(clients), environ={}, **READING, **settings
        ) as copy,
        slaves.accept()[0] as line, clients.accept()[0] as asked,
    ):  # fmt: skip
        send_log(copy, line, 0, log_begin)
        yield copy, line, asked


def send_log(copy: StoreFollower, line: socket.socket, at: int, data: bytes) -> None:
    """Send a chunk of the log, and wait until the copy has it."""
    line.sendall(chunk(at, data))
    eventually(lambda: copy.status()["received"] == at + len(data))


def test_files_are_written_when_the_log_is_durable_that_they_speak_of(
    log: MasterLog, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round begins when somebody waits for it, and what has not changed is not parsed again."""
    c, files, written, parsed = tmp_path / "c", FaultyFiles(), list[tuple[str, int]](), list[str]()

    def parse(name: str, data: bytes) -> str:
        parsed.append(name)
        return trouble_of(name, data)

    monkeypatch.setattr(beside, "trouble_of", parse)
    first, end, last = log.begins[3], log.begins[9], log.begins[10]
    monkeypatch.setattr(following, "ASK_S", 3600)
    given: dict[str, Any] = {"files": files, "flush": "none"}
    with asking(c, servers, log.raw[:first], **given) as (copy, line, asked):

        def note(call: str, path: Path) -> None:
            if call == "rename" and path.parent.name == "config":
                written.append((path.stem, copy.status()["flushed"]))

        files.plan.watch = note
        answer_round(asked, end)
        for at, stop in pairwise(log.begins[3:10]):
            send_log(copy, line, at, log.raw[at:stop])
        eventually((c / "config" / "timercheck").exists)
        caught_up = copy.catching_up()
        assert not caught_up(0)
        line.sendall(chunk(end) * 2)
        send_log(copy, line, end, log.raw[end:last])
        # The log is level by now.
        assert not caught_up(0)
        answer_round(asked, end)
        assert caught_up(WAIT_S)
        assert copy.status()["beside_error"] == ""
        files.plan.watch = None
    assert (c / "config" / "consumerOffset.json").read_bytes() == OFFSETS
    assert written == [(name, end) for name in NAMES]
    assert parsed == [f"config/{name}" for name in NAMES]
    with penstock.open(c, environ={}, read_only=True) as store:
        assert store.committed_offset("g", "t", 1) == 7


def test_an_answer_is_not_for_the_log_of_another_connection(
    log: MasterLog, servers: Servers, tmp_path: Path
) -> None:
    """A master that has lost the end of its log has other bytes there next."""
    c, (slaves, clients) = tmp_path / "c", servers
    begin, end, *_, last = log.begins[3:10]
    with asking(c, servers, log.raw[:begin]) as (copy, first, asked):
        answer_round(asked, last)
        send_log(copy, first, begin, log.raw[begin:end])
        first.close()
        assert is_closed(asked)
        with slaves.accept()[0] as line, clients.accept()[0] as again:
            line.sendall(chunk(end, log.raw[end:last]))
            answer_round(again, last, offsets=b'{"offsetTable":{}}')
            eventually((c / "config" / "timercheck").exists)
    assert (c / "config" / "consumerOffset.json").read_bytes() == b'{"offsetTable":{}}'
    assert not (c / "config" / "consumerOffset.json.bak").exists()


def test_a_bad_answer_is_told_and_the_log_goes_on(
    log: MasterLog, servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c, ends = tmp_path / "c", log.begins[3:6]
    with asking(c, servers, log.raw[: ends[0]]) as (copy, line, asked):
        answer_round(asked, 0, offsets=b"{}")
        told = eventually(lambda: copy.status()["beside_error"])
        caught_up = copy.catching_up()
        assert not caught_up(0)
        line.sendall(chunk(ends[0]) * 2)
        answer_round(asked, 0, offsets=b"{}")
        # This begins another round, when the one before is written.
        copy.wait_caught_up(0)
        with pytest.raises(ReplicationError, match=r"the log is level, but .*consumerOffset\.json"):
            caught_up(WAIT_S)
        assert "consumerOffset.json" in told
        assert told in copy.status()["text"]
        assert (c / "config" / "delayOffset.json").read_bytes() == BODIES[45]
        assert not (c / "config" / "consumerOffset.json").exists()
        assert asked_in(asked.recv(4096))[0] == 60
        send_log(copy, line, ends[0], log.raw[ends[0] : ends[1]])
        asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        eventually(lambda: "breaks the protocol" in copy.status()["beside_error"])
        asked.close()
        send_log(copy, line, ends[1], log.raw[ends[1] : ends[2]])
        assert copy.status()["state"] == "following"
    logged = [each.getMessage() for each in caplog.records if each.name.startswith("penstock_replicate")]  # fmt: skip
    assert len([text for text in logged if "not up to date" in text]) == 2


def answer_rounds(line: socket.socket) -> None:
    """Answer in a way that cannot be used, until the other side closes the connection."""
    with contextlib.suppress(OSError, struct.error):
        while True:
            answer_round(line, 0, offsets=b"{}")


def test_once_ends_where_a_brokers_files_cannot_be_had(
    log: MasterLog, servers: Servers, tmp_path: Path
) -> None:
    """It waited for ever."""
    c, (slaves, clients), end = tmp_path / "c", servers, log.begins[3]
    command = ["replica", "follow", str(c), "--from", address_of(slaves), "--broker", address_of(clients)]  # fmt: skip
    given = ["--protocol", "rocketmq", "--once", "--set", f"geometry.segment_bytes={SEGMENT}"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, *given], stderr=subprocess.PIPE, text=True
    ) as once, slaves.accept()[0] as line, clients.accept()[0] as asked:  # fmt: skip
        line.sendall(chunk(0, log.raw[:end]))
        answering = threading.Thread(target=answer_rounds, args=(asked,))
        answering.start()
        with contextlib.suppress(OSError):
            eventually(lambda: line.send(chunk(end)) == 0)
        _, said = once.communicate(timeout=WAIT_S)
        answering.join()
    assert once.returncode not in (0, None)
    assert "consumerOffset.json" in said.splitlines()[-1]
    assert (c / "config" / "delayOffset.json").read_bytes() == BODIES[45]


def test_a_broker_that_does_not_answer_is_asked_again(
    log: MasterLog, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ANSWER_S", 0.05)
    monkeypatch.setattr(following, "ASK_S", 0.05)
    with asking(tmp_path / "c", servers, log.raw[: log.begins[3]]) as (copy, _, asked):
        assert asked_in(asked.recv(4096)) == (60, 1)
        # However slowly it goes on.
        asked.sendall(answer(1)[:5])
        eventually(lambda: "no answer" in copy.status()["beside_error"])
        assert is_closed(asked)
        servers[1].accept()[0].close()


def test_a_broker_that_closes_between_two_rounds_is_connected_to_again_without_a_warning(
    log: MasterLog, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c, end = tmp_path / "c", log.begins[3]
    monkeypatch.setattr(following, "ASK_S", 3600)
    with asking(c, servers, log.raw[:end]) as (copy, _, asked):
        answer_round(asked, end)
        eventually((c / "config" / "timercheck").exists)
        asked.shutdown(socket.SHUT_WR)
        monkeypatch.setattr(following, "ASK_S", 0)
        assert not copy.catching_up()(0)
        assert asked.recv(4096) == b""
        with servers[1].accept()[0]:
            assert copy.status()["beside_error"] == ""


def test_a_close_does_not_wait_for_the_rest_of_a_brokers_files(
    log: MasterLog, servers: Servers, tmp_path: Path
) -> None:
    c, files, end, closing = tmp_path / "c", FaultyFiles(), log.begins[3], list[threading.Thread]()
    with asking(c, servers, log.raw[:end], files=files) as (copy, _, asked):

        def close(call: str, path: Path) -> None:
            if call == "rename" and path.parent.name == "config" and not closing:
                closing.append(threading.Thread(target=copy.close))
                closing[0].start()
                eventually(lambda: copy.status()["state"] == "ended")

        files.plan.watch = close
        answer_round(asked, end)
        eventually(lambda: closing)
        closing[0].join()
    assert [each.name for each in (c / "config").iterdir()] == NAMES[:1]


def test_a_broker_whose_log_never_comes_is_named_and_asked_again(
    log: MasterLog, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has deleted what comes next, or is another broker: nobody was told, and the files stayed old for ever."""
    c, end = tmp_path / "c", log.begins[3]
    monkeypatch.setattr(following, "STALL_S", 0)
    monkeypatch.setattr(following, "ASK_S", 0.05)
    with asking(c, servers, log.raw[:end]) as (copy, _, asked):
        answer_round(asked, 1 << 40)
        eventually(lambda: "nothing more of it comes" in copy.status()["beside_error"])
        answer_round(asked, end)
        eventually(lambda: not copy.status()["beside_error"])
        assert (c / "config" / "timercheck").exists()


def test_a_broker_is_asked_only_with_its_own_protocol() -> None:
    for broker, protocol in (("m:1", "penstock"), ("m", "rocketmq")):
        with pytest.raises(ArgumentError, match="broker"):
            follow("c", "m:1", broker=broker, protocol=protocol)
    assert not Path("c").exists()
