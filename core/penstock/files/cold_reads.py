"""Ranges of files that are not in memory: found without waiting, and read, for a caller that may not wait for the disk.

A replicator that sends a segment with `sendfile` from its event loop reads it in another thread first: with the loop would wait all
other copies, and the puts that wait for them.
"""

import os

_PROBE_BYTES = 1
_READ_BYTES = 1 << 20


def is_in_memory(descriptor: int, position: int, size: int) -> bool:
    """Return whether a range of a file can be sent without waiting for the disk, by its first and its last byte.

    True as well where the system does not tell.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        for at in (position, position + size - 1):
            os.preadv(descriptor, [bytearray(_PROBE_BYTES)], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        # A file system that has no such reads.
        return True
    return True


def read_through(descriptor: int, position: int, size: int) -> None:
    """Read a range of a file, so that it is in memory; lets other threads run meanwhile."""
    buffer = memoryview(bytearray(min(size, _READ_BYTES)))
    stop = position + size
    while position < stop:
        got = os.preadv(descriptor, [buffer[: stop - position]], position)
        if not got:
            return
        position += got
