"""A writer whose process dies where a store into the map reaches the next page, as one killed at a page fault does."""

import ctypes
import os
import sys
from typing import Any

from tests.crash.writer import SMALL, message

import penstock

PAGE = 4096
PROT_READ = 1


def forbid_next_page(store: penstock.Store) -> None:
    """Let a store into the page behind the log's end kill this process."""
    engine: Any = store._engine
    segment = engine.log.tail.segment
    start = ctypes.addressof(ctypes.c_char.from_buffer(segment.channel._map))
    page = start + (segment.wrote_position // PAGE + 1) * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")


def main(path: str, count: int) -> None:
    """Put a batch over the page's end; prints how many messages are acknowledged, before and after."""
    store = penstock.open(path, flush="none", environ={}, **SMALL)
    number = sum(store.max_offset("t", queue) for queue in range(3))
    for _ in range(3):
        one = message(number)
        store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
        number += 1
    print(number, flush=True)
    forbid_next_page(store)
    store.put_many([message(number + i) for i in range(count)])
    print(number + count, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
