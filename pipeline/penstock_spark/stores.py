"""Opens the stores of a read, one at a time, and asks each what it holds. No pyspark in here.

Nothing stays open between two calls: a read may mean a thousand stores. Many are asked at once, in processes
where the work is this machine's, in threads where it is waiting for a network.
"""

import functools
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
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
    # Not forked: this process may have threads.
    context = multiprocessing.get_context("spawn")
    pool: Executor = ProcessPoolExecutor(cores, mp_context=context)
    with pool:
        return list(pool.map(ask, locations, chunksize=max(len(locations) // (cores * 8), 1)))
