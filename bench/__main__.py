"""`python -m bench`: the kernel's figures beside SQLite and LMDB, interleaved rounds, medians.

Ratios are what to look at: rounds of all engines take turns, so that what slows the machine slows all.
Above 1 means that Penstock does more in the same time.
"""

import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.engines import Engine, LmdbEngine, PenstockEngine, SqliteEngine

ROUNDS = 5
SINGLE = 10_000
BATCH = 1000
SIZES = (128, 1024)
ENGINES: tuple[type[Engine], ...] = (PenstockEngine, SqliteEngine, LmdbEngine)
Figures = dict[str, dict[str, list[float]]]


def timed(job: Callable[[], int]) -> float:
    """Return nanoseconds for each thing that `job` says it did."""
    began = time.perf_counter_ns()
    count = job()
    return (time.perf_counter_ns() - began) / max(count, 1)


def rounds(engines: list[Engine], size: int, figures: Figures) -> None:
    """Fill the engines in turns, and read them in turns."""
    chance = random.Random(size)
    bodies = [chance.randbytes(size) for _ in range(BATCH)]
    done = dict.fromkeys((e.name for e in engines), 0)
    for _ in range(ROUNDS):
        for engine in chance.sample(engines, len(engines)):
            done[engine.name] += fill(engine, done[engine.name], bodies, size, figures)
    for _ in range(ROUNDS):
        for engine in chance.sample(engines, len(engines)):
            look_up(engine, size, chance, figures)


def fill(engine: Engine, start: int, bodies: list[bytes], size: int, figures: Figures) -> int:
    """Put in every way the engine has; returns how many messages that were."""
    note(figures, f"put {size} B", engine, lambda: _single(engine, start, bodies))
    batches = start + SINGLE
    note(figures, f"put_many {BATCH} x {size} B", engine, lambda: _many(engine, batches, bodies))
    if not isinstance(engine, PenstockEngine):
        return SINGLE + 10 * BATCH
    columns = batches + 10 * BATCH
    note(
        figures,
        f"put_arrow {10 * BATCH} x {size} B",
        engine,
        lambda: _arrow(engine, columns, bodies),
    )
    return SINGLE + 20 * BATCH


def look_up(engine: Engine, size: int, chance: random.Random, figures: Figures) -> None:
    """Read in every way the engine has."""
    note(figures, f"read {size} B", engine, lambda: _read(engine))
    note(figures, f"find {size} B", engine, lambda: _find(engine, chance))
    if isinstance(engine, PenstockEngine):
        note(figures, f"to_arrow {size} B", engine, engine.to_arrow)


def _single(engine: Engine, start: int, bodies: list[bytes]) -> int:
    for number in range(SINGLE):
        engine.put(f"key-{start + number}", bodies[number % BATCH])
    return SINGLE


def _many(engine: Engine, start: int, bodies: list[bytes]) -> int:
    for turn in range(10):
        base = start + turn * BATCH
        engine.put_many([f"key-{base + n}" for n in range(BATCH)], bodies)
    return 10 * BATCH


def _arrow(engine: PenstockEngine, start: int, bodies: list[bytes]) -> int:
    engine.put_arrow([f"key-{start + n}" for n in range(10 * BATCH)], bodies * 10)
    return 10 * BATCH


def _read(engine: Engine) -> int:
    return sum(engine.read(start, 256) for start in range(0, 25_600, 256))


def _find(engine: Engine, chance: random.Random) -> int:
    for _ in range(500):
        engine.find(f"key-{chance.randrange(SINGLE)}")
    return 500


def note(
    figures: Figures, work: str, engine: Engine, job: Callable[[], int], unit: float = 1.0
) -> None:
    """Time a job and keep the figure."""
    figures.setdefault(work, {}).setdefault(engine.name, []).append(timed(job) / unit)


def _once(job: Callable[[], None]) -> Callable[[], int]:
    def run() -> int:
        job()
        return 1

    return run


def open_and_close(make: type[Engine], root: Path, gib: float, figures: Figures) -> None:
    """Fill one engine to a size, then time opening and closing it, milliseconds."""
    engine = make(root / f"large-{make.name}")
    engine.open()
    bodies = [random.Random(1).randbytes(1024) for _ in range(BATCH)]
    for turn in range(int(gib * (1 << 30)) // (1024 * BATCH)):
        engine.put_many([f"key-{turn * BATCH + n}" for n in range(BATCH)], bodies)
    engine.close()
    for _ in range(ROUNDS):
        note(figures, f"open {gib:g} GiB (ms)", engine, _once(engine.open), 1e6)
        engine.put("last", b"x")
        note(figures, f"close {gib:g} GiB (ms)", engine, _once(engine.close), 1e6)
    engine.remove()


def show(figures: Figures) -> None:
    """Print medians, spread and ratios."""
    print(
        f"{platform.machine()}, Python {platform.python_version()}, {ROUNDS} rounds, medians (spread)\n"
    )
    print(
        f"{'work (ns a message)':34}{'penstock':>22}{'sqlite':>22}{'lmdb':>22}{'x sqlite':>10}{'x lmdb':>8}"
    )
    for work, engines in figures.items():
        cells, medians = [], {}
        for name in ("penstock", "sqlite", "lmdb"):
            values = engines.get(name)
            if values:
                medians[name] = statistics.median(values)
                cells.append(f"{medians[name]:,.4g} ({min(values):,.3g}-{max(values):,.3g})")
            else:
                cells.append("-")
        ratios = [
            f"{medians[other] / medians['penstock']:.2f}" if other in medians else "-"
            for other in ("sqlite", "lmdb")
        ]
        print(f"{work:34}{cells[0]:>22}{cells[1]:>22}{cells[2]:>22}{ratios[0]:>10}{ratios[1]:>8}")


def main() -> None:
    """Run everything; `--gib N` for the size of the store that is opened, `--json FILE` keeps the figures."""
    arguments = sys.argv[1:]
    gib = float(arguments[arguments.index("--gib") + 1]) if "--gib" in arguments else 1.0
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=".") as home:
        root = Path(home)
        for size in SIZES:
            engines: list[Engine] = [make(root / f"{size}-{make.name}") for make in ENGINES]
            for engine in engines:
                engine.open()
            rounds(engines, size, figures)
            for engine in engines:
                engine.close()
                engine.remove()
        for make in ENGINES:
            open_and_close(make, root, gib, figures)
    show(figures)
    if "--json" in arguments:
        Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps(figures, indent=1))


main()
