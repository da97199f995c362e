"""Members of one group in processes that are killed, stopped and joined by others, beside a writer: checked by a trace."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.crash.group_story import GROUP, SETTINGS, TOPIC, services
from tests.faults.children import environment

from penstock.files import Files
from penstock.testing import ManualClock
from penstock.testing.kit import open_store

ROOT = Path(__file__).parents[2]
QUEUES = 4
KILLS = int(os.environ.get("PENSTOCK_KILLS", "6"))
# A killed owner's queues move within this time.
MOVES_WITHIN_S = 5.0


def member(path: Path, trace: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Start a member."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.group_member", str(path), str(trace), str(seconds)],
        cwd=ROOT, env=environment(),
    )  # fmt: skip


def lines(trace: Path) -> list[tuple[int, int, str, int, int, int]]:
    """Return the trace: time, process, what, queue, epoch, offset."""
    found = []
    for line in trace.read_text().splitlines() if trace.exists() else ():
        when, pid, what, *numbers = line.split()
        queue, epoch, offset = map(int, numbers)
        found.append((int(when), int(pid), what, queue, epoch, offset))
    return sorted(found)


def wait_until(seconds: float, done: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def check_moved(trace: Path, victim: int, killed_ns: int) -> None:
    """Wait until the queues of a killed owner have other owners."""
    takes = [line for line in lines(trace) if line[2] == "take"]
    last = {queue: pid for _, pid, _, queue, _, _ in takes}
    owned = {queue for queue, pid in last.items() if pid == victim}

    def moved() -> bool:
        return owned <= {x[3] for x in lines(trace) if x[2] == "take" and x[0] > killed_ns}

    assert wait_until(MOVES_WITHIN_S, moved), f"queues {owned} did not move"


def check_owners(trace: Path) -> None:
    """At each moment a queue has at most one owner, and what was acknowledged durably is never handed out again."""
    owners: dict[int, tuple[int, int]] = {}
    acked: dict[int, set[int]] = defaultdict(set)
    for _, pid, what, queue, epoch, offset in lines(trace):
        if what == "take":
            assert epoch > owners.get(queue, (0, 0))[1]
            owners[queue] = pid, epoch
        assert owners[queue] == (pid, epoch), f"{what} by {pid}, owner is {owners[queue]}"
        if what == "ack":
            assert offset not in acked[queue]
            acked[queue].add(offset)


def test_killed_and_stopped_members_neither_share_a_queue_nor_lose_an_answer(
    tmp_path: Path,
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, trace = tmp_path / "store", tmp_path / "trace"
    with open_store(path, **SETTINGS) as store:
        groups, intake = services(store, Files(), ManualClock())
        for number in range(QUEUES):
            store.put(TOPIC, b"first", queue=number)
        living = [member(path, trace, 600) for _ in range(2)]
        assert wait_until(30, lambda: len({line[1] for line in lines(trace)}) == 2)
        for _ in range(KILLS):
            for number in range(40):
                store.put(TOPIC, b"x", queue=number % QUEUES)
            time.sleep(chance.uniform(0.05, 0.3))
            intake.take_all()
            victim = living.pop(chance.randrange(len(living)))
            if chance.random() < 0.3:
                # While it is stopped it keeps its queues, and then it goes on.
                victim.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
            victim.kill()
            victim.wait()
            check_moved(trace, victim.pid, time.monotonic_ns())
            living.append(member(path, trace, 600))
        ends = {queue: store.max_offset(TOPIC, queue) for queue in range(QUEUES)}

        def all_is_consumed() -> bool:
            found = {q: groups.position(GROUP, TOPIC, q) for q in range(QUEUES)}
            return all(p is not None and p.base == ends[q] for q, p in found.items())

        assert wait_until(60, all_is_consumed)
        for process in living:
            process.kill()
            process.wait()
        intake.take_all()
        assert {q: store.committed_offset(GROUP, TOPIC, q) for q in range(QUEUES)} == ends
    check_owners(trace)
