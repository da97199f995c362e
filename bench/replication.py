"""`python -m bench.replication FOLDER`: how fast a log is copied, and what copies cost the puts.

Prints one JSON object a line. Every figure is the median of the rounds, with the lowest and the highest; what is compared takes turns
within each round. Followers are processes of their own.

    history: a follower copies a log over loopback until it is on disk, beside `cp -r` of the log's folder with a sync of each file.
    put: a put to a master that one follower follows, whose puts do not wait for it, beside a put without a replicator.
    sync: a put that waits for the follower, beside a put to RocketMQ's store as SYNC_MASTER with a real slave.
    ship: a log shipped to a folder, beside the same `cp -r`.
"""

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import penstock
from bench import machine
from bench.engines import ENGINES
from bench.engines.penstock import PenstockEngine
from bench.follower import FollowerProcess
from bench.process import EngineProcess
from bench.rocketmq import missing
from bench.supply import Supply, make_bodies
from bench.worker import in_threads
from penstock import PutStatus

_BODY_BYTES = 1024
_FILL_BATCH = 1000
_SIZES = (128, 1024)
_PUTS = 200_000
_THREADS = (1, 16)
_SYNC_PUTS = {1: 2000, 16: 4000}
_SETTLE_S = 0.3
_SHIP_LOOK_S = 0.005

_ASYNC: dict[str, Any] = {"index": ["consume-queue"]}
_SYNC: dict[str, Any] = {"index": ["consume-queue"], "flush": "sync", "write": "file"}


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(figures: list[float]) -> dict[str, float]:
    """Return median and range."""
    return {
        "median": round(statistics.median(figures), 3),
        "low": round(min(figures), 3),
        "high": round(max(figures), 3),
    }


def ha(listen: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a master."""
    options = {f"replicate.ha.{name}": value for name, value in more.items()}
    return {"replicate": "ha", "replicate.ha.listen": listen, **options}


class Replication:
    """One run: a folder, its messages, and the number of rounds."""

    def __init__(self, home: Path, rounds: int, size_mib: int) -> None:
        self.home, self.rounds, self.size_bytes = home, rounds, size_mib << 20
        self.bodies = home / "bodies"
        make_bodies(self.bodies)
        self.supply = Supply(self.bodies)
        self.chance = random.Random(7)

    def fill(self, root: Path) -> int:
        """Make a log; return its end."""
        with penstock.open(root, environ={}, **_ASYNC) as store:
            engine = PenstockEngine(_ASYNC)
            while int(store.stats()["log_end_offset"]) < self.size_bytes:
                store.put_many(engine.batch(self.supply.rows(_FILL_BATCH, _BODY_BYTES)))
            return int(store.stats()["log_end_offset"])

    def copied_s(self, source: Path) -> float:
        """Return how long `cp -r` takes for a log, until it is on disk."""
        target = self.home / "cp"

        def copy() -> None:
            subprocess.run(["cp", "-r", str(source / "commitlog"), str(target)], check=True)
            for path in (*sorted(target.iterdir()), target):
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

        took_s = seconds(copy)
        remove(target)
        return took_s

    # --- history

    def history(self) -> Iterator[dict[str, Any]]:
        """Copy a log to a follower, and by `cp`."""
        root, listen = self.home / "master", f"127.0.0.1:{free_port()}"
        size = self.fill(root)
        times: dict[str, list[float]] = {"cp": [], "follower": [], "received": [], "cpu": []}
        with penstock.open(root, environ={}, **_ASYNC, **ha(listen)):
            for number in range(self.rounds + 1):
                for name in self.chance.sample(("cp", "follower"), 2):
                    settled()
                    if name == "cp":
                        found = {"cp": self.copied_s(root)}
                    else:
                        found = self._followed(listen, size)
                    # The first turn reads what is not in memory.
                    for key, value in found.items() if number else ():
                        times[key].append(value)
        remove(root)
        yield {
            "what": "history", "bytes": size, "segments": "default",
            "cp_mb_per_s": spread([size / each / 1e6 for each in times["cp"]]),
            "follower_mb_per_s": spread([size / each / 1e6 for each in times["follower"]]),
            "received_mb_per_s": spread([size / each / 1e6 for each in times["received"]]),
            "follower_cpu_s": spread(times["cpu"]),
            "of_cp": spread([cp / ours for cp, ours in zip(times["cp"], times["follower"], strict=True)]),
            "goal": 0.7,
        }  # fmt: skip

    def _followed(self, listen: str, size: int) -> dict[str, float]:
        target = self.home / "follower"
        with FollowerProcess(target, listen) as follower:
            took = follower.reach(size)
        remove(target)
        return {"follower": took["flushed_s"], "received": took["received_s"], "cpu": took["cpu_s"]}

    # --- puts that wait for nobody

    def put(self) -> Iterator[dict[str, Any]]:
        """Put with and without a follower."""
        listen = f"127.0.0.1:{free_port()}"
        with ExitStack() as stack:
            engines = {
                "alone": self._opened(stack, "alone", _ASYNC),
                "followed": self._opened(stack, "followed", {**_ASYNC, **ha(listen)}),
            }
            follower = stack.enter_context(FollowerProcess(self.home / "copy", listen, apart=True))
            follower.reach(0)
            for size in _SIZES:
                times: dict[str, list[float]] = {"alone": [], "followed": []}
                for number in range(self.rounds + 2):
                    for name in self.chance.sample(("alone", "followed"), 2):
                        took_s = self._put_turn(engines[name], size)
                        follower.reach(end_of(engines["followed"]))
                        if number > 1:
                            times[name].append(took_s / _PUTS * 1e6)
                yield {
                    "what": "async put", "body_bytes": size, "us": {name: spread(found) for name, found in times.items()},
                    "cost": spread([b / a - 1 for a, b in zip(times["alone"], times["followed"], strict=True)]),
                    "cost_of_medians": round(statistics.median(times["followed"]) / statistics.median(times["alone"]) - 1, 3),
                    "goal": 0.05,
                }  # fmt: skip

    def _opened(self, stack: ExitStack, name: str, settings: Mapping[str, Any]) -> PenstockEngine:
        engine = PenstockEngine(settings)
        engine.open(self.home / name)
        stack.callback(engine.close)
        return engine

    def _put_turn(self, engine: PenstockEngine, size: int) -> float:
        singles = engine.singles(self.supply.rows(_PUTS, size))
        time.sleep(_SETTLE_S)
        took_s = seconds(lambda: engine.put_all(singles))
        engine.settle()
        return took_s

    # --- puts that wait for a copy

    def sync(self) -> Iterator[dict[str, Any]]:
        """Put with a copy, to Penstock and to RocketMQ."""
        for flush, ours, theirs in (
            ("async", _ASYNC, "ASYNC_FLUSH"),
            ("sync", _SYNC, "SYNC_FLUSH"),
        ):
            with ExitStack() as stack:
                pairs: dict[str, Callable[[int], float]] = {
                    "penstock": self._our_pair(stack, f"ours-{flush}", ours)
                }
                if not missing():
                    pairs["rocketmq"] = self._java_pair(stack, f"java-{flush}", theirs)
                for threads in _THREADS:
                    yield {"what": "sync put", "flush": flush, **self._compared(pairs, threads)}

    def _compared(
        self, pairs: Mapping[str, Callable[[int], float]], threads: int
    ) -> dict[str, Any]:
        times: dict[str, list[float]] = {name: [] for name in pairs}
        for number in range(self.rounds + 2):
            for name in self.chance.sample(list(pairs), len(pairs)):
                took_us = pairs[name](threads)
                if number > 1:
                    times[name].append(took_us)
        found: dict[str, Any] = {"threads": threads, "us": {n: spread(t) for n, t in times.items()}}
        if len(pairs) > 1:
            both = zip(times["rocketmq"], times["penstock"], strict=True)
            found["times_as_fast"] = spread([java / ours for java, ours in both])
            found["goal"] = 1.0
        return found

    def _our_pair(
        self, stack: ExitStack, name: str, settings: Mapping[str, Any]
    ) -> Callable[[int], float]:
        listen = f"127.0.0.1:{free_port()}"
        engine = self._opened(stack, name, {**settings, **ha(listen, in_sync_replicas=2)})
        follower = stack.enter_context(FollowerProcess(self.home / f"{name}-copy", listen))
        follower.reach(0)

        def turn(threads: int) -> float:
            follower.reach(end_of(engine))
            count = _SYNC_PUTS[threads]
            singles = engine.singles(self.supply.rows(count, _BODY_BYTES))
            while engine.store.put("TopicBench", b"", queue=0).status is not PutStatus.PUT_OK:
                time.sleep(_SHIP_LOOK_S)
            share = count // threads
            parts = [singles[n * share : (n + 1) * share] for n in range(threads)]
            took_s = seconds(lambda: in_threads(engine.put_all, parts))
            stats = engine.store.stats()["strategies"]["replicate"]
            assert not stats["late"], stats
            follower.reach(end_of(engine))
            follower.pause()
            return took_s / count * 1e6

        return turn

    def _java_pair(self, stack: ExitStack, name: str, flush: str) -> Callable[[int], float]:
        base = {**ENGINES["rocketmq"].settings, "flushDiskType": flush}
        master = stack.enter_context(EngineProcess("rocketmq"))
        slave = stack.enter_context(EngineProcess("rocketmq"))
        opened = master.call(
            "open", root=str(self.home / name), bodies=str(self.bodies), number=0,
            settings={**base, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2},
        )  # fmt: skip
        slave.call(
            "open", root=str(self.home / f"{name}-copy"), bodies=str(self.bodies), number=0,
            settings={**base, "brokerRole": "SLAVE"},
        )  # fmt: skip
        slave.call("follow", master=f"127.0.0.1:{opened['ha_port']}")
        master.call("wait_slave")

        def turn(threads: int) -> float:
            slave.resume()
            master.call("wait_slave")
            count = _SYNC_PUTS[threads]
            done = master.call("put", count=count, size=_BODY_BYTES, threads=threads)
            master.call("wait_slave")
            master.pause()
            slave.pause()
            return float(done["acked_ns"]) / count / 1e3

        # A virtual machine compiles what it runs often.
        for threads in (*_THREADS, *_THREADS):
            turn(threads)
        return turn

    # --- ship

    def ship(self) -> Iterator[dict[str, Any]]:
        """Ship a log to a folder, and copy it."""
        root = self.home / "shipped"
        size = self.fill(root)
        times: dict[str, list[float]] = {"cp": [], "ship": []}
        for number in range(self.rounds + 1):
            for name in self.chance.sample(("cp", "ship"), 2):
                settled()
                took_s = self.copied_s(root) if name == "cp" else self._shipped_s(root, size)
                if number:
                    times[name].append(took_s)
        remove(root)
        yield {
            "what": "ship to a folder", "bytes": size,
            "cp_mb_per_s": spread([size / each / 1e6 for each in times["cp"]]),
            "ship_mb_per_s": spread([size / each / 1e6 for each in times["ship"]]),
            "of_cp": spread([cp / ours for cp, ours in zip(times["cp"], times["ship"], strict=True)]),
        }  # fmt: skip

    def _shipped_s(self, root: Path, size: int) -> float:
        target = self.home / "archive"
        settings = {**_ASYNC, "replicate": "ship", "replicate.ship.url": str(target)}
        with penstock.open(root, environ={}, **settings) as store:
            began = time.perf_counter()
            while all(int(copy["received_offset"]) < size for copy in store.stats()["copies"]):
                time.sleep(_SHIP_LOOK_S)
            took_s = time.perf_counter() - began
        remove(target)
        return took_s


def end_of(engine: PenstockEngine) -> int:
    """Return where a store's log ends."""
    return int(engine.store.stats()["log_end_offset"])


def settled() -> None:
    """Write everything back, so that nothing of one turn is written in the next one."""
    os.sync()
    time.sleep(_SETTLE_S)


def remove(path: Path) -> None:
    """Remove a folder."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-replication-") as home:
        yield Path(home)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="history,put,sync,ship", help="separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--mib", type=int, default=1024, help="the history's size; 10240 for 10 GiB"
    )
    given = parser.parse_args()
    print(json.dumps({"machine": machine.words(), "rounds": given.rounds}), flush=True)
    with _folder(given.folder) as home:
        run = Replication(home, given.rounds, given.mib)
        for name in given.only.split(","):
            for figure in getattr(run, name)():
                print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
