"""Random kills of a process that consumes and produces in transactions: none is stored in part, none twice, and each input is
consumed if and only if its outputs are there."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

from tests.crash.transaction_mover import GROUP, SOURCE, TARGETS, TOGETHER
from tests.faults.children import environment
from tests.lanes import SEED, rounds

import penstock
from penstock import Store

ROOT = Path(__file__).parents[2]
KILLS = rounds(gate=3, night=200)
Input = tuple[int, int]


class Mover:
    """The process, and what it has said until it was killed."""

    def __init__(self, path: Path, seed: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.transaction_mover", str(path), seed],
            cwd=ROOT, env={**environment(), "OPENBLAS_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        out = self._process.stdout
        assert out is not None
        self._out = out
        assert self._out.readline() == "ready\n"

    def kill(self, count: int) -> list[str]:
        """Kill it when it has said so many lines; return the whole lines that it has said."""
        said = "".join(self._out.readline() for _ in range(count))
        self._process.kill()
        said += self._out.read()
        self._out.close()
        self._process.wait()
        return said.split("\n")[:-1]


def pairs(bodies: list[bytes]) -> Counter[Input]:
    """Return how often each input is named."""
    found = [body.decode().split(":") for body in bodies]
    return Counter((int(queue), int(offset)) for queue, offset in found)


def outputs(store: Store) -> list[Counter[Input]]:
    """Return how often each input has gone to each topic."""
    return [pairs([message.body for message in store.scan(topic)]) for topic in TARGETS]


def handed_out(store: Store, timeout_s: float) -> set[Input]:
    """Return what a consumer of the group gets."""
    found: set[Input] = set()
    with store.consumer(GROUP, SOURCE, max_in_flight=100_000) as consumer:
        while given := consumer.poll(1000, timeout_s):
            found |= {(each.queue, each.queue_offset) for each in given}
    return found


def wrong_with(store: Store, moved: set[Input], put: set[str]) -> str:
    """Return what does not hold; "" if all does."""
    first, second = outputs(store)
    batches = Counter(message.body.decode() for message in store.scan(SOURCE))
    made, handed = set(first), handed_out(store, 0)
    inputs = {
        (queue, offset)
        for queue in store.topics().get(SOURCE, ())
        for offset in range(store.max_offset(SOURCE, queue))
    }
    wrong = {
        "in part": first != second or set(batches.values()) - {TOGETHER},
        "twice": max(first.values(), default=1) > 1,
        "lost": moved - made or put - set(batches),
        "stored and handed out again": made & handed,
        "neither stored nor handed out": inputs - made - handed,
        "of a dropped transaction": store.max_offset("never", 0),
    }
    return "; ".join(f"{name}: {what}" for name, what in wrong.items() if what)


def test_no_kill_leaves_a_transaction_in_part_or_makes_one_twice(tmp_path: Path) -> None:
    seed = SEED
    chance, path = Random(seed), tmp_path / "store"
    moved: set[Input] = set()
    put: set[str] = set()
    unfinished = 0
    for number in range(KILLS):
        mover = Mover(path, f"{seed}-{number}")
        for line in mover.kill(chance.randrange(20, 60)):
            kind, what = line.split(" ")
            if kind == "put":
                put.add(what)
            else:
                moved |= set(pairs([what.encode()]))
        unfinished += (path / "penstock" / "decisions").exists()
        if chance.random() < 0.3:
            # A member elsewhere, while no process writes: what is decided is not handed out to it.
            with penstock.open(path, read_only=True) as reader:
                made = set(outputs(reader)[0])
                assert not handed_out(reader, 0.1) & made, f"seed {seed}, kill {number}"
        if chance.random() < 0.3 or number == KILLS - 1:
            with penstock.open(path, retention=[]) as store:
                wrong = wrong_with(store, moved, put)
                assert not wrong, f"seed {seed}, kill {number}: {wrong[:2000]}"
    print(f"{len(moved)} moved, {len(put)} put, {unfinished} kills with decisions")
    assert moved
    assert put
