"""A writer whose process dies where a store into the map reaches the next page, as one killed at a page fault does."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.crash.writer import SMALL, message

from penstock.contracts import SegmentChannel
from penstock.testing import open_store
from penstock_alloc.writers import MmapWriter

PAGE = 4096
PROT_READ = 1


class Watched(MmapWriter):
    """The writer of the one segment, and the memory that it stores into."""

    memory: ClassVar[Any] = None

    def open(self, *given: Any) -> SegmentChannel:
        """Open a segment."""
        channel = super().open(*given)
        Watched.memory = channel.buffer
        return channel


def forbid_next_page(end: int) -> None:
    """Let a store into the page behind the log's end kill this process."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(Watched.memory))
    page = start + (end // PAGE + 1) * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")


def main(path: str, count: int) -> None:
    """Put a batch over the page's end; prints how many messages are acknowledged, before and after."""
    store = open_store(Path(path), strategies=[Watched], write="mmap", flush="none", **SMALL)
    number = sum(store.max_offset("t", queue) for queue in range(3))
    end = 0
    for _ in range(3):
        one = message(number)
        last = store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
        number, end = number + 1, last.log_offset + last.size
    print(number, flush=True)
    forbid_next_page(end)
    store.put_many([message(number + i) for i in range(count)])
    print(number + count, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
