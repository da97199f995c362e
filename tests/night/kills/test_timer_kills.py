"""kill -9 of a process that delivers messages at their times, at random moments, on one store.

None is lost, none is early, none that was cancelled comes; and one comes again only if a kill was between, and what was saved then
did not say that its second was delivered.
"""

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs
import pytest
from tests.crash.writer import SMALL
from tests.faults.children import environment
from tests.lanes import SEED, rounds
from tests.night.kills.timer_writer import TOPIC

import penstock
from penstock.files import Files
from penstock_messaging.timers.timer_check import read_check
from penstock_messaging.timers.timer_message import out_ms_of

WRITER = Path(__file__).parent / "timer_writer.py"
ROOT = Path(__file__).parents[3]
KILLS, CLEAN_EVERY = rounds(gate=6, night=200), 3
WAIT_S = 120


@attrs.define
class Told:
    """What the writers said, and when they were killed."""

    due_ms: dict[int, int] = attrs.Factory(dict)
    cancelling: set[int] = attrs.Factory(set)
    cancelled: set[int] = attrs.Factory(set)
    # When each kill was, and what was due before which second was saved as delivered then.
    kills: list[tuple[int, int]] = attrs.Factory(list)

    def hear(self, line: bytes) -> None:
        kind, number, *rest = line.split()
        if kind == b"put":
            self.due_ms[int(number)] = int(rest[0])
        else:
            (self.cancelling if kind == b"cancel" else self.cancelled).add(int(number))

    def next_number(self) -> int:
        # A message that was stored, and not told of any more, has a number, too.
        return max(self.due_ms, default=-1) + 2


def run_writer(path: Path, told: Told, seed: int, seconds: float, puts: int) -> None:
    """Run a writer, kill it after a while unless it closes by itself, and hear what it said."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(told.next_number()), str(seed), str(puts)],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    timer = threading.Timer(seconds, process.kill)
    if not puts:
        timer.start()
    rest = process.stdout.read()
    status = process.wait()
    assert status == (0 if puts else -signal.SIGKILL)
    if not puts:
        timer.join()
        check = read_check(Files(), path)
        told.kills.append((time.time_ns() // 1_000_000, check.read_ms if check else 0))
    process.stdout.close()
    # A kill within a print may leave half a line.
    for line in (first + rest).split(b"\n")[:-1]:
        told.hear(line)


def delivered(path: Path) -> dict[int, list[tuple[int, int]]]:
    """Open the store, wait until nothing waits, and return when each message was delivered, and when it was due."""
    with penstock.open(path, environ={}, **SMALL) as store:
        limit = time.monotonic() + WAIT_S
        while store.delayed():
            assert time.monotonic() < limit, "messages whose time has come are not delivered"
            time.sleep(0.05)
        assert list(store.verify()) == []
        found: dict[int, list[tuple[int, int]]] = {}
        for message in store.scan(TOPIC):
            # A message whose time had come when it was put has no property.
            due_ms = int(message.all_properties.get("TIMER_DELIVER_MS", message.store_time_ms))
            found.setdefault(int(message.body), []).append((message.store_time_ms, due_ms))
    return found


@pytest.mark.slow
def test_a_killed_process_delivers_each_message_at_its_time(tmp_path: Path) -> None:
    chance, told, path = random.Random(SEED), Told(), tmp_path / "store"
    for number in range(KILLS):
        puts = chance.randrange(1, 40) if number % CLEAN_EVERY == CLEAN_EVERY - 1 else 0
        run_writer(path, told, chance.randrange(1 << 30), chance.uniform(0, 1.5), puts)
    found = delivered(path)
    assert not set(told.due_ms) - set(found) - told.cancelling, "lost"
    wrong = {each: (told.due_ms.get(each), found[each]) for each in told.cancelled & set(found)}
    assert not wrong, f"delivered though cancelled: {wrong}, kills {told.kills}"
    for number, times in found.items():
        (due_ms,) = {due_ms for _, due_ms in times}
        assert due_ms in (told.due_ms.get(number, due_ms), times[0][0])
        assert min(times)[0] >= told.due_ms.get(number, due_ms), f"{number} is early"
        for (before, _), (after, _) in itertools.pairwise(times):
            between = [read_ms for ms, read_ms in told.kills if before <= ms <= after]
            assert between, f"{number} was delivered at {before} and {after}, without a kill"
            saved = [read_ms for read_ms in between if out_ms_of(due_ms) < read_ms]
            assert not saved, (
                f"{number}, due {due_ms}, was delivered at {before} and {after}; {saved} was saved"
            )
    assert any(read_ms for _, read_ms in told.kills)
    again = sum(len(times) - 1 for times in found.values())
    print(
        f"{len(found)} delivered, {again} again, {len(told.cancelled)} cancelled, {len(told.kills)} kills"
    )
