"""A master and its copies over real connections, with their threads."""

import asyncio
import contextlib
import errno
import gc
import json
import multiprocessing
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lanes import eventually
from tests.replicas.fakes import FakeLog, data_frame
from tests.replicas.logs import SEGMENT, MasterLog
from tests.replicas.test_following import hello

import penstock
from penstock import Durability, PutStatus
from penstock.contracts import Replicator
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualClock, ReplicatorContract
from penstock_replicate import StoreFollower, follow, wire
from penstock_replicate.ha import HaOptions, HaReplicator
from penstock_replicate.loop import Loop
from penstock_replicate.serving import Link

SMALL: dict[str, Any] = {"geometry.segment_bytes": 65536, "flush": "sync"}
WAIT_S = 60


def master(path: Path, listen: str = "127.0.0.1:0", copies: int = 1, **settings: Any) -> Store:
    given = {"replicate.ha.listen": listen, "replicate.ha.in_sync_replicas": copies + 1, "replicate.ha.heartbeat_ms": 100}  # fmt: skip
    return penstock.open(path, environ={}, replicate="ha", **{**SMALL, **given, **settings})


def status_of(path: Path) -> dict[str, Any]:
    file = path / "penstock" / "replica-status"
    eventually(file.exists)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def copy_of(path: Path, listen: str) -> StoreFollower:
    follower = follow(path, listen, environ={}, flush="sync")
    assert follower.wait_caught_up(WAIT_S)
    return follower


def logs(*paths: Path) -> list[bytes]:
    return [b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir())) for path in paths]  # fmt: skip


def refusal(path: Path, listen: str, why: str, **settings: Any) -> penstock.ReplicationError:
    """Return the error with which the following of a folder ends, and which says why."""
    with follow(path, listen, environ={}, **settings) as copy:
        with pytest.raises(penstock.ReplicationError, match=why) as caught:
            copy.wait(WAIT_S)
        assert copy.status()["state"] == "ended"
    return caught.value


def copied(m: Path, c: Path) -> None:
    """Make a master with one message, and a copy of it; both are closed."""
    with master(m) as store:
        store.put("t", b"x")
        copy_of(c, status_of(m)["listen"]).close()


def replica(*words: str) -> int:
    """Return the exit code of the command `replica`."""
    command = [sys.executable, "-m", "penstock", "replica", *words]
    return subprocess.run(command, timeout=WAIT_S, check=False).returncode


def line_to(path: Path) -> socket.socket:
    """Connect to the master whose store is there."""
    host, _, port = status_of(path)["listen"].rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def is_closed(line: socket.socket) -> bool:
    """Wait until the other side has closed a connection on which it says nothing."""
    with contextlib.suppress(ConnectionResetError):
        return line.recv(99) == b""
    return True


class TestHa(ReplicatorContract):
    @pytest.fixture
    def strategy(self) -> Iterator[type[Replicator]]:
        """The replicator; those of stores that are left behind by a crash are closed at the end."""
        made: list[Replicator] = []

        class ClosedHa(HaReplicator):
            __doc__ = HaReplicator.__doc__

            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                made.append(self)

        yield ClosedHa
        for each in made:
            each.close()

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"listen": "127.0.0.1:0"}


def test_a_put_is_on_both_disks_and_a_copy_that_comes_back_goes_on(tmp_path: Path) -> None:
    m, c = tmp_path / "m", tmp_path / "c"
    settings: dict[str, Any] = {"replicate.ha.timeout_ms": 60_000}
    with master(m, **settings) as store:
        assert store.put("t", b"alone").status == PutStatus.SLAVE_NOT_AVAILABLE
        listen = status_of(m)["listen"]
        for life in range(2):
            with copy_of(c, listen) as copy:
                eventually(lambda: store.put("t", b"x").status == PutStatus.PUT_OK)
                for number in range(400):
                    receipt = store.put("t", b"%d of life %d" % (number, life))
                    assert receipt.durability == Durability.ON_DISK_HERE_AND_THERE
                    # At this moment, not only soon.
                    assert copy.status()["flushed"] >= receipt.log_offset + receipt.size
                with pytest.raises(penstock.FollowerError):
                    penstock.open(c, environ={})
            alone = [store.put("t", b"alone").status for _ in range(20)]
            assert PutStatus.SLAVE_NOT_AVAILABLE in alone
        copy_of(c, listen).close()
    assert logs(m) == logs(c)
    with penstock.open(c, environ={}, read_only=True) as read:
        assert len(list(read.scan("t"))) > 800
        assert not list(read.verify())


def test_what_a_copy_has_received_survives_a_kill_of_its_process(tmp_path: Path) -> None:
    m, c = tmp_path / "m", tmp_path / "c"
    pool: dict[str, Any] = {
        f"write.transient-pool.{n}": 3_600_000 for n in ("interval_ms", "thorough_interval_ms")
    }
    pool |= {"write.transient-pool.lock_memory": False, "geometry.segment_bytes": 65536}
    received: dict[str, Any] = {"replicate.ha.wait_for": "received", "replicate.ha.timeout_ms": 60_000}  # fmt: skip
    with master(m, **received) as store:
        listen = status_of(m)["listen"]
        with follow(c, listen, environ={}, write="transient-pool", flush="async", **pool):
            eventually(lambda: store.put("t", b"first").status == PutStatus.PUT_OK)
            for number in range(20):
                body = b"%d was received" % number
                assert store.put("t", body).durability == Durability.ON_DISK_HERE_RECEIVED_THERE
                assert body in logs(c)[0]


def test_offsets_are_there_when_a_copy_is_level_and_when_its_master_has_closed(tmp_path: Path) -> None:  # fmt: skip
    m, c = tmp_path / "m", tmp_path / "c"
    store = master(m)
    for _ in range(2):
        store.put("t", b"x", queue=0)
    with (
        copy_of(c, status_of(m)["listen"]) as copy,
        penstock.open(c, environ={}, read_only=True) as read,
    ):
        store.commit_offset("g", "t", 0, offset=1)
        assert copy.wait_caught_up(WAIT_S)
        assert read.committed_offset("g", "t", 0) == 1
        store.commit_offset("g", "t", 0, offset=2)
        store.close()
        assert read.committed_offset("g", "t", 0) == 2


def test_an_old_history_is_copied_whole_also_if_the_disk_is_full_for_a_while(tmp_path: Path) -> None:  # fmt: skip
    """It is read by the threads that may wait for a disk, a MiB at a time, and divided into records anywhere.

    Its first segment ends as that of a broker of 4.x, whose filler has the bytes of other records.
    """
    m, c, files = tmp_path / "m", tmp_path / "c", FaultyFiles()
    with penstock.open(m, environ={}, **{**SMALL, "flush": "none"}) as old:
        for number in range(300):
            old.put("t", b"%d" % number * (number * 37 % 9000))
    with (m / "commitlog" / f"{0:020d}").open("r+b") as first:
        first.seek(-1, 2)
        first.write(b"x")
    files.plan.fail("allocate", errno.ENOSPC, path="commitlog", after=3, times=2)

    met: list[str] = []

    def no_room(call: str, path: Path) -> None:
        # What it writes as it is accepted once more finds no room either.
        if (call, path.name) == ("create", "ranges.new") and files.plan.counts.get("allocate", 0) > 3 and not met:  # fmt: skip
            met.append(call)
            raise OSError(errno.ENOSPC, "no space")

    files.plan.watch = no_room
    with threads_that_open() as opened, master(m) as store:
        given: dict[str, Any] = {"flush": "sync", "write": "file", "files": files}
        with follow(c, status_of(m)["listen"], environ={}, **given) as copy:
            assert copy.wait_caught_up(WAIT_S)
            assert "no space" in copy.status()["last_error"]
            assert met
            store.put("t", b"new")
            assert copy.wait_caught_up(WAIT_S)
    assert logs(m) == logs(c)
    assert "penstock-ha" in [name for name, _ in opened]
    assert not [name for name, is_loop in opened if is_loop]


def test_a_copy_that_gets_nothing_more_syncs_what_it_has_however_far_behind_it_is(log: MasterLog, tmp_path: Path) -> None:  # fmt: skip
    """It would sync the rest only with the next 256 MiB."""
    accept, far = wire.control("accept", log_offset=0, ranges=log.ranges), wire.heartbeat_frame(1 << 40)  # fmt: skip
    first, end = log.begins[1], log.begins[3]
    heard, reader = list[wire.Frame](), wire.FrameReader({**wire.ONLY_CONTROL, **wire.FROM_FOLLOWER})  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with follow(tmp_path / "c", address, environ={}, flush="sync"), server.accept()[0] as line:

            def hears(frame: wire.Frame) -> bool:
                heard.extend(reader.take(line.recv(4096)))
                return frame in heard

            assert line.recv(8) == wire.FIRST_REPORT
            line.sendall(wire.GREETING + hello(segment_bytes=SEGMENT, end=log.end))
            eventually(lambda: hears(wire.Control("follow", {"log_offset": 0})))
            line.sendall(accept + far + data_frame(0, log.raw[:first]))
            eventually(lambda: hears(wire.Ack(first, first)))
            # The file is there now: the store takes these by itself, and does not sync each.
            line.sendall(data_frame(first, log.raw[first:end]))
            eventually(lambda: hears(wire.Ack(end, end)))


@contextlib.contextmanager
def threads_that_open() -> Iterator[list[tuple[str, bool]]]:
    """Yield a list that gets the name of each thread that opens a file, and whether an event loop runs in it."""
    found: list[tuple[str, bool]] = []
    is_over = False

    def hear(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and not is_over:
            is_loop = asyncio._get_running_loop() is not None
            found.append((threading.current_thread().name, is_loop))

    sys.addaudithook(hear)
    yield found
    is_over = True


def test_a_following_that_has_ended_says_so_and_lets_the_store_go(tmp_path: Path) -> None:
    """Its thread had ended: the status stayed, and no process could promote the copy."""
    m, c, other = (tmp_path / name for name in ("m", "c", "other"))
    copied(m, c)
    before = logs(c)
    with master(other) as second:
        second.put("t", b"y")
        with follow(c, status_of(other)["listen"], environ={}) as copy:
            eventually(lambda: "ended" in status_of(c)["text"])
            (refused,) = eventually(lambda: status_of(other)["copies"])
            assert "not copies" in refused["last_error"]
            assert replica("promote", str(c), "--timeout", "60s") == 0
            with pytest.raises(penstock.ReplicationError, match="not copies"):
                copy.wait(WAIT_S)
    assert logs(c) == before
    with penstock.open(c, environ={}) as store:
        store.put("t", b"its own")


def test_a_host_is_tried_at_each_of_its_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    find = socket.getaddrinfo

    def found(*asked: Any, **more: Any) -> list[Any]:
        good = find(*asked, **more)
        # Of a family that the address is not of, and one that no connection has.
        return [(socket.AF_UNIX, *good[0][1:]), (*good[0][:4], ("255.255.255.255", 1)), *good]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    copied(tmp_path / "m", tmp_path / "c")


def test_a_name_that_is_never_found_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A dead master may take its name server along, and then its copy is to be promoted."""
    c, asked, answer = tmp_path / "c", threading.Event(), threading.Event()
    copied(tmp_path / "m", c)

    def never(*_: object, **__: object) -> list[Any]:
        asked.set()
        answer.wait(WAIT_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    with follow(c, "nowhere:1", environ={}):
        assert asked.wait(WAIT_S)
    penstock.promote(c, environ={})
    answer.set()


def test_once_ends_when_the_copy_has_all(tmp_path: Path) -> None:
    """It waited anew each second for what comes in two of them."""
    m, c = tmp_path / "m", tmp_path / "c"
    slowly: dict[str, Any] = {"replicate.ha.heartbeat_ms": 1000}
    with master(m, **slowly) as store:
        receipt = store.put("t", b"x")
        assert replica("follow", str(c), "--from", status_of(m)["listen"], "--once") == 0
    with penstock.open(c, environ={}, read_only=True) as read:
        assert read.stats()["log_end_offset"] == receipt.log_offset + receipt.size


def test_a_silent_or_closed_port_leaves_no_folder(tmp_path: Path) -> None:
    """A peer that did not greet within three seconds was taken for a RocketMQ master, and a store was made for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        with follow(tmp_path / "c", listen, environ={}) as copy:
            with server.accept()[0] as line:
                assert line.recv(8) == wire.FIRST_REPORT
                assert not (tmp_path / "c").exists()
            eventually(lambda: "closed" in copy.status()["last_error"])
            assert copy.wait_caught_up(0) is False
    for nowhere in (listen, "a..b:1"):
        with follow(tmp_path / "c", nowhere, environ={}) as copy:
            eventually(lambda: "cannot be reached" in copy.status()["text"])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("is_secure", [False, True])
def test_close_while_others_connect_leaves_no_connection(tmp_path: Path, is_secure: bool) -> None:
    """Connections that were accepted while it closed stayed open: their peers hung, and Python warned of them later."""
    settings = secure(tmp_path / "key") if is_secure else {}
    for number in range(2 if is_secure else 20):
        m = tmp_path / f"m{number}"
        with contextlib.ExitStack() as stack:
            lines = []
            with master(m, **settings):
                for data in (b"", b"", wire.FIRST_REPORT * 99 if is_secure else b""):
                    lines.append(stack.enter_context(line_to(m)))
                    lines[-1].sendall(data)
            assert all(map(is_closed, lines))


def test_a_connection_that_comes_at_the_moment_of_a_close_is_closed() -> None:
    """A slave of RocketMQ connects again at once. The loop finds its connection and the order to close together."""
    waits, posted = threading.Barrier(2), threading.Event()

    class Watched(Loop):
        def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
            done = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
            posted.set()
            return done.result()

    loop = Watched(4, None)
    clock = ManualClock()
    server: Any = SimpleNamespace(
        options=HaOptions(), log=FakeLog(), copies=None, key=None, context=SimpleNamespace(clock=clock), watch=lambda: None
    )  # fmt: skip
    loop.start()
    host, port = loop.call(loop.listen(lambda: Link(server, loop), "127.0.0.1", 0)).split(":")
    posted.clear()
    loop.post(lambda: (waits.wait(), waits.wait()))
    waits.wait()
    closing = threading.Thread(target=loop.close)
    with socket.create_connection((host, int(port)), WAIT_S) as line:
        closing.start()
        assert posted.wait(WAIT_S)
        waits.wait()
        closing.join()
        assert is_closed(line)
    # Python warns of a socket that nobody has closed.
    gc.collect()


def test_an_address_that_cannot_be_had_is_an_error_and_opens_nothing(tmp_path: Path) -> None:
    with master(tmp_path / "m"):
        listen = status_of(tmp_path / "m")["listen"]
        # Of the second one no socket can be asked: a part of a name has at most 63 characters.
        for wrong in (listen, f"{'a' * 64}:0"):
            with pytest.raises(penstock.ConfigError, match=r"replicate\.ha\.listen"):
                master(tmp_path / "other", wrong)
    with master(tmp_path / "other", listen):
        pass


def open_sockets() -> set[str]:
    names = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    return {name for name in names if name.startswith("socket:")}


def child(connection: Any) -> None:
    connection.send(open_sockets())
    connection.recv()


def test_a_child_holds_no_socket_of_replication(tmp_path: Path) -> None:
    """It kept the listening socket, so that the store could not be opened again at its address, and followers hung."""
    m, c = tmp_path / "m", tmp_path / "c"
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with ours, theirs:
        # The pipe's, and those of other tests in this process.
        others = open_sockets()
        store = master(m)
        listen = status_of(m)["listen"]
        with copy_of(c, listen) as copy:
            forked = context.Process(target=child, args=(theirs,), daemon=True)
            forked.start()
            assert ours.recv() <= others
            store.put("t", b"the parent goes on")
            assert copy.wait_caught_up(WAIT_S)
            store.close()
            with master(m, listen) as store:
                assert copy.wait_caught_up(WAIT_S)
            ours.send(None)
            forked.join()
        assert forked.exitcode == 0


def test_a_closed_follower_ends_every_wait(tmp_path: Path) -> None:
    with master(tmp_path / "m"):
        copy = copy_of(tmp_path / "c", status_of(tmp_path / "m")["listen"])
        threads = [threading.Thread(target=copy.close) for _ in range(3)]
        for thread in threads:
            thread.start()
        for call in (copy.wait, copy.wait_caught_up):
            with pytest.raises(penstock.StoreClosedError):
                call()
        for thread in threads:
            thread.join()


CERTIFICATE = str(Path(__file__).with_name("certificate.pem"))


def secure(path: Path) -> dict[str, Any]:
    """Return the settings of a master with a certificate and a secret, which is written to a file."""
    path.write_text("a secret of both sides\n")
    return {"replicate.ha.secret_file": str(path), "replicate.ha.tls_cert": CERTIFICATE}


def test_a_line_is_encrypted_and_for_those_who_know_the_secret(tmp_path: Path) -> None:
    m, c, key = (tmp_path / name for name in ("m", "c", "key"))
    settings = secure(key)
    (tmp_path / "other").write_text("another secret than that")
    with master(m, **settings) as store:
        listen = status_of(m)["listen"]
        known: dict[str, Any] = {"secret_file": str(key), "tls_ca": CERTIFICATE, "flush": "sync"}
        with follow(c, listen, environ={}, **known) as copy:
            assert copy.wait_caught_up(WAIT_S)
            eventually(lambda: store.put("t", bytes(50_000)).status == PutStatus.PUT_OK)
            assert copy.wait_caught_up(WAIT_S)
        changes: dict[str, Any]
        refusal(c, listen, "does not know", **{**known, "secret_file": str(tmp_path / "other")})
        for changes in ({"tls_ca": None}, {"tls_ca": ssl.get_default_verify_paths().cafile}):
            with follow(tmp_path / "none", listen, environ={}, **{**known, **changes}) as copy:
                eventually(lambda: copy.status()["last_error"])
                assert copy.status()["state"] == "connecting"
    assert not (tmp_path / "none").exists()
    assert logs(m) == logs(c)


def test_a_first_word_that_comes_with_the_handshake_is_answered_encrypted(tmp_path: Path) -> None:
    """The answer was sent in the clear, and nearly every second connection broke."""
    tls = ssl.create_default_context(cafile=CERTIFICATE)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    copy = tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with master(tmp_path / "m", **secure(tmp_path / "key")), line_to(tmp_path / "m") as line:
        raw, answer = b"", b""
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                copy.do_handshake()
                break
            line.sendall(outgoing.read())
            incoming.write(line.recv(65536))
        copy.write(wire.FIRST_REPORT)
        line.sendall(outgoing.read())
        while not answer.startswith(wire.GREETING):
            raw += line.recv(65536)
            assert wire.GREETING not in raw
            incoming.write(raw)
            raw = b""
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += copy.read(65536)


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    for name in ("secret_file", "tls_cert"):
        for path in (tmp_path / "absent", tmp_path / "short"):
            with pytest.raises(penstock.ConfigError, match=name):
                master(tmp_path / "m", "127.0.0.1:0", 1, **{f"replicate.ha.{name}": str(path)})
    with pytest.raises(penstock.ConfigError, match="tls_key needs"):
        master(tmp_path / "m", "127.0.0.1:0", 1, **{"replicate.ha.tls_key": CERTIFICATE})
    for name in ("secret_file", "tls_ca"):
        with pytest.raises(penstock.ArgumentError, match=name):
            wrong: dict[str, Any] = {name: str(tmp_path / "short")}
            follow(tmp_path / "c", "127.0.0.1:1", **wrong)
    assert not (tmp_path / "c").exists()


def test_a_master_that_was_replaced_is_cut_and_what_a_group_has_read_of_the_rest_counts_for_nothing(
    tmp_path: Path,
) -> None:
    """The messages of the new master have the same queue offsets, and would be taken for acknowledged."""
    m, c, files = tmp_path / "m", tmp_path / "c", FaultyFiles()

    def read() -> list[bytes]:
        with (
            penstock.open(m, environ={}, read_only=True) as beside,
            beside.consumer("g", "t") as consumer,
        ):
            taken = consumer.poll(limit=20, timeout=WAIT_S)
            for message in taken:
                message.ack()
        return [message.body for message in taken]

    with master(m) as store:
        ends = [store.put("t", b"%d" % number, queue=0).log_offset for number in range(5)]
        copy_of(c, status_of(m)["listen"]).close()
        ends += [store.put("t", b"only here", queue=0).log_offset for _ in range(2)]
    assert len(read()) == 7
    penstock.promote(c, environ={})
    before = logs(m)
    with master(c) as store:
        for number in (5, 6):
            store.put("t", b"new %d" % number, queue=0)
        listen = status_of(c)["listen"]
        error = refusal(m, listen, "other bytes")
        assert isinstance(error, penstock.DivergedError)
        assert error.parts_at == ends[5] < error.end_offset
        # The follower went on without its store, and nobody was told.
        files.plan.fail("create", errno.ENOSPC, path="new-segment")
        refusal(m, listen, "No space", cut=True, files=files)
        assert logs(m) == before
        with follow(m, listen, cut=True, environ={}) as back:
            assert back.wait_caught_up(WAIT_S)
            assert read()[-2:] == [b"new 5", b"new 6"]
    assert logs(m) == logs(c)
    # Of both attempts.
    saved = [file.read_bytes() for file in (m / "penstock" / "saved").iterdir()]
    assert [each.count(b"only here") for each in saved] == [2, 2]
