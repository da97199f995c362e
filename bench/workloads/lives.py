"""A store's life: import, cold start, close, open, recovery after a kill, many queues, memory; in new processes."""

import os
import shutil
import subprocess
import sys

from bench.measure import Bench, Work
from bench.process import EngineError, EngineProcess
from bench.workloads.puts import SIZES

COLD = 300_000
KILLED = "a killed 1 GiB store"
CLEAN = "a clean 1 GiB store"
BUSY = "a busy store"
IMPORT, FIRST = "import, processor time", "first open of a process, with all that it imports"
EMPTY = "open an empty store, processor time"
# `import penstock` imports little; the first `open` imports the rest, including numpy.
_FIRST = (
    "import sys, time, penstock; began = time.perf_counter(); penstock.open(sys.argv[1], environ={}); "
    "print(time.perf_counter() - began)"
)
_OPENED = (
    "import sys, time, penstock; penstock.open(sys.argv[1], environ={}).close(); began = time.process_time(); "
    "penstock.open(sys.argv[1], environ={}); print(time.process_time() - began)"
)
_IMPORTED = (
    "import time; began = time.process_time(); import {}; print(time.process_time() - began)"
)


def run(bench: Bench) -> None:
    """Run all measurements of this module."""
    if bench.wants("cold") or bench.wants("close"):
        for label, size in list(SIZES.items())[:2]:
            _cold(bench, label, size)
    if bench.wants("import"):
        _imports(bench)
    if bench.wants("recovery") or bench.wants("open"):
        _recovery(bench)
    if bench.wants("queues") or bench.wants("memory"):
        _queues(bench)


def _imports(bench: Bench) -> None:
    """Measure importing Penstock and opening the first store of a process. One earlier turn is not counted."""
    for number in range(bench.rounds + 1):
        found = [
            (IMPORT, name, _milliseconds(_IMPORTED.format(name)))
            for name in bench.shuffled(("penstock", "numpy"))
        ]
        for work, program in ((FIRST, _FIRST), (EMPTY, _OPENED)):
            root = bench.home / "empty"
            found.append((work, "penstock", _milliseconds(program, str(root))))
            shutil.rmtree(root)
        for work, name, took in found if number else ():
            bench.note(work, name, took, "ms")
    bench.show(IMPORT, FIRST, EMPTY)


def _milliseconds(program: str, *arguments: str) -> float:
    """Run a program that prints seconds in a process of its own."""
    done = subprocess.run(
        (sys.executable, "-c", program, *arguments), check=True, capture_output=True, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )  # fmt: skip
    return float(done.stdout) * 1000


def _rounds(bench: Bench) -> int:
    """Return the number of rounds: work that needs a new process each time takes long."""
    return bench.rounds if bench.full else min(bench.rounds, 3)


def _cold(bench: Bench, label: str, size: int) -> None:
    """Measure the first messages of a new process, and closing the store afterwards."""
    work = Work(name=f"cold {label}", do="put", engines=("penstock", "penstock-crc32", "rocketmq"),
                facts={"count": COLD, "size": size})  # fmt: skip
    for _ in range(_rounds(bench)):
        for engine in bench.shuffled(work.engines):
            root = bench.home / "cold"
            with bench.fresh(engine, root) as (process, _):
                bench.keep(work, engine, process.call(**work.command(engine, bench.scale)))
                took = process.call("close")["ns"]
                bench.note(f"close {BUSY}, {label}", engine, took / 1e6, "ms")
            shutil.rmtree(root)
    bench.show(work.name, f"close {BUSY}, {label}")


def _recovery(bench: Bench) -> None:
    """Measure opening the store of a killed process, then that of a clean close.

    Each round fills its own store: a copy would count as written by another program, and would be compared completely.
    """
    count = bench.scaled((1 << 30) // (1024 + 133))
    engines = ("penstock", "penstock-crc32", "penstock-1gib", "rocketmq")
    # The unsynced part of a killed process's store varies from one to the next.
    for _ in range(bench.rounds):
        for engine in bench.shuffled(engines):
            root = bench.home / "killed"
            with bench.fresh(engine, root) as (process, _):
                process.call("fill", count=count, size=1024)
                process.kill()
            # RocketMQ's `load` is only the recovery; Penstock's threads are running by then.
            with bench.fresh(engine, root, count) as (process, opened):
                bench.note(f"recovery of {KILLED}", engine, opened["ns"] / 1e6, "ms")
                _check_all_there(process, count)
                process.call("close")
            with bench.fresh(engine, root, count) as (process, opened):
                bench.note(f"open {CLEAN}", engine, opened["ns"] / 1e6, "ms")
            shutil.rmtree(root)
    bench.show(f"recovery of {KILLED}", f"open {CLEAN}")


def _check_all_there(process: EngineProcess, count: int) -> None:
    """Check that a kill loses no message that was put: the page cache has them."""
    found = process.call("total")["count"]
    if found != count:
        raise EngineError(f"{process.name} recovered {found:,} of {count:,} messages")


def _queues(bench: Bench) -> None:
    """Measure stores of one, a thousand and 20,000 queues: their memory, and the time of close and open."""
    for wanted in (1, 1000, 20_000):
        works = (
            f"memory of {wanted:,} queues",
            *(f"queues {wanted:,}, {what}" for what in ("close", "open")),
        )
        # In RocketMQ each queue has a mapped file and a descriptor: 20,000 take minutes, if the system allows them.
        engines = ("penstock", "rocketmq") if bench.full or wanted < 20_000 else ("penstock",)
        # Memory does not change from round to round.
        most = 3 if bench.full else 1 if wanted == 20_000 else 2
        for _ in range(min(bench.rounds, most)):
            for engine in bench.shuffled(engines):
                with bench.surviving(*works):
                    _many(bench, engine, bench.scaled(wanted), works)
                shutil.rmtree(bench.home / "queues")
        bench.show(*works)


def _many(bench: Bench, engine: str, queues: int, works: tuple[str, ...]) -> None:
    memory, closing, opening = works
    root = bench.home / "queues"
    with bench.fresh(engine, root) as (process, _):
        process.call("queues", count=queues, size=128)
        held = process.call("memory")["own_kib"] / 1024 * 1.048576
        closed = process.call("close")["ns"]
    with bench.fresh(engine, root) as (process, opened):
        bench.note(memory, engine, held, "MB")
        bench.note(closing, engine, closed / 1e6, "ms")
        bench.note(opening, engine, opened["ns"] / 1e6, "ms")
