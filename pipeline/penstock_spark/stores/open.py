"""Opens the stores of a read, one at a time, and queries each. This module does not import pyspark.

No store stays open between two calls, since a read may have a thousand stores. Stores at URLs are queried in several
threads, which mostly wait; for many stores on this machine see `source.queries`.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import penstock
from penstock_spark.stores.locations import Location
from penstock_spark.stores.remote_files import RemoteFiles, UrlPath

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


def ask_all(locations: Sequence[Location], ask: Callable[[Location], _T]) -> list[_T]:
    """Return the result of `ask` for each store, in order."""
    far = sum(location.is_remote for location in locations)
    if far > 1:
        with ThreadPoolExecutor(min(_THREADS, far)) as threads:
            return list(threads.map(ask, locations))
    return [ask(location) for location in locations]
