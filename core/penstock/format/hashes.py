"""The hashes of RocketMQ's files: CRC-32C, and Java's `String.hashCode`, which tag codes and the hash index use.

Java's hash runs over UTF-16 code units, so a character outside the Basic Multilingual Plane counts as
two. Source: Java Language API, `java.lang.String.hashCode`; RocketMQ store, spec sections 3.2, 4.2.
"""

import functools
from collections.abc import Callable
from typing import Any

from penstock import _kernel
from penstock.format.arrays import Int64s, np


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C of `data`, which is bytes in any form, continued from that of the bytes before it."""
    return int(_package()(data, value))


@functools.cache
def _package() -> Callable[[Any, int], int]:
    from crc32c import crc32c as found  # noqa: PLC0415 - see the module

    function: Callable[[Any, int], int] = found
    return function


# Returns the hash of a text as a signed 32-bit number.
java_hash = _kernel.java_hash

_COUNTED_MAX = 1 << 16


def index_hash(text: str) -> int:
    """Return the hash as the hash index uses it: never negative, and 0 if Java's abs() overflows."""
    value = java_hash(text)
    return 0 if value == -(1 << 31) else abs(value)


def distinct_of(values: Int64s) -> list[int]:
    """Return the distinct values, which must not be negative, ascending.

    Used in place of `np.unique`, whose first call imports another part of numpy: in a background thread, that may fail
    because no descriptor is left.
    """
    if len(values) and int(values.max()) > _COUNTED_MAX:
        return sorted(set(values.tolist()))
    found: list[int] = np.flatnonzero(np.bincount(values)).tolist()
    return found
