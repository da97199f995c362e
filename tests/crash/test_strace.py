"""A real EIO from the kernel's side of a sync, injected into a real writer."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import messages_in
from tests.crash.story import SMALL
from tests.lanes import need_program

import penstock

SCRIPT = """
import itertools, sys, penstock
from penstock.errors import StoreFailedError
store = penstock.open(sys.argv[1], flush=sys.argv[2], environ={}, **{"flush.async.interval_ms": 5, "flush.async.least_pages": 0})
try:
    for number in itertools.count():
        receipt = store.put("t", b"%d" % number, queue=0)
        print("durable" if receipt.is_durable else "accepted", flush=True)
except StoreFailedError as error:
    print("failed", error.durable_offset, flush=True)
try:
    store.put("t", b"after", queue=0)
    print("put went on", flush=True)
except StoreFailedError:
    print("refused", flush=True)
try:
    store.close()
    print("closed as if nothing had been", flush=True)
except StoreFailedError:
    print("close says so", flush=True)
"""


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("nth", [12, 25])
def test_a_real_writer_stops_at_a_failed_sync(flush: str, nth: int, tmp_path: Path) -> None:
    need_program("strace", "STRACE")
    path = tmp_path / "store"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync",
         "-e", f"inject=fdatasync:error=EIO:when={nth}", sys.executable, "-c", SCRIPT, str(path), flush],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[-2:] == ["refused", "close says so"]
    assert lines[-3].startswith("failed")
    acknowledged = lines.count("durable" if flush == "sync" else "accepted")
    with penstock.open(path, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "abnormal"
        bodies = [m.body for m in messages_in(store, "t")]
        assert len(bodies) >= acknowledged
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert not list(store.verify())


# call, what is injected at which call of a thread; about 180 such faults were run once, see docs/durability.md.
FAULTS = [
    ("pwrite64", "signal=SIGKILL", 9), ("pwrite64", "signal=SIGKILL", 31), ("fdatasync", "signal=SIGKILL", 7),
    ("fsync", "signal=SIGKILL", 5), ("rename", "signal=SIGKILL", 6), ("unlink", "signal=SIGKILL", 2),
    ("pwrite64", "error=EIO", 20), ("fdatasync", "error=EIO", 5), ("fallocate", "error=ENOSPC", 2),
    ("rename", "error=EIO", 7),
]  # fmt: skip


@pytest.mark.parametrize(("call", "fault", "nth"), FAULTS)
def test_a_fault_at_any_system_call_loses_nothing_acknowledged(
    call: str, fault: str, nth: int, tmp_path: Path
) -> None:
    need_program("strace", "STRACE")
    path = tmp_path / "store"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={nth}",
         sys.executable, "-m", "tests.crash.story", str(path), "sync"],
        cwd=root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    acknowledged = [int(line) for line in done.stdout.split("\n") if line.isdigit()]
    for _ in range(2):
        with penstock.open(path, environ={}, **SMALL) as store:
            numbers = [int(m.body.split(b":")[0]) for m in messages_in(store, "t")]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) > max(acknowledged, default=-1)
            assert not list(store.verify())
            for number in acknowledged[-1:]:
                assert store.find(f"k{number}", "t")
