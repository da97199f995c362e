"""Commands beside a writer in another process, which is asked to do them: each command, deaths on both sides, hostile requests."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.children import environment, start
from tests.lanes import eventually

import penstock
from penstock.files import Files
from penstock.store import asking
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.retries.copies import retry_copy
from penstock_tools.cli.root import run

Capture = pytest.CaptureFixture[str]
Writer = subprocess.Popen[str]
Begin = Callable[..., Writer]
# Ends cleanly on SIGTERM. "stops": it hangs where it writes config/topics.json. "plain": without the extension messaging.
WRITER = """
import signal, sys
import penstock
from penstock.files import Files
kind = sys.argv[2]
class Stopping(Files):
    def write_whole(self, path, data, fresh=None):
        if kind == "stops" and path.name == "topics.json":
            print("begun", flush=True)
            signal.pause()
        super().write_whole(path, data, fresh)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
settings = {"extensions.use": []} if kind == "plain" else {}
with penstock.open(sys.argv[1], environ={}, files=Stopping(), **settings):
    print("open", flush=True)
    signal.sigwait({signal.SIGTERM})
"""
BROKER = """
import fcntl, signal, sys
with open(sys.argv[1] + "/lock", "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    print("open", flush=True)
    signal.pause()
"""
CLIENT = "import sys; from penstock_tools.cli.root import run; print(run(sys.argv[2:]))"
PUT = b'["put", ["t", {"bytes": "eA=="}], {"mapping": []}]\n'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with penstock.open("data", environ={}) as store:
        store.put("orders", b"first", queue=0)
        made = retry_copy(store.at(0), "billing", level=-1)
        assert made is not None
        store.lowlevel.put_copies([made])
        store.commit_offset("billing", "orders", 0, offset=1)
    Path("rows").write_text("1\n2\n")
    return tmp_path / "data"


@pytest.fixture
def begin(path: Path) -> Iterator[Begin]:
    """Starts a writer in another process; returns it once it has the store open."""
    begun: list[Writer] = []

    def begin(kind: str = "", script: str = WRITER) -> Writer:
        begun.append(start(script, path, kind))
        assert said(begun[-1]) == "open"
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()
        each.communicate()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def said(process: Writer) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(writer: Writer) -> None:
    writer.terminate()
    assert writer.wait(60) == 0


def stopped(writer: Writer) -> Writer:
    writer.send_signal(signal.SIGSTOP)
    # Until then its other threads may run.
    assert os.WIFSTOPPED(os.waitpid(writer.pid, os.WUNTRACED)[1])
    return writer


def bodies(path: Path, topic: str) -> list[bytes]:
    with penstock.open(path, read_only=True, environ={}) as store:
        return [message.body for message in store.scan(topic)] if topic in store.topics() else []


def requests(path: Path) -> list[str]:
    return [each.suffix for each in (path / "penstock" / "requests").glob("*")]


def asked(pool: ThreadPoolExecutor, path: Path, *line: str) -> "Future[int]":
    """Run a command in a thread, and return once its request waits for a writer that is stopped."""
    made = pool.submit(run, line)
    eventually(lambda: requests(path) == [".request"])
    return made


def test_each_command_is_carried_out_by_the_writer(path: Path, begin: Begin, capsys: Capture) -> None:  # fmt: skip
    with penstock.open(path, environ={}) as store:
        ids = [store.prepare("orders", b"%d" % n, group="shop").transaction_id for n in range(2)]
    writer = begin()

    def did(*line: str) -> str:
        capsys.readouterr()
        assert run(line) == 0, capsys.readouterr().err
        return "".join(capsys.readouterr())

    options = ("--queue", "2", "--tag", "t", "--key", "k", "--property", "a=b", "--json")
    assert json.loads(did("put", "data", "orders", "\udcff", *options))["queue"] == 2
    with penstock.open(path, read_only=True, environ={}) as store:
        (message,) = eventually(lambda: store.read("orders", 2).messages)
        assert (message.body, message.tag, message.keys) == (b"\xff", "t", ("k",))
        assert message.properties["a"] == "b"
        did("put", "data", "orders", "later", "--delay", "1h")
        (late,) = eventually(store.delayed)
    assert "is cancelled" in did("delayed", "cancel", "data", late.message_id)
    assert "3 queues" in did("topic", "create", "data", "made", "--queues", "3", "--attribute", "message.type=FIFO")  # fmt: skip
    assert "5 queues" in did("topic", "alter", "data", "made", "--queues", "5")
    assert "deleted topic made" in did("topic", "delete", "data", "made", "--apply")
    for count in (2, 0):
        assert f"stored {count} messages" in did("ingest", "data", "rows", "--topic", "rows")
    eventually(lambda: bodies(path, "rows"))
    did("export", "data", "--topic", "rows", "--to", "rows.ndjson")
    assert "stored 2 messages" in did("import", "data", "rows.ndjson", "--topic", "copies")
    assert eventually(lambda: bodies(path, "copies") == [b"1", b"2"])
    assert "every message before log offset" in did("flush", "data")
    assert "deleted 0 segments, 1 remain" in did("retain", "data")
    for found in ("1 dead letter", "0 dead letters"):
        assert f"{found} put back" in did("dlq", "replay", "data", "billing", "--to", "topic")
    assert "deleted group billing" in did("groups", "delete", "data", "billing", "--apply")
    assert "committed to orders/" in did("transactions", "commit", "data", ids[0])
    assert "rolled back" in did("transactions", "rollback", "data", ids[1])
    eventually(lambda: not requests(path), "the writer removes the name after its answer")
    end(writer)
    with penstock.open(path, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert eventually(
            lambda: sorted(bodies(path, "orders")) == [b"0", b"first", b"first", b"\xff"]
        )
        assert "billing" not in {each.group for each in store.groups()}
        assert not list(store.verify(deep=True))


class Ticking(ManualClock):
    """A minute passes whenever somebody looks, once that is asked for."""

    passes_ms = 0

    def monotonic_ms(self) -> int:
        self.now_ms += self.passes_ms
        return super().monotonic_ms()


def test_a_withdrawn_part_of_a_command_is_no_withdrawn_command(path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The message was stored, its flush was not begun, and the command said that nothing was done."""
    writer, clock = begin(), Ticking()
    monkeypatch.setattr(asking, "Clock", lambda: clock)
    with asking.StoreToChange(path, None, 60_000) as store:
        store.put("t", b"x")
        stopped(writer)
        clock.passes_ms = 60_000
        with pytest.raises(penstock.errors.OutcomeUnknownError, match="put was done; flush was not"):  # fmt: skip
            store.flush()
    # It may have been stopped before it removed the name of the put.
    writer.send_signal(signal.SIGCONT)
    eventually(lambda: not requests(path))


def test_a_store_that_is_moved_meanwhile_is_not_made_anew(path: Path, begin: Begin) -> None:
    begin()
    with asking.StoreToChange(path, None, 60_000) as store:
        store.put("t", b"x")
        path.rename("moved")
        with pytest.raises(
            penstock.StorageError, match="was moved or removed meanwhile; put was done"
        ):
            store.put("t", b"y")
    assert not path.exists()


def test_a_writer_makes_no_folder_anew_where_its_store_was(tmp_path: Path) -> None:
    """Its queues and index did, for messages that they had not dispatched yet."""
    root, workers, clock = tmp_path / "s", ManualWorkers(), ManualClock()
    with open_store(root, files=Files(), spawn=workers, clock=clock) as store:
        store.put("t", b"x", keys=["k"], queue=0)
        root.rename(tmp_path / "moved")
        workers.run("penstock-follow")
        assert not root.exists()
        (tmp_path / "moved").rename(root)
        clock.now_ms += 1000
        assert [message.body for message in store.find("k", "t")] == [b"x"]


def test_a_note_of_what_was_loaded_makes_no_folder_anew_where_the_store_was(tmp_path: Path) -> None:
    penstock.open(tmp_path / "s", environ={}).close()
    with asking.StoreToChange(tmp_path / "s", None, 60_000) as store:
        (tmp_path / "s").rename(tmp_path / "moved")
        with pytest.raises(FileNotFoundError, match="was moved or removed"):
            store.files.make_folder(tmp_path / "s" / "penstock" / "loads")
    assert not (tmp_path / "s").exists()


def test_a_writer_that_has_not_said_who_it_is_yet_is_not_asked(path: Path, begin: Begin, capsys: Capture) -> None:  # fmt: skip
    begin()
    (path / "penstock" / "holder").unlink()
    assert run(["put", "data", "t", "x"]) == 3
    assert "is open for writing elsewhere" in capsys.readouterr().err


def test_an_error_is_the_same_as_without_a_writer(path: Path, begin: Begin, capsys: Capture) -> None:  # fmt: skip
    lines = [
        "put data a/b x", "put data orders x --queue 70", "put data orders x --key \x01", "topic create data orders",
        "topic alter data none --queues 2", "topic delete data none --apply", "delayed cancel data xyz",
        "delayed cancel data 7F00000100002A9F0000000000000001", "ingest data rows --topic a/b",
    ]  # fmt: skip
    without = [(run(line.split(" ")), capsys.readouterr()) for line in lines]
    assert all(code > 0 for code, _ in without)
    begin()
    assert [(run(line.split(" ")), capsys.readouterr()) for line in lines] == without


def test_a_writer_without_the_extension_refuses_what_needs_it(path: Path, begin: Begin, capsys: Capture) -> None:  # fmt: skip
    begin("plain")
    assert run(["put", "data", "orders", "x"]) == 0
    assert run(["topic", "create", "data", "made"]) == 2
    assert "no extension in extensions.use provides it" in capsys.readouterr().err


def test_settings_other_users_and_brokers_are_refused_as_before(
    path: Path, begin: Begin, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begin()
    assert run(["put", "data", "t", "x", "--set", "flush.use=sync"]) == 3
    assert "that process is asked to do it, by its own settings" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert run(["put", "data", "t", "x"]) == 3
        assert "as the user of that process" in capsys.readouterr().err
    end(writer)
    begin(script=BROKER)
    assert run(["put", "data", "t", "x"]) == 3
    assert "which is not Penstock" in capsys.readouterr().err
    assert not (path / "penstock" / "requests").exists()


def test_a_writer_that_does_not_begin_in_time_never_does(path: Path, begin: Begin, capsys: Capture) -> None:  # fmt: skip
    writer = stopped(begin())
    assert run(["put", "data", "t", "withdrawn", "--timeout", "1ms"]) == 3
    assert f"process {writer.pid}" in capsys.readouterr().err
    eventually(lambda: not requests(path), "the writer removes the name after its answer")
    writer.send_signal(signal.SIGCONT)
    assert run(["put", "data", "t", "asked again"]) == 0
    assert eventually(lambda: bodies(path, "t") == [b"asked again"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_whose_writer_ends_first_does_the_work_itself(
    path: Path, begin: Begin, pool: ThreadPoolExecutor, how: signal.Signals
) -> None:
    writer = stopped(begin())
    put = asked(pool, path, "put", "data", "t", "once")
    writer.send_signal(how)
    writer.send_signal(signal.SIGCONT)
    assert put.result(120) == 0
    assert eventually(lambda: bodies(path, "t") == [b"once"])
    eventually(lambda: not requests(path), "the writer removes the name after its answer")


@pytest.mark.parametrize("has_next", [False, True])
def test_what_a_killed_writer_had_begun_is_reported_as_unknown_and_not_done_again(
    path: Path, begin: Begin, has_next: bool
) -> None:
    """A client that was stopped meanwhile finds another writer there, which has answered in place of the killed one."""
    writer = begin("stops")
    client = start(CLIENT, path, "topic", "create", str(path), "made")
    assert said(writer) == "begun"
    assert requests(path) == [".taken"]
    if has_next:
        stopped(client)
    writer.kill()
    writer.wait()
    if has_next:
        begin()
        eventually(lambda: not requests(path))
        client.send_signal(signal.SIGCONT)
    out, err = client.communicate()
    assert out == "6\n"
    assert "it is not known whether create_topic was done" in err
    assert run(["topic", "create", "data", "made"]) == 0, "no other writer has done it"
    eventually(lambda: not requests(path), "the writer removes the name after its answer")


def test_a_request_of_a_killed_client_is_not_carried_out(path: Path, begin: Begin) -> None:
    writer = stopped(begin())
    client = subprocess.Popen([sys.executable, "-m", "penstock", "put", path, "t", "dead"], env=environment())  # fmt: skip
    eventually(lambda: requests(path) == [".request"])
    client.kill()
    client.wait()
    writer.send_signal(signal.SIGCONT)
    assert run(["put", "data", "t", "alive"]) == 0
    eventually(lambda: not requests(path), "the writer removes the name after its answer")
    assert eventually(lambda: bodies(path, "t") == [b"alive"])


def test_a_request_that_has_vanished_is_not_waited_for(path: Path, begin: Begin, pool: ThreadPoolExecutor) -> None:  # fmt: skip
    """As if the writer could not append its answer, for want of space."""
    stopped(begin())
    put = asked(pool, path, "put", "data", "t", "x", "--timeout", "52w")
    next((path / "penstock" / "requests").iterdir()).unlink()
    assert put.result(120) == 6


def test_an_ingest_that_was_killed_stores_no_row_twice(path: Path, begin: Begin) -> None:
    begin()
    lines = [b"%d" % number for number in range(9000)]
    Path("rows").write_bytes(b"\n".join(lines))
    line = ["ingest", "data", "rows", "--topic", "t", "--queue-by", "line", "--queues", "1"]
    client = subprocess.Popen([sys.executable, "-m", "penstock", *line], env=environment(), stderr=subprocess.DEVNULL)  # fmt: skip
    eventually((path / "consumequeue" / "t").exists)
    client.kill()
    client.wait()
    assert run(line) == 0
    assert eventually(lambda: bodies(path, "t") == lines)


def test_rows_that_are_too_large_for_one_request_are_sent_one_by_one(
    path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    begin()
    Path("rows").write_bytes(b"\n".join([b"1" * 400, b"2" * 400, b"3" * 1000]))
    monkeypatch.setattr(asking, "BYTES_MAX", 900)
    assert (
        run(["ingest", "data", "rows", "--topic", "t", "--queue-by", "line", "--queues", "1"]) == 2
    )
    assert "line 3" in capsys.readouterr().err
    assert eventually(lambda: bodies(path, "t") == [b"1" * 400, b"2" * 400])


def test_of_two_that_ingest_the_same_source_one_is_refused(
    path: Path, begin: Begin, pool: ThreadPoolExecutor, capsys: Capture
) -> None:
    writer = stopped(begin())
    first = asked(pool, path, "ingest", "data", "rows", "--topic", "t")
    assert run(["ingest", "data", "rows", "--topic", "t"]) == 4
    assert "is under way in another process" in capsys.readouterr().err
    writer.send_signal(signal.SIGCONT)
    assert first.result(120) == 0
    assert eventually(lambda: bodies(path, "t") == [b"1", b"2"])


def test_commands_at_the_same_time_ask_each_other(path: Path) -> None:
    """Each is the writer for a moment, so the others ask it, and take its place when it is gone."""
    numbers = [str(number) for number in range(4)]
    putting = [start(CLIENT, path, "put", str(path), "t", number) for number in numbers]
    assert [each.communicate()[0].splitlines()[-1] for each in putting] == ["0"] * 4
    assert eventually(lambda: sorted(bodies(path, "t")) == [number.encode() for number in numbers])


@pytest.mark.parametrize("content", [
    b"", b"\n", b"{", b"\xff\n", b"null\n", b"[" * 100_000, b'["put"]\n', b'["put", [], {"mapping": []}]\n', b'[["put"], [], {"mapping": []}]\n',
    b'["close", [], {"mapping": []}]\n', b'["__class__", [], {"mapping": []}]\n', b'["put", ["t", {"pickle": "gA=="}], {"mapping": []}]\n',
    b'["put", ["t", {"bytes": "e A"}], {"mapping": []}]\n', b'["put", ["t", {"bytes": "eA==", "more": 1}], {"mapping": []}]\n',
    b'["put", ["t", {"bytes": "eA=="}], {"mapping": [["more", 1]]}]\n', b'["put", [NaN, 1e999], {"mapping": []}]\n', PUT + PUT, PUT[:-2],
    b'["put_many", [[{"message": ["t"]}]], {"mapping": []}]\n', b'["flush", [' + b"9" * 5000 + b'], {"mapping": []}]\n', PUT[:-1] + b" " * (64 << 20) + b"\n",
])  # fmt: skip
def test_a_hostile_request_is_answered_with_an_error_and_does_nothing(tmp_path: Path, content: bytes) -> None:  # fmt: skip
    workers, folder = ManualWorkers(), tmp_path / "s" / "penstock" / "requests"
    with open_store(tmp_path / "s", spawn=workers) as store:
        folder.mkdir()
        lock = Files().lock_one(folder / "x.request")
        assert lock is not None
        with (folder / "x.request").open("r+b") as file:
            file.write(content)
            file.flush()
            workers.run("penstock-requests")
            assert json.loads(file.read())[0] == "failed"
        assert requests(store.path) == []
        assert store.topics() == {}


def test_files_that_nobody_waits_for_are_removed_and_not_carried_out(tmp_path: Path) -> None:
    workers, folder = ManualWorkers(), tmp_path / "s" / "penstock" / "requests"
    with open_store(tmp_path / "s", spawn=workers) as store:
        folder.mkdir()
        for name in ("a.new", "b.request", "c.taken", "d", "../outside"):
            (folder / name).write_bytes(PUT)
        (folder / "e.request").symlink_to(folder / "../outside")
        (folder / "i.request").hardlink_to(tmp_path / "s" / "lock")
        os.mkfifo(folder / "f.request")
        (folder / "g.request").mkdir()
        lock = Files().lock_one(folder / "h.taken")
        assert lock is not None
        with (folder / "h.taken").open("rb") as file:
            workers.run("penstock-requests")
            assert file.read() == b'["unknown"]\n', "another writer has begun it"
        assert [each.name for each in folder.iterdir()] == ["g.request"]
        assert (folder / "../outside").exists()
        assert store.topics() == {}


def test_a_link_in_place_of_the_folder_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "penstock" / "requests").symlink_to(tmp_path)
    with pytest.raises(penstock.StorageError, match="must be a folder"):
        penstock.open(path, environ={})
