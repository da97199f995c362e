"""`python -m bench.longlife`: runs a store under load, with retention and recycling, and measures its resources.

Four threads put singles and batches, the oldest segments are continuously deleted and recycled, two other
processes follow. Every few seconds memory, descriptors and maps of all three are sampled; at the end
the first half of each figure is compared with its second half, and a plot is drawn.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import penstock
from penstock import Message
from penstock.store.store import Store

THREADS = 4
FOLLOWERS = 2
QUEUES = 8
SETTINGS: dict[str, Any] = {
    "write": "mmap", "alloc": "recycle", "flush": "async", "retention": ["size"],
    "geometry.segment_bytes": 32 << 20, "retention.size.bytes_max": 256 << 20,
    "retention.interval_ms": 500, "retention.pause_ms": 0, "geometry.queue_entries": 20_000,
    "geometry.index_slots": 50_000, "geometry.index_entries": 200_000,
}  # fmt: skip
Sample = dict[str, float]
# Maximum growth of the second half compared with the first.
TOLERANCE = 1.1


def held() -> Sample:
    """Return the resources of this process: its own memory in MiB, open descriptors, maps."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    own = next(line for line in rollup.splitlines() if line.startswith("Anonymous:"))
    return {
        "memory_mib": int(own.split()[1]) / 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - not worth 100 paths
        "maps": Path("/proc/self/maps").read_bytes().count(b"\n"),
    }


def write(path: str, minutes: float, on_sample: Callable[[Sample], None], stop: Event) -> None:
    """Put from multiple threads until the time is over."""
    with penstock.open(path, environ={}, **SETTINGS) as store:
        ending = threading.Event()
        counts = [0] * THREADS
        threads = [
            threading.Thread(target=_put, args=(store, number, counts, ending))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        _tell_until(time.monotonic() + minutes * 60, stop, on_sample, lambda: float(sum(counts)))
        ending.set()
        for thread in threads:
            thread.join()
    stop.set()


def _put(store: Store, number: int, counts: list[int], ending: threading.Event) -> None:
    body = os.urandom(400)
    batch = [Message("t", body, queue=number + 4 * (n % 2), keys=[f"k{n}"]) for n in range(200)]
    while not ending.is_set():
        for _ in range(200):
            store.put("t", body, queue=number, tag="single")
        store.put_many(batch)
        counts[number] += 400
        # Gives the other processes time to run.
        time.sleep(0.05)


def follow(path: str, on_sample: Callable[[Sample], None], stop: Event) -> None:
    """Read all queues to their ends repeatedly, until stopped."""
    seen = 0
    with penstock.open(path, read_only=True, environ={}) as store:
        places = dict.fromkeys(range(QUEUES), 0)
        due = time.monotonic()
        while not stop.is_set():
            for queue in places:
                result = store.read("t", queue, places[queue], 500)
                seen += len(result.messages)
                places[queue] = max(result.next_offset, result.min_offset)
            if time.monotonic() > due:
                due += 2
                on_sample({**held(), "count": seen})
            time.sleep(0.01)


def _tell_until(
    end: float, stop: Event, on_sample: Callable[[Sample], None], count: Callable[[], float]
) -> None:
    while time.monotonic() < end and not stop.wait(2):
        on_sample({**held(), "count": count()})


def run(minutes: float) -> dict[str, list[Sample]]:
    """Run all processes; return their samples by name."""
    spawner = multiprocessing.get_context("spawn")
    samples: dict[str, list[Sample]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-longlife-") as folder,
        spawner.Manager() as manager,
    ):
        stop, inbox = manager.Event(), manager.Queue()
        path = str(Path(folder) / "store")
        jobs: list[Any] = [
            spawner.Process(target=_job, args=("writer", path, minutes, inbox, stop)),
            *(
                spawner.Process(target=_job, args=(f"follower {n + 1}", path, 0, inbox, stop))
                for n in range(FOLLOWERS)
            ),
        ]
        began = time.monotonic()
        jobs[0].start()
        while not (Path(path) / "commitlog").is_dir():
            time.sleep(0.05)
        for job in jobs[1:]:
            job.start()
        while any(job.is_alive() for job in jobs) or not inbox.empty():
            if any(job.exitcode for job in jobs):
                stop.set()
            if inbox.empty():
                time.sleep(0.5)
                continue
            name, sample = inbox.get()
            sample["minutes"] = (time.monotonic() - began) / 60
            samples.setdefault(name, []).append(sample)
        for job in jobs:
            job.join()
            assert job.exitcode == 0, f"a process ended with {job.exitcode}"
    return samples


def _job(name: str, path: str, minutes: float, inbox: Any, stop: Any) -> None:
    def on_sample(sample: Sample) -> None:
        inbox.put((name, sample))

    if name == "writer":
        write(path, minutes, on_sample, stop)
    else:
        follow(path, on_sample, stop)


def compared(samples: dict[str, list[Sample]]) -> list[tuple[str, str, float, float]]:
    """Return (process, figure, median of the second quarter, median of the last): warm-up is left out."""
    rows = []
    for name, all_of_it in samples.items():
        quarter = max(len(all_of_it) // 4, 1)
        early, late = all_of_it[quarter : 2 * quarter], all_of_it[-quarter:]
        for figure in ("memory_mib", "descriptors", "maps"):
            before, after = (statistics.median(s[figure] for s in part) for part in (early, late))
            rows.append((name, figure, before, after))
    return rows


def draw(samples: dict[str, list[Sample]], path: Path) -> None:
    """Draw messages, memory, descriptors and maps over time."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415 - as above

    titles = {
        "count": "messages put or read, millions", "memory_mib": "own memory, MiB",
        "descriptors": "open descriptors", "maps": "maps",
    }  # fmt: skip
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 9})
    figure, axes = pyplot.subplots(2, 2, figsize=(8, 5), sharex=True)
    for axis, (key, title) in zip(axes.flat, titles.items(), strict=True):
        for name, rows in samples.items():
            scale = 1e-6 if key == "count" else 1
            axis.plot([s["minutes"] for s in rows], [s[key] * scale for s in rows], label=name)
        axis.set_title(title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("minutes")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Run, print, plot; return 1 if anything grew."""
    parser = argparse.ArgumentParser(prog="python -m bench.longlife", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--json", type=Path, help="write all samples there")
    parser.add_argument("--plot", type=Path, help="write the plot to this file (SVG)")
    asked = parser.parse_args()
    samples = run(asked.minutes)
    grown = False
    for name, figure, early, late in compared(samples):
        is_more = late > early * TOLERANCE + 1
        grown |= is_more
        print(f"{name:12} {figure:12} {early:10.1f} -> {late:10.1f}{'  GREW' if is_more else ''}")
    for name, rows in samples.items():
        print(
            f"{name:12} {rows[-1]['count'] / 1e6:.1f} million messages in {asked.minutes:g} minutes"
        )
    if asked.json:
        asked.json.write_text(json.dumps(samples))
    if asked.plot:
        draw(samples, asked.plot)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
