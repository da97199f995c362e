"""How soon a message is visible: to its own process (dispatch lag), and to a follower in another one.

Also how long synced puts keep another thread of their process from running, and the disk's own speed.
"""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Bench, Session, Work
from bench.process import EngineProcess

TAIL = "tail, put to a follower in another process"


def run(bench: Bench) -> None:
    """Run all measurements of this module."""
    if bench.wants("lag"):
        with Session(bench, "lag", ("penstock", "rocketmq")) as session:
            session.run(
                [
                    Work(name="lag, put to readable in the same process", do="lag",
                         engines=("penstock", "rocketmq"), facts={"count": 500, "size": 128})
                ]
            )  # fmt: skip
    if bench.wants("stall"):
        engines = (
            "penstock-sync",
            "penstock-sync-crc32",
            "sqlite-sync",
            "lmdb-sync",
            "rocksdb-sync",
        )
        with Session(bench, "stall", engines) as session:
            session.run(
                [
                    Work(name="stall of another thread during sync puts, the longest", do="stall",
                         engines=engines, facts={"count": 500, "size": 1024}, unit="ms", scale=1e6)
                ]
            )  # fmt: skip
    if bench.wants("tail"):
        for engine in ("penstock", "sqlite"):
            _follow(bench, engine)
        bench.show(TAIL)
    if bench.wants("disk"):
        for _ in range(bench.rounds):
            _disk(bench)
        bench.show("disk, 1 MiB at a time, then one sync", "disk, 4 KiB and a sync each",
                   "disk, 1 MiB at a time past the page cache")  # fmt: skip


def _follow(bench: Bench, engine: str) -> None:
    work = Work(name=TAIL, do="follow", engines=(engine,))
    root = bench.home / f"tail-{engine}"
    with bench.fresh(engine, root) as (writer, _), EngineProcess(engine) as follower:
        writer.call("fill", count=1000, size=128)
        # The messages must be visible to others before the follower counts from the end on.
        time.sleep(1)
        follower.call("watch", root=str(root))
        beats = bench.scaled(300)
        for number in range(bench.rounds + 1):
            follower.send("follow", count=beats)
            writer.call("beat", count=beats, pause_ms=2)
            answer = follower.receive()
            if number:
                bench.keep(work, engine, answer)
                bench.note(f"{TAIL}, us", engine, answer["latency"]["50"] / 1000, "us")


def _disk(bench: Bench) -> None:
    path = bench.home / "disk"
    piece = memoryview(bytearray(os.urandom(1 << 20)))
    size = max(bench.scaled(256 << 20) >> 20, 1) << 20
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        took = _timed(lambda: _write(file, piece, size))
        bench.note("disk, 1 MiB at a time, then one sync", "disk", took / size * 1e9, "ms a MB")
        took = _timed(lambda: _write_synced(file, piece[:4096]))
        bench.note("disk, 4 KiB and a sync each", "disk", took / 200 * 1e6, "us")
    finally:
        os.close(file)
    _direct(bench, path, size)
    path.unlink()


def _direct(bench: Bench, path: Path, size: int) -> None:
    """Overwrite the file once more, bypassing the page cache, if the file system supports it."""
    aligned = mmap.mmap(-1, 1 << 20)
    try:
        file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return
    try:
        took = _timed(lambda: _write(file, memoryview(aligned), size))
        bench.note("disk, 1 MiB at a time past the page cache", "disk", took / size * 1e9,
                   "ms a MB")  # fmt: skip
    finally:
        os.close(file)


def _write(file: int, piece: memoryview, size: int) -> None:
    for _ in range(size // len(piece)):
        os.write(file, piece)
    os.fdatasync(file)


def _write_synced(file: int, piece: memoryview) -> None:
    for _ in range(200):
        _write(file, piece, len(piece))


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began
