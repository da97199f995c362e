"""Opens the stores of a read, one at a time, and asks each what it holds. No pyspark in here.

Nothing stays open between two calls: a read may mean a thousand stores. Many are asked at once, in processes
where the work is this machine's, in threads where it is waiting for a network.
"""

import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import penstock
from penstock_spark.locations import Location
from penstock_spark.remote import RemoteFiles, UrlPath

# Fewer local stores than this are asked one after the other: starting a process costs half a second.
_MANY_LOCAL = 100
_PROCESSES_MAX = 8
_THREADS = 16

_T = TypeVar("_T")


@functools.cache
def _opener() -> Callable[[str], penstock.Store]:
    return penstock.open_several()


def open_store(location: Location) -> penstock.Store:
    """Open one store, read-only."""
    if location.is_remote:
        url = location.name.rstrip("/")
        return penstock.open_several(files=RemoteFiles(url))(UrlPath(url))
    return _opener()(location.name)


def ask_all(
    locations: Sequence[Location], ask: Callable[[Location], _T], *, processes: bool = True
) -> list[_T]:
    """Return what `ask` says of each store, in order; it is pickled where there are many."""
    far = sum(location.is_remote for location in locations)
    if far > 1:
        with ThreadPoolExecutor(min(_THREADS, far)) as threads:
            return list(threads.map(ask, locations))
    cores = min(len(os.sched_getaffinity(0)), _PROCESSES_MAX)
    if not processes or len(locations) < _MANY_LOCAL or cores == 1:
        return [ask(location) for location in locations]
    size = -(-len(locations) // cores)
    parts = [locations[at : at + size] for at in range(0, len(locations), size)]
    with ThreadPoolExecutor(cores) as threads:
        answers = threads.map(lambda part: _ask_in_child(part, ask), parts)
        return [found for part in answers for found in part]


def _ask_in_child(locations: Sequence[Location], ask: Callable[[Location], _T]) -> list[_T]:
    """Ask in a process of its own, or here if that does not work: then the error is raised here.

    Not by `multiprocessing`: forked, a child takes over the threads' locks; spawned, it runs the main script
    again, which here may be anything.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", "from penstock_spark.stores import answer; answer()"],
        input=pickle.dumps((ask, list(locations))), capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode != 0:
        return [ask(location) for location in locations]
    found: list[_T] = pickle.loads(done.stdout)
    return found


def answer() -> None:
    """Read a question from the standard input, and write the answers to the standard output."""
    ask, locations = pickle.load(sys.stdin.buffer)
    found = pickle.dumps([ask(location) for location in locations])
    sys.stdout.buffer.write(found)
