"""CRC-32C (Castagnoli), by the package `crc32c`, which is imported at the first use: it brings in `importlib.metadata`."""

import functools
from collections.abc import Callable
from typing import Any


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C of `data`, which is bytes in any form, continued from that of the bytes before it."""
    return int(_package()(data, value))


@functools.cache
def _package() -> Callable[[Any, int], int]:
    from crc32c import crc32c as found  # noqa: PLC0415 - see the module

    function: Callable[[Any, int], int] = found
    return function
