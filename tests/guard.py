"""Bytes that end where a page begins that nobody may read: what reads on behind them ends the process."""

import ctypes
import mmap

_NOTHING_ALLOWED = 0
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(data: bytes) -> memoryview:
    """Return a copy of some bytes with such a page right behind."""
    return guarded_memory(data).toreadonly()


def guarded_memory(data: bytes) -> memoryview:
    """Return the same, to be written to."""
    pages = max(-(-len(data) // mmap.PAGESIZE), 1)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    end = pages * mmap.PAGESIZE
    memory[end - len(data) : end] = data
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    refused = _libc.mprotect(
        ctypes.c_void_p(start + end), ctypes.c_size_t(mmap.PAGESIZE), _NOTHING_ALLOWED
    )
    assert refused == 0, ctypes.get_errno()
    return memoryview(memory)[end - len(data) : end]
