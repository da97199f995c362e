"""kill -9 of a master, of its follower, and promotions after it: nothing that was promised to be in both stores is lost."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import kills
from tests.crash.replica_processes import body
from tests.faults.children import environment
from tests.scripted_masters import serving

import penstock
from penstock.durability.replica_file import ReplicaFile
from penstock.files import Files
from penstock_replicate.following.follow import follow
from penstock_replicate.roles.promotion import promote_closed

PROCESSES = Path(__file__).parent / "replica_processes.py"
ROOT = Path(__file__).parents[2]
# `PENSTOCK_KILLS=200` for as many as the docs speak of.
PROMOTIONS = kills(48)


class Child:
    """A process of this test, whose lines are kept; killed at the end."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESSES), *arguments],
            stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
        )  # fmt: skip
        self.lines: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A kill within a print may leave half a line.
            if line.endswith(b"\n"):
                self.lines.append(line.strip())

    def wait_for(self, count: int, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while len(self.lines) < count:
            assert self.process.poll() is None, "it has ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def promised(self) -> int:
        """The last number that was promised; -1 if none was."""
        return max((int(line) for line in self.lines if line.isdigit()), default=-1)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def check(path: Path, promised: int) -> int:
    """All that was promised is there, in order; what else is there is the next few. Return how many there are."""
    with penstock.open(path, flush="sync") as store:
        bodies = [m.body for m in store.scan("t")]
        assert len(bodies) >= promised + 1
        assert bodies == [body(number) for number in range(len(bodies))]
        assert not [f for f in store.verify() if not f.is_note]
        for number in (0, promised):
            if number >= 0 and number % 7 not in (3, 4, 5):
                found = store.find("t", f"k{number}")
                assert [m.body for m in found] in ([body(number)], [])
    return len(bodies)


@pytest.mark.slow
def test_promotions_after_a_kill_of_the_master_lose_nothing_that_was_promised(tmp_path: Path) -> None:  # fmt: skip
    """The killed master follows the promoted one after it, with what only it has cut off; then the roles change again."""
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() & 0xFFFFFF))
    print(f"PENSTOCK_SEED={seed}")
    chance = random.Random(seed)
    paths = [tmp_path / "a", tmp_path / "b"]
    count = 0
    for round_ in range(PROMOTIONS):
        master, copy = paths if round_ % 2 == 0 else paths[::-1]
        address = free_address()
        writer = Child("master", str(master), address, str(count))
        writer.wait_for(1)
        with follow(copy, address, cut=True) as follower:
            assert follower.wait_caught_up(30), follower.status()
        follower_child = Child("follower", str(copy), address)
        follower_child.wait_for(1)
        # The number of lines at which both have taken up their work.
        writer.wait_for(len(writer.lines) + chance.randrange(1, 40))
        first, second = [writer, follower_child] if chance.random() < 0.7 else [follower_child, writer]  # fmt: skip
        first.kill()
        time.sleep(chance.random() * 0.05)
        second.kill()
        done = promote_closed(copy)
        assert done.epoch >= round_ + 1
        count = check(copy, writer.promised)
        # What the killed master has is the same up to where they part.
        with (
            penstock.open(copy, read_only=True) as store,
            penstock.open(master, read_only=True) as old,
        ):
            ours = [m.body for m in store.scan("t")]
            theirs = [m.body for m in old.scan("t")]
        shared = min(len(ours), len(theirs))
        assert ours[:shared] == theirs[:shared]
    replica = ReplicaFile(Files(), paths[PROMOTIONS % 2]).read()
    assert replica is not None
    assert len(replica.epochs) >= PROMOTIONS


@pytest.mark.slow
def test_a_follower_that_is_killed_again_and_again_becomes_the_same(tmp_path: Path) -> None:
    chance = random.Random(5)
    address = free_address()
    writer = Child("master", str(tmp_path / "a"), address, "0")
    writer.wait_for(1)
    for _ in range(PROMOTIONS):
        follower = Child("follower", str(tmp_path / "b"), address)
        time.sleep(0.5 + chance.random())
        follower.kill()
    writer.kill()
    # The master recovers, and goes on.
    with serving(tmp_path / "a", listen=address) as (store, _):
        end = store.put("t", b"last")
        with follow(tmp_path / "b", address) as last:
            assert last.wait_caught_up(30, log_offset=end.log_offset + end.size), last.status()
    one, other = (b"".join(f.read_bytes() for f in sorted((tmp_path / n / "commitlog").iterdir())) for n in "ab")  # fmt: skip
    stop = end.log_offset + end.size
    assert one[:stop] == other[:stop]
