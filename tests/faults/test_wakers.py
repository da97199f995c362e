"""Followers in other processes are woken: under load, when either side is killed, beside a hostile file, after a fork.

A follower sleeps a quarter of a second at most before it looks by itself, which would hide a wake-up that was lost. So in
these stories that limit is ten minutes, and a lost one hangs until the test's own limit.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import ROOT, TIMES, environment, run, start
from tests.lanes import explored, need_program

import penstock
from penstock.files import Files
from penstock.runtime.waking import WakeMap
from penstock.testing import open_store

PATIENT = """
import os, sys, time
from pathlib import Path
import penstock
from penstock.runtime import waking
from penstock.files import Files
from penstock.testing import open_store
from penstock.runtime.waking import WakeMap
waking._LONG_S = 600.0
path = Path(sys.argv[1])
"""
FOLLOWER = (
    PATIENT
    + """
with penstock.open(path, read_only=True, environ={}) as store:
    for message in store.scan("t", follow=True):
        print(message.body.decode(), flush=True)
"""
)
# Two processes in turns, each woken by the other: every wake-up counts, and none comes twice.
TURNS = (
    PATIENT
    + """
mine, other, rounds = int(sys.argv[2]), 1 - int(sys.argv[2]), int(sys.argv[3])
bells = [WakeMap.find(Files(), path / f"wake-{each}") for each in (0, 1)]
counts = os.open(path / "counts", os.O_RDWR)
def count(whose):
    return int.from_bytes(os.pread(counts, 8, 8 * whose), "little")
for number in range(1, rounds + 1):
    if mine == 1 or number > 1:
        wanted = number if mine == 1 else number - 1
        while True:
            seen = bells[other].ask()
            if count(other) >= wanted:
                break
            for _ in range(number * 7 % 50):
                pass
            bells[other].sleep(seen, 600)
    os.pwrite(counts, number.to_bytes(8, "little"), 8 * mine)
    bells[mine].wake()
print("done", flush=True)
"""
)
# One counts on, at a changing pace; the other must see the last count, and so many wakes are coalesced as may be.
STREAM = (
    PATIENT
    + """
bell = WakeMap.find(Files(), path / "wake-0")
counts, rounds = os.open(path / "counts", os.O_RDWR), int(sys.argv[3])
if sys.argv[2] == "1":
    while True:
        seen = bell.ask()
        if int.from_bytes(os.pread(counts, 8, 0), "little") == rounds:
            break
        bell.sleep(seen, 600)
else:
    for number in range(1, rounds + 1):
        os.pwrite(counts, number.to_bytes(8, "little"), 0)
        bell.wake()
        for _ in range(number % 97 * (number % 11 == 0)):
            pass
print("done", flush=True)
"""
)


def lines_of(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """Return the next lines that a child says; the empty ones of a child that is killed since it hangs."""
    assert process.stdout is not None
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        return [process.stdout.readline().rstrip("\n") for _ in range(count)]
    finally:
        limit.cancel()


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=120)


@contextlib.contextmanager
def following(path: Path, script: str = FOLLOWER) -> Iterator["subprocess.Popen[str]"]:
    """A follower that has seen the first message, "0"; it is killed at the end."""
    follower = start(script, path)
    try:
        assert lines_of(follower, 1) == ["0"]
        yield follower
    finally:
        end(follower)


@pytest.mark.parametrize(("story", "rounds"), [(TURNS, 3000), (STREAM, 100_000)], ids=["turns", "stream"])  # fmt: skip
def test_no_wake_up_is_lost_between_two_processes(story: str, rounds: int, tmp_path: Path) -> None:
    (tmp_path / "counts").write_bytes(bytes(16))
    for each in (0, 1):
        WakeMap.make(Files(), tmp_path / f"wake-{each}").close()
    both = [start(story, tmp_path, str(each), str(explored(rounds * TIMES))) for each in (1, 0)]
    for process in both:
        out, err = process.communicate(timeout=240)
        assert (process.returncode, out) == (0, "done\n"), err


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_follower_is_woken_for_every_message_however_they_come(
    flush: str, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with open_store(path, flush=flush) as store:
        store.put("t", b"0", queue=0)
        with following(path) as follower:
            for number in range(1, 100 * TIMES):
                store.put("t", b"%d" % number, queue=0)
                # Alone: no other message could wake it.
                assert lines_of(follower, 1) == [str(number)]
            for number in range(500):
                store.put("t", b"%d" % number, queue=0, wait=False)
            assert lines_of(follower, 500) == [str(number) for number in range(500)]
            store.put_many(
                [penstock.Message("t", b"%d" % number, queue=0) for number in range(500)]
            )
            assert lines_of(follower, 500) == [str(number) for number in range(500)]


def test_a_follower_in_the_writing_process_is_woken(tmp_path: Path) -> None:
    done = run(PATIENT + """
import threading
with open_store(path) as store:
    def puts():
        for number in range(100):
            store.put("t", b"%d" % number, queue=0)
    coming = store.scan("t", follow=True)
    thread = threading.Thread(target=puts)
    thread.start()
    print([int(next(coming).body) for _ in range(100)] == list(range(100)))
    thread.join()
""", tmp_path / "s")  # fmt: skip
    assert done == ["True"]


WRITER = (
    PATIENT
    + """
first = int(sys.argv[2])
with open_store(path) as store:
    for number in range(first, 1 << 60):
        store.put("t", b"%d" % number, queue=0)
        if number % 50 == 0:
            time.sleep(0)
            print(number, flush=True)
"""
)


def test_a_follower_outlives_writers_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
    with following(path) as follower:
        for _ in range(4 * TIMES):
            with penstock.open(path, read_only=True, environ={}) as store:
                first = store.max_offset("t", 0)
            writer = start(WRITER, path, str(first))
            lines_of(writer, 4)
            end(writer)
        with open_store(path) as store:
            store.put("t", b"last", queue=0)
            bodies = [message.body.decode() for message in store.scan("t")][1:]
            assert len(bodies) > 4 * TIMES
            assert lines_of(follower, len(bodies)) == bodies


def test_followers_that_are_killed_leave_one_call_to_the_writer_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
        with following(path), following(path), following(path):
            pass
        wakes = WakeMap.find(Files(), path / "penstock" / "wake")
        assert wakes is not None
        wakes.wake()
        assert [wakes.wake() for _ in range(3)] == [False] * 3
        with following(path) as follower:
            store.put("t", b"1", queue=0)
            assert lines_of(follower, 1) == ["1"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [0, 10, 4095, 1 << 20])
def test_a_follower_goes_on_beside_a_file_of_another_size(size: int, tmp_path: Path) -> None:
    """Cut short it would kill who stores into it; so the writer, which does, is another one then."""
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
    # Not so patient: it sleeps on a file that is no longer the store's, and must look by itself.
    with following(path, FOLLOWER.replace("600.0", "0.25")) as follower:
        os.truncate(path / "penstock" / "wake", size)
        with open_store(path) as store:
            assert (path / "penstock" / "wake").stat().st_size == 4096
            for number in range(1, 4):
                store.put("t", b"%d" % number, queue=0)
                assert lines_of(follower, 1) == [str(number)]
            with following(path) as late:
                assert lines_of(late, 3) == ["1", "2", "3"]
                store.put("t", b"4", queue=0)
                assert lines_of(late, 1) == ["4"]


def test_the_file_is_passed_over_by_checks_copies_and_clean_openings(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
    with following(path):
        pass
    (path / "penstock" / "wake").write_bytes(b"PSTKWAKE".ljust(4096, b"\xff"))
    shutil.copytree(path, tmp_path / "copy")
    for each in (path, tmp_path / "copy"):
        with penstock.open(each, read_only=True, environ={}) as reader:
            assert not list(reader.verify(deep=True))
        with penstock.open(each, environ={}) as store:
            assert store.recovery is not None
            assert store.recovery.state == "clean"
            assert not list(store.verify(deep=True))


def test_a_forked_child_follows_by_itself_and_takes_no_wake_up_from_its_parent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
        forked = start(PATIENT + """
reader = penstock.open(path, read_only=True, environ={})
coming = reader.scan("t", follow=True)
first = next(coming)
child = os.fork()
for _ in range(20):
    message = next(coming)
    if child:
        print(message.body.decode(), flush=True)
    else:
        os.write(2, message.body + b"\\n")
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""", path)  # fmt: skip
        for number in range(1, 21):
            store.put("t", b"%d" % number, queue=0)
        out, err = forked.communicate(timeout=240)
        expected = "".join(f"{number}\n" for number in range(1, 21))
        assert (forked.returncode, out, err) == (0, expected, expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_sleeping_follower_ends_at_a_signal_and_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
        with following(path) as follower:
            store.put("t", b"1", queue=0)
            assert lines_of(follower, 1) == ["1"]
            follower.send_signal(number)
            assert follower.wait(120) != 0
        store.put("t", b"2", queue=0)
    with penstock.open(path, environ={}) as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"
        assert [message.body for message in again.scan("t")] == [b"0", b"1", b"2"]


def test_nobody_waits_and_nobody_calls_the_system(tmp_path: Path) -> None:
    need_program("strace", "STRACE")
    script = (
        PATIENT
        + """
bell = WakeMap.make(Files(), path / "wake")
for _ in range(1000):
    assert not bell.wake()
bell.ask()
for _ in range(1000):
    bell.wake()
"""
    )
    done = subprocess.run(
        ["strace", "-qq", "-o", str(tmp_path / "calls"), "-e", "trace=futex", sys.executable, "-c", script,
         str(tmp_path)], check=False, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert not any("FUTEX_WAKE," in call for call in calls)
    # One that asks, and one that wakes; the word itself is read from the file.
    assert sum("FUTEX_WAKE_OP" in call for call in calls) == 2
