"""`python -m bench.copies FOLDER`: puts that wait for a second copy, beside RocketMQ's; and the speed of a new copy.

Master and copy are two processes of one machine, over loopback; both stores are in FOLDER, which decides what a sync
costs. A round measures Penstock and RocketMQ in turn; a ratio is RocketMQ's time divided by Penstock's, in the same
round, so above 1 Penstock is faster. "received": the copy has the message in memory. "disk, received": it is on the
master's disk, too; RocketMQ promises no more. "disk": with Penstock it is on both disks, and RocketMQ does what it does
for "disk, received". History is compared with `cp` and `sync` of the same files, both with cold caches where this
program may drop them.
"""

import argparse
import contextlib
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from bench.engines import ENGINES
from bench.process import EngineError, EngineProcess
from bench.supply import TAG, TOPIC, Supply, make_bodies
from penstock import Message, Store

SIZE = 1024
Row = dict[str, Any]
# The flush policies of Penstock's master and copy, `wait_for`, and RocketMQ's flushDiskType.
KINDS = {
    "received": ("async", "async", "received", "ASYNC_FLUSH"),
    "disk, received": ("sync", "async", "received", "SYNC_FLUSH"),
    "disk": ("sync", "sync", "disk", "SYNC_FLUSH"),
}


def fresh(folder: Path) -> Path:
    """Return a folder that is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def opened(folder: Path, flush: str, **ha: Any) -> Store:
    """Open a master on a port that the system chooses."""
    given: dict[str, Any] = {f"replicate.ha.{name}": value for name, value in ha.items()}
    given["replicate.ha.listen"] = "127.0.0.1:0"
    return penstock.open(
        folder, environ={}, flush=flush, replicate="ha", profile="rocketmq", **given
    )


def follow(store: Store, folder: Path, *options: str) -> list[str]:
    """Return the command that follows a master, as soon as it says where it listens."""
    while not (listen := (store.stats()["replica"] or {}).get("listen")):
        time.sleep(0.05)
    command = [sys.executable, "-m", "penstock", "replica", "follow", str(folder)]
    return [*command, "--from", str(listen), "--quiet", *options]


@contextlib.contextmanager
def copied(folder: Path, kind: str) -> Iterator[Store]:
    """Open a store whose puts wait for a copy, and let another process follow it."""
    flush, flush_there, wait_for, _ = KINDS[kind]
    with opened(folder / "master", flush, in_sync_replicas=2, wait_for=wait_for) as store:
        command = follow(store, folder / "copy", "--set", f"flush.use={flush_there}")
        process = subprocess.Popen(command)
        try:
            while store.put(TOPIC, b"first", queue=0).status != "PUT_OK":
                assert process.poll() is None, "the copy has ended"
                time.sleep(0.1)
            yield store
        finally:
            process.terminate()
            process.wait()


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run a function in threads, which get their numbers; return the seconds."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def ours(folder: Path, bodies: Path, kind: str, threads: int, count: int) -> float:
    """Return the microseconds of one put, divided by the threads that put at once."""
    share = count // threads
    with copied(fresh(folder), kind) as store:

        def put(rows: list[tuple[int, str, bytes]]) -> None:
            for queue, key, body in rows:
                receipt = store.put(TOPIC, body, queue=queue, keys=[key], tag=TAG)
                assert receipt.status == "PUT_OK", receipt

        supply = Supply(bodies)
        put(supply.rows(count // 4, SIZE))
        rows = [supply.rows(share, SIZE) for _ in range(threads)]
        return in_threads(threads, lambda number: put(rows[number])) / (share * threads) * 1e6


def theirs(folder: Path, bodies: Path, kind: str, threads: int, count: int) -> float:
    """Return the same of RocketMQ."""
    fresh(folder)
    with EngineProcess("rocketmq") as master, EngineProcess("rocketmq") as slave:
        ports = []
        for process, role in ((master, "SYNC_MASTER"), (slave, "SLAVE")):
            settings = dict(ENGINES["rocketmq-index"].settings)
            settings |= {"brokerRole": role, "inSyncReplicas": 2}
            settings["flushDiskType"] = KINDS[kind][-1]
            given = {"root": str(folder / role), "bodies": str(bodies), "settings": settings}
            ports.append(process.call("open", number=0, **given)["ha_port"])
        slave.call("follow", port=ports[0])
        for _ in range(100):
            # The slave looks for its master every 5 s.
            with contextlib.suppress(EngineError):
                master.call("put", count=1, size=SIZE)
                break
        master.call("put", count=count // 4, size=SIZE)
        done = master.call("put", count=count, size=SIZE, threads=threads)
        return float(done["acked_ns"] / done["count"] / 1000)


def puts(folder: Path, rounds: int, count: int) -> Iterator[Row]:
    """Yield a row for each way to wait and number of threads."""
    bodies = fresh(folder) / "bodies"
    make_bodies(bodies)
    for kind, threads in itertools.product(KINDS, (1, 8)):
        given = folder / "pair", bodies, kind, threads, count
        pairs = [(ours(*given), theirs(*given)) for _ in range(rounds)]
        ratios = [their_us / our_us for our_us, their_us in pairs]
        yield {
            "what": f"put of 1 KiB with a copy, {kind}", "threads": threads,
            "us": [round(statistics.median(each), 1) for each in zip(*pairs, strict=True)],
            "ratio": round(statistics.median(ratios), 2), "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }  # fmt: skip


def cold() -> bool:
    """Write everything to the disk and drop the caches; return whether that was allowed."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def seconds(*command: str) -> float:
    """Return how long a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def history(folder: Path, rounds: int, gib: float) -> Iterator[Row]:
    """Yield a row: a new copy of a store of so many GiB, beside `cp` and `sync` of its log."""
    root, copies, body = fresh(folder) / "store", folder / "copies", bytes(range(256)) * 4
    with penstock.open(root, environ={}, flush="none", profile="rocketmq") as store:
        while store.stats()["log_end_offset"] < gib * (1 << 30):
            store.put_many([Message(TOPIC, body, queue=0)] * 1000)
    pairs, is_cold = [], True
    for _ in range(rounds):
        fresh(copies)
        is_cold &= cold()
        copying_s = seconds("cp", "-r", str(root / "commitlog"), str(copies / "cp"))
        copying_s += seconds("sync")
        fresh(copies)
        is_cold &= cold()
        with opened(root, "async") as store:
            command = follow(store, copies / "copy", "--once", "--set", "flush.use=sync")
            pairs.append((seconds(*command), copying_s))
    yield {
        "what": f"a new copy of {gib} GiB, beside cp and sync", "is_cold": is_cold,
        "mb_per_s": [round(gib * 1074 / statistics.median(each)) for each in zip(*pairs, strict=True)],
        "ratio": round(statistics.median(their_s / our_s for our_s, their_s in pairs), 2),
    }  # fmt: skip


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the stores are made; deleted first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--puts", type=int, default=20_000, help="of each measurement; 0: none")
    parser.add_argument("--gib", type=float, default=0, help="of history; 0: not measured")
    asked = parser.parse_args()
    rows = [puts(asked.folder, asked.rounds, asked.puts)] if asked.puts else []
    rows += [history(asked.folder, asked.rounds, asked.gib)] if asked.gib else []
    for row in rows:
        for found in row:
            print(json.dumps(found), flush=True)
    shutil.rmtree(asked.folder)


if __name__ == "__main__":
    main()
