"""Bugs planted on purpose, and the fault test that must find each.

`python -m tests.crash.plants` runs all, with a name one of them: it prints how each was found.
"""

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from penstock.contracts.base import INDEX_HEADER_SIZE
from penstock.durability.progress import Checkpoint, Times
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.testing.crash import Plot, explore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.failures import explore_failures
from penstock.testing.kit import SMALL
from penstock.testing.platter import Survival
from penstock_alloc.allocators import RecycleAllocator
from penstock_index.hash_index import HashIndexDispatcher
from penstock_index.index_file import HEADER, Peek
from penstock_index.queue_files import Syncs

# Found within so many stories, or not at all. `first` is a story that finds the bug: one that does not takes 8 s.
STORIES = 6


class Plant(NamedTuple):
    """A bug: what is wrong, what it does to the code, and the test that finds it (returns what it says)."""

    about: str
    patches: Callable[[], list[Any]]
    hunt: Callable[[], str]


def crashes(
    *,
    first: int = 0,
    steps: int = 24,
    survivals: Sequence[Survival] = tuple(Survival),
    **settings: Any,
) -> Callable[[], str]:
    """Hunt by crash exploration, from a first seed on."""

    def hunt() -> str:
        for seed in range(first, first + STORIES):
            plot = Plot(seed=seed, settings=settings, steps=steps)
            for outcome in explore(plot, cases=400, survivals=survivals):
                if outcome.problem:
                    return f"crash exploration, seed {seed}, {outcome.case}: {outcome.problem}"
        return ""

    return hunt


def failures(**settings: Any) -> Callable[[], str]:
    """Hunt by failure exploration, of syncs."""

    def hunt() -> str:
        for seed in range(STORIES):
            plot = Plot(seed=seed, settings=settings)
            for outcome in explore_failures(plot, 60, kinds=("sync",)):
                if outcome.problem:
                    return f"failure exploration, seed {seed}, {outcome.failure}: {outcome.problem}"
        return ""

    return hunt


# --- what is planted


def no_sync() -> list[Any]:
    return [patch.object(SegmentedLog, "sync_channel", lambda *_: None)]


def no_folder_sync() -> list[Any]:
    whole = SimulatedDisk.sync_folder

    def sync_folder(disk: SimulatedDisk, path: Path) -> None:
        if path.name != "commitlog":
            whole(disk, path)

    return [patch.object(SimulatedDisk, "sync_folder", sync_folder)]


def rename_before_sync() -> list[Any]:
    def write_whole(files: Files, path: Path, data: bytes, fresh: Path | None = None) -> None:
        fresh = fresh or path.with_name(path.name + ".new")
        if files.exists(fresh):
            files.remove(fresh)
        file = files.create(fresh)
        file.pwrite(data, 0)
        files.rename(fresh, path)
        files.sync_folder(path.parent)
        file.sync_all()
        file.close()

    return [patch.object(Files, "write_whole", write_whole)]


def checkpoint_ahead() -> list[Any]:
    whole = Checkpoint.write

    def write(checkpoint: Checkpoint, times: Times) -> None:
        whole(checkpoint, times._replace(log_ms=times.log_ms + 1))

    return [patch.object(Checkpoint, "write", write)]


def progress_ahead() -> list[Any]:
    whole = Syncs.sync

    def sync(syncs: Syncs, _paths: Collection[Path], folders: Collection[Path]) -> None:
        # The marks are written after it; the files are not synced.
        whole(syncs, [], folders)

    return [patch.object(Syncs, "sync", sync)]


def index_believed() -> list[Any]:
    return [patch.object(HashIndexDispatcher, "_cut", lambda *_: False)]


def no_erase() -> list[Any]:
    return [patch.object(Segment, "erase", lambda *_: None)]


def recycled_unfenced() -> list[Any]:
    """The used file is renamed into place as it is, its old records in it."""
    return [patch.object(RecycleAllocator, "_fill_with_zeros", lambda *_: None)]


def wrong_lock() -> list[Any]:
    def lock(_files: Files, path: Path) -> Lock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Lock(descriptor)

    return [patch.object(Files, "lock", lock)]


def unbound_chain() -> list[Any]:
    def candidates(peek: Peek, key_hash: int, _begin_ms: int, _end_ms: int) -> Iterator[int]:
        number = int(np.flatnonzero(peek.entries()["hash"] == key_hash)[-1]) + 1
        while number:
            entry = peek.entries()[number - 1]
            yield int(entry["log_offset"])
            number = int(entry["previous"])

    return [patch.object(Peek, "candidates", candidates)]


# --- hunts of their own

_JAVAS_LOCK = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
"""


def java_is_refused() -> str:
    """While we hold the lock, one as Java takes it (POSIX, byte 0) is refused in another process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lock"
        held = Files().lock(path)
        assert held is not None
        taken = subprocess.run(
            [sys.executable, "-c", _JAVAS_LOCK, str(path)], check=False, capture_output=True
        ).returncode
        held.release()
    return "" if taken else "lock test: another program took the lock that we hold"


def chains_end() -> str:
    """A look-up in a chain that points to itself ends within as many steps as there are entries."""
    steps = 0

    class Counted:
        path = Path("index")

        def pread(self, size: int, position: int) -> bytes:
            nonlocal steps
            steps += 1
            if steps > 10 * SMALL.index_entries:
                raise TimeoutError
            return bytes(data[position : position + size])

    data = bytearray(SMALL.index_file_bytes)
    HEADER.pack_into(data, 0, 1, 2, 0, 100, 1, 3)
    struct.pack_into(">i", data, INDEX_HEADER_SIZE + 4 * 7, 2)
    at = INDEX_HEADER_SIZE + 4 * SMALL.index_slots + 2 * 20
    struct.pack_into(">iqii", data, at, 7, 100, 0, 2)
    try:
        list(Peek(Counted(), SMALL).candidates(7, 0, 1 << 62))  # type: ignore[arg-type]
    except TimeoutError:
        return f"hostile index test: a chain of 2 entries was walked for {steps} steps"
    return ""


MMAP: dict[str, Any] = {"write": "mmap", "alloc": "on-demand", "flush": "async"}
PLANTS = {
    "no-sync": Plant("a sync left out", no_sync, crashes(**MMAP)),
    "no-folder-sync": Plant("a directory sync left out", no_folder_sync, crashes(**MMAP)),
    "rename-before-sync": Plant("a rename before its sync", rename_before_sync, crashes(**MMAP)),
    "checkpoint-ahead": Plant(
        "a checkpoint ahead of the data", checkpoint_ahead, crashes(first=10, **MMAP)
    ),
    "marks-ahead": Plant(
        "marks ahead of the queues",
        progress_ahead,
        crashes(first=14, survivals=(Survival.PAGES,), extensions=[], **MMAP),
    ),
    "index-believed": Plant(
        "an index trusted past the log", index_believed, crashes(first=2, **MMAP)
    ),
    "no-erase": Plant("an erase left out after a cut", no_erase, crashes(first=18, **MMAP)),
    "recycled-unfenced": Plant(
        "a recycled segment not fenced",
        recycled_unfenced,
        crashes(first=6, write="mmap", alloc="recycle", steps=80),
    ),
    "wrong-lock": Plant("the wrong lock (`flock`)", wrong_lock, java_is_refused),
    "unbound-chain": Plant("a chain walked without bound", unbound_chain, chains_end),
}


def hunt(name: str, *, planted: bool = True) -> str:
    """Plant a bug and hunt it; returns how it was found, "" if it was not."""
    plant = PLANTS[name]
    with ExitStack() as stack:
        for each in plant.patches() if planted else []:
            stack.enter_context(each)
        return plant.hunt()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PLANTS:
        print(f"{wanted}: {hunt(wanted) or 'NOT FOUND'}")
