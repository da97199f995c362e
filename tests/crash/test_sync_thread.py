"""The kernel's thread for syncs, in a real process on a real disk: rolls, failures, slow syncs, power cuts."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import hatch_build
import pytest
from tests.crash.story import SMALL
from tests.faults.children import ROOT, environment

import penstock
from penstock.durability.progress import Progress
from penstock.files import Files

# Threads put, and say what was acknowledged, in one write each.
SCRIPT = """
import os, sys, threading
import penstock
from penstock.errors import StoreClosedError, StoreFailedError
from tests.crash.story import SMALL

path, write, threads, count, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def opened(**settings):
    patient = {"flush.sync.timeout_ms": 120_000}
    return penstock.open(path, flush="sync", write=write, environ={}, **{**SMALL, **patient, **settings})

def put(store, who):
    for number in range(count):
        try:
            receipt = store.put(f"t{who}", b"%d:" % number + b"x" * size, queue=0)
        except StoreFailedError as error:
            say("failed", who, error.durable_offset)
            return
        except StoreClosedError:
            return
        if receipt.is_durable:
            say("durable", who, number, receipt.log_offset + receipt.size)
        else:
            say(receipt.status.name, who, number)

def start(store):
    jobs = [threading.Thread(target=put, args=(store, who)) for who in range(threads)]
    for job in jobs:
        job.start()
    return jobs
"""
WHOLE = """
store = opened()
for job in start(store):
    job.join()
store.close()
say("closed")
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim of `syncs.c`, built with the compiler that builds the kernel."""
    path = tmp_path_factory.mktemp("shim") / "syncs.so"
    compiler = hatch_build.machine_compiler()
    if not compiler:
        pytest.skip("no C compiler")
    source = Path(__file__).with_name("syncs.c")
    subprocess.run(
        [*compiler, "-O1", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True, timeout=120
    )
    return path


class Child:
    """A process that runs a script under the shim."""

    def __init__(
        self, shim: Path, script: str, path: Path, *arguments: object, **faults: object
    ) -> None:
        given = {f"SYNCS_{name}": str(value) for name, value in faults.items()}
        words = [str(word) for word in (path, *arguments)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT + script, *words], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**environment(), "LD_PRELOAD": str(shim), **given},
        )  # fmt: skip

    def lines(self, code: int) -> list[list[str]]:
        """Return the words of each line once it has ended as it should."""
        out, err = self.process.communicate(timeout=240)
        assert self.process.returncode == code, f"{self.process.returncode}\n{out[-2000:]}\n{err}"
        return [line.split() for line in out.splitlines()]


def acknowledged(lines: list[list[str]]) -> dict[str, list[int]]:
    """Return topic to the numbers that were said to be on disk."""
    found: dict[str, list[int]] = {}
    for word, who, number, *_ in (line for line in lines if line[0] == "durable"):
        assert word == "durable"
        found.setdefault(f"t{who}", []).append(int(number))
    return found


def check(path: Path, wanted: dict[str, list[int]], state: str) -> None:
    """Open twice: all that was acknowledged is there, each queue without a gap, and nothing is wrong."""
    for expected in (state, "clean"):
        with penstock.open(path, environ={}, **SMALL) as store:
            assert store.recovery is not None
            assert store.recovery.state == expected
            assert not list(store.verify())
            for topic, numbers in wanted.items():
                found = [int(m.body.split(b":")[0]) for m in store.scan(topic)]
                assert found[: len(numbers)] == numbers == list(range(len(numbers)))


def cut_power(path: Path, kept: Path, *, has_mark: bool) -> None:
    """Make each file what the disk has of it; a mark that was not synced is there, or not."""
    # A lock file that changes is another program's doing, and its bytes say nothing.
    left = {"lock", "progress"} if has_mark else {"lock"}
    for file in list(path.rglob("*")):
        if file.is_file() and file.name not in left:
            disk = kept / str(file.stat().st_ino)
            file.write_bytes(disk.read_bytes() if disk.exists() else b"")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", ["mmap", "file"])
@pytest.mark.parametrize("threads", [1, 12])
def test_rolls_between_append_and_sync_lose_nothing(
    threads: int, write: str, shim: Path, tmp_path: Path
) -> None:
    """Syncs last 3 ms, so segments fill up and are sealed while one runs."""
    child = Child(
        shim, WHOLE, tmp_path / "s", write, threads, 240 // threads, 9000,
        SLOW_AT=1, SLOW_ON=1, SLOW_MS=3,
    )  # fmt: skip
    lines = child.lines(0)
    assert lines[-1] == ["closed"]
    wanted = acknowledged(lines)
    assert sum(map(len, wanted.values())) == 240
    assert len(list((tmp_path / "s" / "commitlog").iterdir())) > 30
    check(tmp_path / "s", wanted, "clean")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("write", ["mmap", "file"])
@pytest.mark.parametrize(
    ("at", "when"), [(2, ""), (7, ""), (7, "BEFORE"), (23, ""), (40, "BEFORE")]
)
@pytest.mark.parametrize("has_mark", [True, False])
def test_a_power_cut_at_a_sync_loses_nothing_acknowledged(
    at: int, when: str, has_mark: bool, write: str, shim: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    faults: dict[str, Any] = {"CUT_AT": at, "KEEP": kept}
    if when:
        faults["CUT_BEFORE"] = 1
    child = Child(shim, WHOLE, tmp_path / "s", write, 6, 200, 3000, **faults)
    wanted = acknowledged(child.lines(-signal.SIGKILL))
    cut_power(tmp_path / "s", kept, has_mark=has_mark)
    check(tmp_path / "s", wanted, "abnormal")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", ["mmap", "file"])
@pytest.mark.parametrize("at", [1, 5, 19])
def test_a_failed_sync_is_everybodys_and_for_good(
    at: int, write: str, shim: Path, tmp_path: Path
) -> None:
    script = """
store = opened()
for job in start(store):
    job.join()
for job in (lambda: store.put("t0", b"after", queue=0), store.flush, store.close):
    try:
        job()
        say("went on")
    except StoreFailedError:
        say("refused")
"""
    lines = Child(shim, script, tmp_path / "s", write, 64, 50, 200, FAIL_AT=at).lines(0)
    assert lines[-3:] == [["refused"]] * 3
    failed = [line for line in lines if line[0] == "failed"]
    assert sorted(int(line[1]) for line in failed) == list(range(64)), "each thread got the error"
    (durable,) = {int(line[2]) for line in failed}
    assert all(int(line[3]) <= durable for line in lines if line[0] == "durable")
    check(tmp_path / "s", acknowledged(lines), "abnormal")


@pytest.mark.parametrize("write", ["mmap", "file"])
def test_a_mark_that_cannot_be_written_is_a_failure(write: str, shim: Path, tmp_path: Path) -> None:
    script = """
store = opened()
put(store, 0)
say(store.stats()["failure"])
"""
    lines = Child(shim, script, tmp_path / "s", write, 1, 1000, 100, MARK_AT=12).lines(0)
    assert lines[-2][:2] == ["failed", "0"]
    assert "the progress file could not be written" in " ".join(lines[-1])
    check(tmp_path / "s", acknowledged(lines), "abnormal")


def test_a_slow_sync_is_answered_in_time_and_holds_nobody(shim: Path, tmp_path: Path) -> None:
    """A disk that does not answer: receipts say so within the time-out, Ctrl-C ends a wait, and so does the process."""
    script = """
import signal
store = opened(**{"flush.sync.timeout_ms": 400})
jobs = start(store)
for job in jobs:
    job.join()
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    store.flush()
except KeyboardInterrupt:
    say("interrupted")
"""
    # If anything waited for the sync, the child would not end within its limit.
    slow = {"SLOW_AT": 1, "SLOW_MS": 1_000_000}
    lines = Child(shim, script, tmp_path / "s", "file", 4, 2, 100, **slow).lines(0)
    late = [line for line in lines if line[0] == "FLUSH_DISK_TIMEOUT"]
    assert len(late) == 8
    assert lines[-1] == ["interrupted"]
    check(tmp_path / "s", {}, "abnormal")


def test_close_does_not_wait_for_ever_for_a_sync(shim: Path, tmp_path: Path) -> None:
    script = """
from penstock.errors import StorageError, StoreLockedError
store = opened(**{"flush.sync.timeout_ms": 100, "plugins.close_limit_ms": 200})
put(store, 0)
try:
    store.close()
except StorageError as error:
    say("penstock-sync" in str(error))
try:
    opened()
except StoreLockedError:
    say("locked")
"""
    lines = Child(
        shim, script, tmp_path / "s", "file", 1, 1, 100, SLOW_AT=1, SLOW_MS=1_000_000
    ).lines(0)
    assert lines == [["FLUSH_DISK_TIMEOUT", "0", "0"], ["True"], ["locked"]]
    check(tmp_path / "s", {}, "abnormal")


@pytest.mark.parametrize("write", ["mmap", "file"])
def test_close_and_retention_during_a_sync(write: str, shim: Path, tmp_path: Path) -> None:
    """Segments go, and are used again, while others are synced; then the store is closed under its writers."""
    script = """
store = opened(alloc="recycle", retention=[])
jobs = start(store)
while store.stats()["log_end_offset"] < 20 * 65536:
    store.discard_before(log_offset=store.stats()["log_end_offset"])
store.close()
say("closed", store.path)
for job in jobs:
    job.join()
"""
    lines = Child(
        shim, script, tmp_path / "s", write, 8, 100_000, 3000, SLOW_AT=1, SLOW_ON=1, SLOW_MS=2
    ).lines(0)
    assert any(line[0] == "closed" for line in lines)
    assert not any(line[0] in {"failed", "FLUSH_DISK_TIMEOUT"} for line in lines)
    last = {topic: numbers[-1] for topic, numbers in acknowledged(lines).items()}
    with penstock.open(tmp_path / "s", environ={}, **SMALL) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert not list(store.verify())
        for topic, number in last.items():
            assert store.lowlevel.max_offset(topic, 0) > number
        assert store.stats()["log_min_offset"] > 0


def test_what_was_acknowledged_is_below_the_mark(tmp_path: Path) -> None:
    """The mark is written before anybody is told: killed at any moment, the log up to it must be there."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + WHOLE, str(tmp_path / "s"), "file", "4", "100000", "50"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(400)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    lines += process.stdout.readlines()
    process.stdout.close()
    ends = [int(line.split()[3]) for line in lines if line.startswith("durable")]
    state = Progress(Files(), tmp_path / "s").read()
    assert state.flushed_offset >= max(ends)
