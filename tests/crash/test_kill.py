"""kill -9 of a real writer, again and again at random moments, on one store."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.crash.writer import SMALL, body
from tests.faults.children import environment

import penstock
from penstock.store.store import Store

WRITER = Path(__file__).parent / "writer.py"
ROOT = Path(__file__).parents[2]
# Half for each flush policy; `PENSTOCK_KILLS=100` for as many as the docs speak of.
KILLS = int(os.environ.get("PENSTOCK_KILLS", "12"))


def run_and_kill(path: Path, flush: str, start: int, seconds: float) -> int:
    """Run a writer for a while, kill it; returns the last number it said was acknowledged."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), flush, str(start)],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    # It has begun once it says something; the moment of the kill is random from there.
    first = process.stdout.readline()
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    rest = process.stdout.read()
    process.wait()
    timer.join()
    process.stdout.close()
    # A kill within a print may leave half a number.
    lines = (first + rest).split(b"\n")[:-1]
    return int(lines[-1]) if lines else start - 1


def check(store: Store, acknowledged: int) -> int:
    """All that was acknowledged is there once and in order; what else is there is the next few."""
    bodies = [m.body for m in store.scan("t")]
    count = len(bodies)
    assert count >= acknowledged + 1
    assert bodies == [body(number) for number in range(count)]
    assert not list(store.verify())
    for number in (0, acknowledged // 2, acknowledged):
        assert [m.body for m in store.find("t", f"k{number}")] == [body(number)]
    return count


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_writer_loses_nothing_it_acknowledged(flush: str, tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "store"
    count = 0
    for _ in range(KILLS // 2):
        acknowledged = run_and_kill(path, flush, count, chance.uniform(0.0, 0.25))
        with penstock.open(path, read_only=True) as reader:
            assert reader.max_offset("t") >= 0
        with penstock.open(path, environ={}, **SMALL) as store:
            assert store.recovery is not None
            count = check(store, acknowledged)
    assert count > 0


def test_followers_in_other_processes_see_every_message_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), "async", "0"],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    drain = threading.Thread(target=process.stdout.read)
    drain.start()
    try:
        with penstock.open(path, read_only=True) as reader:
            for number, message in enumerate(reader.scan("t", follow=True)):
                assert message.body == body(number)
                if number == 1500:
                    break
            assert [m.body for m in reader.find("t", "k77")] == [body(77)]
    finally:
        process.kill()
        process.wait()
        drain.join()
        process.stdout.close()


@pytest.mark.parametrize("count", [20, 100, 300])
def test_a_writer_that_dies_within_a_batch_leaves_a_beginning_of_it(
    count: int, tmp_path: Path
) -> None:
    """A copy into the map writes its first bytes last: killed where it enters a page, it left a hole (found by a kill)."""
    path = tmp_path / "store"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(WRITER.parent / "dying.py"), str(path), str(count)],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
        acknowledged = int(done.stdout.split()[-1])
        with penstock.open(path, environ={}, **SMALL) as store:
            assert check(store, acknowledged - 1) >= acknowledged
