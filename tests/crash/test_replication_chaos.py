"""Pairs of Penstock stores under chaos: every way in, rolls, retention, kill -9 of either side, and a proxy that cuts, delays and garbles.

The log of the copy is the master's, byte by byte, as far as it goes; queues and `find` answer the same; the copy has no corruption; and if
puts wait for the copy, what they were told to be there is there after the promotion of the copy. `PENSTOCK_KILLS` for how many
rounds, `PENSTOCK_SEED` to repeat a run as far as that can be repeated, `make soak-replicas MINUTES=60` for an hour.
"""

import argparse
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from tests.conftest import kills
from tests.crash.chaos_processes import SEGMENT_BYTES, SETTINGS
from tests.faults.children import environment
from tests.replica_proxy import CALM, Chaos, ReplicaProxy

import penstock
from penstock import Store
from penstock.store.following import open_follower
from penstock_replicate.following.follow import follow
from penstock_replicate.roles.promotion import promote_closed

PROCESSES = Path(__file__).parent / "chaos_processes.py"
ROOT = Path(__file__).parents[2]
ROUNDS = kills(48)
LIMIT_S = 60.0
PROMISED = "PUT_OK"
THERE = ("REPLICATED", "ON_DISK_THERE")
MOODS = (
    CALM,
    Chaos(cut_bytes=200_000, refuse=0.3),
    Chaos(delay_bytes=20_000, delay_s=0.7),
    Chaos(garble_bytes=100_000),
    Chaos(cut_bytes=300_000, delay_bytes=50_000, garble_bytes=200_000, refuse=0.1),
)


class Member:
    """A process of a pair, whose lines are kept."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESSES), *arguments], cwd=ROOT, env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, source: "Iterator[str]", lines: list[str]) -> None:
        for line in source:
            # A kill within a print may leave half a line.
            if line.endswith("\n"):
                lines.append(line.rstrip())  # noqa: PERF401 - read by another thread, line by line

    def check(self) -> None:
        """It still runs."""
        if self.process.poll() is not None:
            for thread in self._threads:
                thread.join()
        assert self.process.poll() is None, "\n".join([*self.lines[-3:], *self.errors])

    def wait_for(self, what: str) -> None:
        until(what, lambda: what in self.lines, self.check)

    def kill(self) -> None:
        """Kill it, and hear what it said."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            # What was not written to a process that is gone.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def last(self, word: str) -> int:
        """Return the number of the last line that begins with a word; -1 if there is none."""
        return next((int(x.split()[1]) for x in reversed(self.lines) if x.startswith(word)), -1)


def until(what: str, is_so: Callable[[], bool], check: Callable[[], None]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        check()
        assert time.monotonic() < end, what
        time.sleep(0.01)


@attrs.frozen
class Promise:
    """What a receipt said of a message."""

    topic: str
    name: str
    log_offset: int
    status: str
    durability: str


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


class Pair:
    """Two stores, of which one is the master at a time.

    Attributes:
        figures: what happened.
    """

    def __init__(self, folder: Path, seed: int, *, copies: int, flush: str) -> None:
        self.folder = folder
        self.master_path, self.copy_path = folder / "a", folder / "b"
        self.chance = random.Random(seed)
        self.figures: Counter[str] = Counter()
        self._copies, self._flush = copies, flush
        self._turn = 0
        self._address = free_address()
        self._proxy = ReplicaProxy(self._address, seed)
        self._master = self._follower = None
        self._promises: list[Promise] = []

    # --- processes

    def start_master(self) -> Member:
        self._turn += 1
        seed = str(self.chance.randrange(1 << 30))
        self._master = Member(
            "master", str(self.master_path), self._address, f"m{self._turn}", seed, str(self._copies), self._flush
        )  # fmt: skip
        self._master.wait_for("open")
        return self._master

    def start_follower(self) -> Member:
        self._follower = Member("follower", str(self.copy_path), self._proxy.address)
        self._follower.wait_for("open")
        return self._follower

    def kill_master(self) -> None:
        assert self._master is not None
        self._master.kill()
        for line in self._master.lines:
            if line.startswith("put "):
                topic, name, log_offset, status, durability = line.split()[1:]
                self._promises.append(Promise(topic, name, int(log_offset), status, durability))
        self._master = None

    def kill_follower(self) -> None:
        assert self._follower is not None
        self._follower.check()
        self._follower.kill()
        self._follower = None

    def close(self) -> None:
        for member in (self._master, self._follower):
            if member is not None:
                member.kill()
        self.figures.update(self._proxy.counts)
        self._proxy.close()

    def check(self) -> None:
        for member in (self._master, self._follower):
            if member is not None:
                member.check()

    # --- a round

    def disturb(self) -> None:
        """Let both run for a while, in which things happen."""
        chance = self.chance
        if self._copies > 1:
            self._proxy.calm()
            until("a put that waits for the copy", self._has_promised, self.check)
        for _ in range(chance.randrange(1, 4)):
            self._proxy.chaos = chance.choice(MOODS)
            time.sleep(chance.random() * 0.8)
            self.check()
            draw = chance.random()
            if draw < 0.25:
                self.kill_follower()
                self.start_follower()
                self.figures["followers killed"] += 1
            elif draw < 0.4:
                self.kill_master()
                self.start_master()
                self.figures["masters killed"] += 1
            elif draw < 0.6:
                self._proxy.cut()

    def _has_promised(self) -> bool:
        assert self._master is not None
        return any(PROMISED in line for line in self._master.lines[-100:])

    def level(self) -> None:
        """Let the copy get everything, end both, and compare them."""
        self._proxy.calm()
        master, follower = self._master, self._follower
        assert master is not None
        assert follower is not None
        self.check()
        assert master.process.stdin is not None
        master.process.stdin.write("pause\n")
        master.process.stdin.flush()
        # Until nothing more is delivered: the longest delay is a second and a bit.
        until("paused", lambda: master.last("paused") >= 0, self.check)
        since, end = time.monotonic(), -1
        while time.monotonic() < since + 1.6:
            if master.last("paused") != end:
                end, since = master.last("paused"), time.monotonic()
            time.sleep(0.02)
        until(f"the copy has {end}", lambda: follower.last("at") >= end, self.check)
        self.figures["levelled"] += 1
        self.kill_master()
        self.kill_follower()
        assert self.compare() == end
        # Opened as a follower and closed, so that it has recovered from the kill.
        open_follower(self.copy_path, **SETTINGS).close()
        self.keep_promises(self.copy_path)

    def compare(self) -> int:
        """Compare both stores as far as the copy goes; return where it ends."""
        with (
            penstock.open(self.master_path, read_only=True) as theirs,
            penstock.open(self.copy_path, read_only=True) as ours,
        ):
            end = min(ours.stats()["log_end_offset"], theirs.stats()["log_end_offset"])
            start = max(ours.stats()["log_min_offset"], theirs.stats()["log_min_offset"])
            same_logs(self.master_path, self.copy_path, start, end)
            same_answers(theirs, ours, start, end)
            self.figures["bytes compared"] += end - start
            return int(ours.stats()["log_end_offset"])

    def keep_promises(self, path: Path) -> None:
        """Assert that all that was promised is in a store that no process writes."""
        with penstock.open(path, read_only=True) as store:
            low = store.stats()["log_min_offset"]
            found: dict[str, set[str]] = {}
            for topic in (*store.topics(), "delayed"):
                names = store.scan(topic) if topic in store.topics() else ()
                found[topic] = {m.body.partition(b":")[0].decode() for m in names}
            waiting = set().union(
                *(found.get(each, ()) for each in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "orders"))
            )  # fmt: skip
            found["delayed"] = waiting
            assert [each for each in store.verify() if not each.is_note] == []
            find_all(store)
        checked = [each for each in self._promises if each.log_offset >= low]
        self.figures["stored"] += len(checked)
        for each in checked:
            if (self._copies > 1 and each.status == PROMISED) or each.durability in THERE:
                assert each.name in found.get(each.topic, ()), each
                self.figures["promises kept"] += 1

    def promote(self) -> None:
        """Kill the master, then the follower; the copy becomes the master, and the killed master its copy."""
        first, second = self.kill_master, self.kill_follower
        if self.chance.random() < 0.3:
            first, second = second, first
        first()
        time.sleep(self.chance.random() * 0.05)
        second()
        self.compare()
        promote_closed(self.copy_path)
        self.keep_promises(self.copy_path)
        self.figures["promotions"] += 1
        self.master_path, self.copy_path = self.copy_path, self.master_path
        # What the copy lacked, and nobody was promised, is gone; what is promised from now on is on both.
        self._promises = []

    def rejoin(self) -> None:
        """Let the killed master follow the promoted one: what only it has is cut off."""
        self._proxy.calm()
        with follow(self.copy_path, self._proxy.address, cut=True, **SETTINGS) as follower:
            assert follower.wait_caught_up(LIMIT_S), follower.status()

    def play(self) -> None:
        """Play one round."""
        if self._master is None:
            self.start_master()
        if self._turn > 1 and self._follower is None:
            self.rejoin()
        self.start_follower()
        self.disturb()
        self.figures["rounds"] += 1
        if self.chance.random() < 0.5:
            self.level()
        else:
            self.promote()


def same_logs(one: Path, other: Path, start: int, end: int) -> None:
    """Assert that two logs have the same bytes."""
    while start < end:
        base = start - start % SEGMENT_BYTES
        stop = min(base + SEGMENT_BYTES, end)
        parts = [
            (path / "commitlog" / f"{base:020d}").read_bytes()[start - base : stop - base]
            for path in (one, other)
        ]
        if parts[0] != parts[1]:
            at = next(n for n, (a, b) in enumerate(zip(*parts, strict=True)) if a != b)
            raise AssertionError(f"{one} and {other} differ at log offset {start + at}")
        start = stop


def answers(store: Store, start: int, end: int) -> dict[object, object]:
    """Return what the queues of a store answer of a part of its log."""
    return {
        (topic, queue, m.queue_offset): (m.log_offset, m.record)
        for topic, queues in store.topics().items()
        for queue in queues
        for m in store.scan(topic, queue)
        if start <= m.log_offset < end
    }


def find_all(store: Store) -> None:
    """Assert that `find` answers what the queues have."""
    for topic in store.topics():
        known: dict[str, list[int]] = {"many": [], "k7": [], "k33": []}
        for m in store.scan(topic):
            for key in known.keys() & set(m.keys):
                known[key].append(m.log_offset)
        for key, offsets in known.items():
            assert sorted(m.log_offset for m in store.find(topic, key, limit=1 << 20)) == sorted(
                offsets
            ), key


def same_answers(one: Store, other: Store, start: int, end: int) -> None:
    """Assert that two stores answer the same of a part of their logs."""
    theirs, ours = answers(one, start, end), answers(other, start, end)
    different = [each for each in theirs.keys() | ours.keys() if theirs.get(each) != ours.get(each)]
    texts = [f"{each}: {theirs.get(each)!r:.90} and {ours.get(each)!r:.90}" for each in different]
    assert not texts, f"{len(texts)} differ: " + "; ".join(sorted(texts)[:4])


def chaos(folder: Path, seed: int, is_over: Callable[[int], bool], **modes: object) -> Counter[str]:
    """Play rounds with one pair until it is over; return what happened."""
    pair = Pair(folder, seed, **modes)  # type: ignore[arg-type] # its own checks
    try:
        while not is_over(pair.figures["rounds"]):
            pair.play()
    finally:
        pair.close()
    return pair.figures


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "flush"), [(2, "sync"), (1, "async")])
def test_a_copy_under_chaos_is_the_same_and_keeps_what_was_promised(
    copies: int, flush: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED") or time.time_ns() & 0xFFFFFF)
    print(f"PENSTOCK_SEED={seed}")
    rounds = max(ROUNDS // 2, 1)
    figures = chaos(tmp_path, seed, lambda count: count >= rounds, copies=copies, flush=flush)
    print(dict(figures))
    assert figures["bytes compared"]
    assert copies == 1 or figures["promises kept"]


def soak(folder: Path, minutes: float, seed: int) -> Iterator[tuple[int, Counter[str]]]:
    """Play with one pair after another, in turn with puts that wait for the copy and with others, until the time is over."""
    end = time.monotonic() + minutes * 60
    for number in range(sys.maxsize):
        if time.monotonic() >= end:
            return
        path = folder / f"pair-{number}"
        path.mkdir()
        copies, flush = ((2, "sync"), (1, "async"), (2, "async"))[number % 3]
        figures = chaos(
            path, seed + number, lambda count: count >= 20 or time.monotonic() >= end, copies=copies, flush=flush
        )  # fmt: skip
        yield seed + number, figures
        # What failed is left in place.
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="penstock-replicas-"))
    print(f"stores are in {folder}", flush=True)
    total: Counter[str] = Counter()
    for seed, figures in soak(folder, given.minutes, given.seed):
        total += figures
        print(f"seed {seed}: {dict(figures)}", flush=True)
    print(f"in total: {dict(total)}")


if __name__ == "__main__":
    main()
